"""The map of CPUs that `koordlet top --cpus` prints, from the answer of /v1/cpus. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from koordlet.cli.screen import table

if TYPE_CHECKING:
    from rich.console import RenderableType

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
OTHERS: Final = {"shared": ".", "reserved": "#", "system": "="}
STYLES: Final = ("blue", "magenta", "cyan", "yellow", "red", "green")


def cpu_map(answer: dict[str, Any], width: int) -> RenderableType:
    """One block per NUMA node, one cell per core with a mark per thread, and who the marks are."""
    from rich.console import Group
    from rich.text import Text

    if not answer["cpus"]:
        return Text("The machine's CPU topology could not be read; see `koordlet status`.")
    marks = _marks(answer["owners"])
    parts: list[RenderableType] = []
    for (socket, node), cpus in groupby(answer["cpus"], key=lambda cpu: (cpu["socket"], cpu["node"])):
        parts.append(Text(f"socket {socket}  NUMA node {node}", style="bold"))
        cells = Text("  ")
        for _, threads in groupby(cpus, key=lambda cpu: cpu["core"]):
            cell = Text()
            for cpu in threads:
                mark, style = marks[cpu["owner"]]
                cell.append(mark, style=f"{style} underline" if cpu["best_effort"] else style)
            if len(cells.plain.rpartition("\n")[2]) + len(cell) + 1 > max(width, 20):
                cells.append("\n  ")
            cells.append_text(cell).append(" ")
        parts.append(cells)
    parts.append(Text())
    owners = table("", "owner", "CPUs", "QoS", "list", right=("CPUs",), wrap=("list",))
    for owner in answer["owners"]:
        mark, style = marks[owner["name"]]
        owners.add_row(Text(mark, style=style), owner["name"], str(owner["count"]), owner["qos"], owner["cpus"] or "-")
    parts.append(owners)
    allowed = answer["best_effort"]
    parts.append(Text(f"best-effort work (underlined): {'not confined' if allowed is None else allowed or 'no CPU'}"))
    parts += [Text(f"claimed twice: {row['name']} {row['cpus']}", style="red") for row in answer["conflicts"]]
    return Group(*parts)


def _marks(owners: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Name -> (mark, style). Past 62 owners the marks repeat in other colours."""
    marks = {name: (mark, "dim") for name, mark in OTHERS.items()}
    pods = [owner["name"] for owner in owners if owner["kind"] == "pod"]
    for number, name in enumerate(pods):
        marks[name] = (LETTERS[number % len(LETTERS)], STYLES[(number + number // len(LETTERS)) % len(STYLES)])
    return marks
