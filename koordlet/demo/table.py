"""The demo's results as a table for people or as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from koordlet.demo.layout import cpu_count
from koordlet.demo.options import Options
from koordlet.demo.reaction import Reaction
from koordlet.demo.rounds import Outcome, Row

if TYPE_CHECKING:
    from rich.table import Table

NOTES: Final = """\
p50, p99, p99.9: ms from when a request should have been sent to its end.{rounds}
x alone, x unman.: p99 as a multiple of that of the same round's phase. On a
virtual machine an idle CPU wakes up late, so a lone service is no perfect
baseline; the distance to unmanaged is what protection is worth.
of idle: what batch got of the CPU that online service and system left."""
BUSY_SHARE: Final = 0.1
"""Of the node used by others, above which a reader is warned."""


_WIDTH: Final = 84


def print_table(options: Options, outcome: Outcome) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, _WIDTH)  # a table cut off says nothing; a terminal wraps lines
    console.print(make_table(options, outcome))
    console.print(NOTES.format(rounds=f"\nMedians of {options.rounds} rounds." if options.rounds > 1 else ""))
    others = max(row.other_cpus for row in outcome.rows)
    if others > BUSY_SHARE * cpu_count():
        console.print(f"Careful: other work on this machine used up to {others:.1f} of {cpu_count()} CPUs meanwhile.")
    console.print()


def make_table(options: Options, outcome: Outcome) -> Table:
    from rich import box
    from rich.table import Table

    title = f"Online service beside a batch job, {cpu_count()} CPUs, {options.tree} tree"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("batch job", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    for name in ("p50", "p99", "p99.9", "x alone", "x unman.", "work/s", "of idle"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = None
    for row in outcome.rows:
        if row.antagonist is not shown:
            table.add_section()
        name = row.antagonist.value if row.antagonist and row.antagonist is not shown else ""
        shown = row.antagonist
        table.add_row(name, row.phase.value, *_cells(options, row))
    return table


def _cells(options: Options, row: Row) -> list[str]:
    return [
        *(_ms(us) for us in (row.p50_us, row.p99_us, row.p999_us)),
        _times(row.to_alone),
        "" if row.to_unmanaged is None else _times(row.to_unmanaged),
        _rate(row.work / options.phase_s) if row.antagonist else "",
        "" if row.idle_share is None else f"{100 * row.idle_share:.0f} %",
    ]


def reaction_text(reaction: Reaction) -> str:
    """Two lines on the delays."""
    named = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    values = ((name, reaction.quantile_ms(share)) for name, share in named)
    figures = ", ".join(f"{name} {value:.0f} ms" for name, value in values if value is not None)
    missed = f", {reaction.missed} without an answer" if reaction.missed else ""
    lines = [
        "from the start of an online surge (60 % of the node) to the lower batch limit in",
        f"the kernel, {len(reaction.delays_ms)} surges{missed}: {figures or 'no figures'}",
    ]
    return "\n".join([*lines, reaction.note] if reaction.note else lines)


def to_json(options: Options, outcome: Outcome, reaction: Reaction | None) -> dict[str, Any]:
    """Medians, every single round without its timeline, and the reaction."""
    rounds = [[_without_timeline(asdict(one)) for one in done] for done in outcome.rounds]
    found: dict[str, Any] = {
        "cpus": cpu_count(),
        "tree": options.tree.value,
        "phase_s": options.phase_s,
        "rows": [asdict(row) for row in outcome.rows],
        "rounds": rounds,
    }
    if reaction is not None:
        found["reaction"] = reaction_json(reaction)
    return found


def reaction_json(reaction: Reaction) -> dict[str, Any]:
    quantiles = {f"p{round(100 * share)}_ms": reaction.quantile_ms(share) for share in (0.5, 0.9, 0.99)}
    return {
        "surges": len(reaction.delays_ms),
        "missed": reaction.missed,
        **quantiles,
        "max_ms": reaction.quantile_ms(1.0),
        "delays_ms": reaction.delays_ms,
        "note": reaction.note,
    }


def _without_timeline(measured: dict[str, Any]) -> dict[str, Any]:
    del measured["samples"], measured["online"]["slots"]
    return measured


def _ms(value_us: float) -> str:
    return f"{value_us / 1000:,.2f}" if value_us < 100_000 else f"{value_us / 1000:,.0f}"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s < 100_000 else f"{per_s / 1e6:,.2f} M"


def _times(ratio: float) -> str:
    return f"{ratio:.4f}" if ratio < 0.1 else f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"
