"""`koordlet report interference`: online workloads against best-effort ones, as text, JSON, CSV and picture."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any, Final

from koordlet.cli.client import AgentError, ask_ok
from koordlet.cli.screen import add_socket, console, fail, indent, parser, print_json, table

ABOUT: Final = """\
Compares each online workload with its own past (cycles per instruction, or the share of time in which it waited for a
CPU where there are no counters), and says which best-effort workloads explain the difference (method: CPI2, EuroSys
2013). CHANGE is the signal's mean beside that workload against its mean without best effort.
"""
COLUMNS: Final = (
    *("online", "batch", "signal", "together", "apart", "mean_together", "mean_apart", "change"),
    *("correlation", "verdict"),
)


def main(argv: list[str]) -> int:
    options = parser("report interference", ABOUT)
    add_socket(options)
    options.add_argument("--output", choices=("text", "json", "csv"), default="text", help="default text")
    options.add_argument("--picture", metavar="FILE", help="also draw the matrix (PNG; needs koordlet[demo])")
    given = options.parse_args(argv)
    try:
        answer: dict[str, Any] = ask_ok(given.socket, "/v1/interference")
    except AgentError as error:
        return fail("report", error)
    if given.output == "json":
        print_json(answer)
    elif given.output == "csv":
        rows = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        rows.writeheader()
        rows.writerows(answer["pairs"])
    else:
        _text(answer)
    return _picture(given.picture, answer) if given.picture else 0


def _picture(path: str, answer: dict[str, Any]) -> int:
    try:
        from koordlet.cli.report_picture import draw
    except ImportError:
        return fail("report", "drawing needs pillow: pip install 'koordlet[demo]'")
    try:
        draw(answer, Path(path))
    except ValueError:
        return fail("report", f"{path}: no kind of picture that is known; name it {Path(path).stem}.png")
    except OSError as error:
        return fail("report", f"{path}: {error}")
    return 0


def _text(answer: dict[str, Any]) -> None:
    screen = console()
    if answer["reason"]:
        screen.print(answer["reason"])
        return
    made = table("ONLINE", "SIGNAL", "NOW", "BASELINE", "EXCESS", "SUSPECTS", wrap=("ONLINE", "SUSPECTS"))
    for row in answer["online"]:
        suspects = ", ".join(f"{s['name']} {s['correlation']:+.2f}" for s in row["suspects"] if s["correlation"] > 0)
        over = row["excess"] is not None and row["excess"] > 0.1
        made.add_row(
            row["name"],
            row["signal"],
            f"{row['value']:.3f}",
            _number(row["baseline"], ".3f"),
            _number(row["excess"], "+.0%"),
            suspects or "-",
            style="red" if over else "",
        )
    screen.print(made)
    if not answer["pairs"]:
        return
    screen.print("\nOnline x best effort")
    made = table("ONLINE", "BEST EFFORT", "SIGNAL", "TOGETHER/APART", "CHANGE", "CORR", "VERDICT", wrap=("ONLINE",))
    for row in answer["pairs"]:
        made.add_row(
            row["online"],
            row["batch"],
            row["signal"],
            f"{row['together']}/{row['apart']}",
            _number(row["change"], "+.0%"),
            f"{row['correlation']:+.2f}",
            row["verdict"],
            style={"suspected": "red", "unknown": "yellow"}.get(row["verdict"], ""),
        )
    screen.print(indent(made))


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)
