"""One frame of `koordlet top`, from the answer of /v1/top. Pure but for asking the terminal's character set."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from koordlet.cli import words
from koordlet.cli.screen import bar, table
from koordlet.cli.status import allowance, heading

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

BAR_WIDTH: Final = 24
MIN_POD_ROWS: Final = 3
MAX_WHY_LINES: Final = 3
NO_WORKLOADS: Final = (
    "No workload is known. Declare some with -workloads=FILE, or name a kubelet's list with -pods=URL.\n"
    "One that is declared is known as soon as a cgroup matches it."
)
QOS_STYLE: Final = {"LSE": "bold blue", "LSR": "blue", "LS": "green", "BE": "magenta", "SYSTEM": "dim"}


def frame(
    answer: dict[str, Any], width: int, height: int | None = None, fault: str = "", keys: str = ""
) -> RenderableType:
    """height: lines to fill, None for all pods. fault: why the answer is an old one. keys: the last line."""
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [_title(answer)]
    if fault:
        lines.append(Text(f"no news: {fault}", "bold red"))
    node = _node(answer, width)
    lines += ["", *node, ""]
    if answer["pods"] or answer["host_apps"]:
        told = len(answer["degraded"]) + len(answer["notes"]) + bool(fault)
        used = 5 + told + len(node) + len(answer["classes"]) + 2 * bool(keys)
        room = None if height is None else max(MIN_POD_ROWS, height - used)
        lines += [_classes(answer), "", _pods(answer, room)]
    else:
        lines.append(Text(NO_WORKLOADS, "dim"))
    if keys:
        lines += ["", Text(keys, "dim")]
    return Group(*lines)


def _title(answer: dict[str, Any]) -> Text:
    from rich.text import Text

    line = Text().append("koordlet", "bold").append(f" on {answer['node']['name'] or 'this node'}: ")
    return line.append_text(
        heading(answer, f", tick {answer['tick']['ticks']} took {answer['tick']['last_ms']:.1f} ms")
    )


def _node(answer: dict[str, Any], width: int) -> list[RenderableType]:
    from rich.text import Text

    usage, node = answer["usage"], answer["node"]
    cpu, be = words.value_of(usage["node_mcpu"]), words.value_of(usage["be_mcpu"])
    online = None if cpu is None or be is None else max(0.0, cpu - be)
    detail = "" if online is None else f"online {words.cores(online)}, best effort {words.cores(be)}"
    rows: list[RenderableType] = [
        _gauge("CPU", cpu, node["capacity_mcpu"], words.cores, " cores", detail),
        _gauge("Memory", words.value_of(usage["node_memory_bytes"]), node["capacity_bytes"], words.size, "", ""),
    ]
    if answer.get("pressure"):
        rows.append(_waiting(answer["pressure"]["node"]))
    pressure = words.value_of(usage["ls_pressure_permyriad"])
    if pressure is not None:
        style = "green" if pressure < 100 else "yellow" if pressure < 1000 else "bold red"
        text = (
            Text(no_wrap=True, overflow="ellipsis")
            .append("Pressure ", "bold cyan")
            .append(f"{pressure / 100:5.1f} %", style)
        )
        rows.append(text.append("  of the time something online waits for a CPU", "dim"))
    for root in answer["be_roots"]:
        rows.append(Text().append("Lent     ", "bold cyan").append_text(allowance(root)))
        because = wrap(f"because {words.why(root['why'])}" if root["why"] else "", max(20, width - 9))
        rows += [Text(f"{'':<9}{line}", "dim") for line in because[:MAX_WHY_LINES]]
    return rows


def _waiting(node: dict[str, Any]) -> Text:
    from rich.text import Text

    said = ", ".join(f"{resource} {row['some_avg10_percent']:.0f} %" for resource, row in node.items())
    return Text(no_wrap=True, overflow="ellipsis").append("Waiting  ", "bold cyan").append(f"{said}  of the last 10 s")


def _gauge(label: str, part: float | None, whole: float | None, say: Any, unit: str, detail: str) -> Text:
    from rich.text import Text

    on, off = bar(part, whole, BAR_WIDTH)
    share = part / whole if part is not None and whole else 0.0
    line = Text(no_wrap=True, overflow="ellipsis").append(f"{label:<9}", "bold cyan")
    line.append(on, "green" if share < 0.7 else "yellow" if share < 0.9 else "red").append(off, "dim")
    line.append(f" {words.percent(part, whole):>5}  {say(part)} of {say(whole)}{unit}")
    return line.append(f"  {detail}", "dim") if detail else line


def _classes(answer: dict[str, Any]) -> RenderableType:
    made = table("CLASS", "PODS", "CPU", "MEMORY", "BATCH REQUEST", right=("PODS", "CPU", "MEMORY", "BATCH REQUEST"))
    for row in answer["classes"]:
        made.add_row(
            row["qos"],
            str(row["pods"]),
            words.cores(row["cpu_mcpu"]),
            words.size(row["memory_bytes"]),
            words.cores(row["batch_request_mcpu"]) if row["batch_request_mcpu"] else "",
            style=QOS_STYLE.get(row["qos"]),
        )
    return made


def _pods(answer: dict[str, Any], room: int | None) -> RenderableType:
    """room: lines for the table with its head; the last one tells how many are left out."""
    made = table("POD", "CLASS", "CPU", "MEMORY", "THROTTLED", right=("CPU", "MEMORY", "THROTTLED"))
    rows: list[tuple[dict[str, Any], str, str]] = [
        (pod, pod["qos"], f"{pod['namespace']}/{pod['name']}") for pod in answer["pods"]
    ]
    rows += [(app, "", f"host application {app['name']}") for app in answer["host_apps"]]
    shown = rows if room is None or len(rows) + 1 <= room else rows[: room - 2]
    for row, qos, name in shown:
        throttled = words.value_of(row["throttled_ratio"])
        made.add_row(
            name,
            qos,
            words.cores(words.value_of(row["cpu_mcpu"])),
            words.size(words.value_of(row["memory_bytes"])),
            "" if throttled is None else f"{100 * throttled:.0f} %",
            style=QOS_STYLE.get(qos),
        )
    if len(shown) < len(rows):
        made.add_row(f"and {len(rows) - len(shown)} more", style="dim")
    return made
