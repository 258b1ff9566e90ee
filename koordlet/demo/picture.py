"""The timeline as a PNG: who used which CPUs, what batch was allowed, and how long online requests took.

One column per phase, in the order of running, two panels: CPUs above, latency (log scale) below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordlet.demo.counters import Sample
from koordlet.demo.layout import cpu_count
from koordlet.demo.options import Options
from koordlet.demo.reaction import Reaction
from koordlet.demo.rounds import Outcome
from koordlet.load.online import Slot

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont

SIZE: Final = (1500, 860)
LEFT: Final = 84
RIGHT: Final = 1480
CPU_PANEL: Final = (130, 470)
LATENCY_PANEL: Final = (530, 790)
"""Top and bottom of the two panels."""
MOST_REACTION_S: Final = 24.0
"""Of the surges only the last are drawn, or the phases would get too narrow."""

INK, GRID, SHADE = "#222222", "#dddddd", "#f4f6f8"
BLUE, ORANGE, GREEN, RED, PALE = "#1f6fb4", "#e07b1a", "#2a8f4a", "#c02b3a", "#e9aeb4"


@dataclass(frozen=True, slots=True)
class Column:
    """One phase: title in two lines, its time, and what is drawn in it."""

    title: tuple[str, str]
    duration_s: float
    samples: Sequence[Sample]
    slots: Sequence[Slot]


def missing_library() -> bool:
    """Whether the optional library that draws is not installed."""
    return find_spec("PIL") is None


def draw(options: Options, outcome: Outcome, reaction: Reaction | None, path: Path) -> None:
    """Draw the first round and the reaction. Raises OSError when the file cannot be written."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(image)
    small, large = ImageFont.load_default(14), ImageFont.load_default(22)
    columns = to_columns(outcome, reaction)
    pen.text((LEFT, 16), f"koordlet demo: {cpu_count()} CPUs, {options.tree} tree", INK, large)
    scale = _Scale(columns)
    _frame(pen, small, columns, scale)
    _cpus(pen, small, columns, scale)
    _latency(pen, small, columns, scale)
    image.save(path, "PNG")


def to_columns(outcome: Outcome, reaction: Reaction | None) -> list[Column]:
    """The first round in the order of running, then the surges."""
    columns = []
    for one in outcome.rounds[0]:
        title = (one.antagonist.value if one.antagonist else "no batch job", one.phase.value)
        columns.append(Column(title, one.samples[-1].at_s, one.samples, one.online.slots))
    if reaction is not None and reaction.samples:
        from_s = max(reaction.samples[-1].at_s - MOST_REACTION_S, 0.0)
        shown = [replace(sample, at_s=sample.at_s - from_s) for sample in reaction.samples if sample.at_s >= from_s]
        columns.append(Column(("online surges,", "koordlet with suppress"), shown[-1].at_s, shown, ()))
    return columns


class _Scale:
    """Pixels of a time within a column, of CPUs and of latencies."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.per_s = (RIGHT - LEFT) / sum(column.duration_s for column in columns)
        self.starts = [LEFT + self.per_s * sum(c.duration_s for c in columns[:at]) for at in range(len(columns))]
        self.most_cpus = cpu_count() * 1.1
        longest = max((slot.max_us for column in columns for slot in column.slots), default=1000)
        self.decades = (-1, max(math.ceil(math.log10(longest / 1000)), 1))  # powers of ten of milliseconds

    def x(self, column: int, at_s: float) -> float:
        return self.starts[column] + self.per_s * at_s

    def cpu_y(self, cpus: float) -> float:
        top, bottom = CPU_PANEL
        return bottom - (bottom - top) * min(cpus / self.most_cpus, 1)

    def latency_y(self, value_us: float) -> float:
        (top, bottom), (low, high) = LATENCY_PANEL, self.decades
        share = (math.log10(max(value_us, 1) / 1000) - low) / (high - low)
        return bottom - (bottom - top) * min(max(share, 0), 1)


def _frame(pen: ImageDraw, font: Font, columns: Sequence[Column], scale: _Scale) -> None:
    """Shades and titles of the columns, axes, grid and labels."""
    for at, column in enumerate(columns):
        left, right = scale.x(at, 0), scale.x(at, column.duration_s)
        for top, bottom in (CPU_PANEL, LATENCY_PANEL):
            pen.rectangle((left, top, right, bottom), SHADE if at % 2 else "white", GRID)
        for line, text in enumerate(column.title):
            pen.text(((left + right) / 2, CPU_PANEL[0] - 38 + 18 * line), text, INK, font, anchor="ma")
    _axis(pen, font, scale.cpu_y, [(cpus, str(cpus)) for cpus in _cpu_ticks()], "CPUs", CPU_PANEL[0])
    low, high = scale.decades
    ticks = [(1000.0 * 10.0**power, f"{10.0**power:,g}") for power in range(low, high + 1)]
    _axis(pen, font, scale.latency_y, ticks, "latency, ms", LATENCY_PANEL[0])
    for seconds in range(0, int(sum(column.duration_s for column in columns)) + 1, 5):
        x = LEFT + scale.per_s * seconds
        pen.line((x, LATENCY_PANEL[1], x, LATENCY_PANEL[1] + 5), INK)
        pen.text((x, LATENCY_PANEL[1] + 8), str(seconds), INK, font, anchor="ma")
    pen.text(((LEFT + RIGHT) / 2, LATENCY_PANEL[1] + 28), "measured time, s", INK, font, anchor="ma")


def _axis(
    pen: ImageDraw, font: Font, y: Callable[[float], float], ticks: list[tuple[float, str]], name: str, top: int
) -> None:
    for value, text in ticks:
        pen.line((LEFT, y(value), RIGHT, y(value)), GRID)
        pen.text((LEFT - 8, y(value)), text, INK, font, anchor="rm")
    pen.text((8, top - 30), name, INK, font)


def _cpu_ticks() -> list[float]:
    step = next(step for step in (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256) if cpu_count() / step <= 8)
    return [step * at for at in range(int(cpu_count() / step) + 1)]


def _cpus(pen: ImageDraw, font: Font, columns: Sequence[Column], scale: _Scale) -> None:
    for at, column in enumerate(columns):
        allowed = [(s.at_s, s.allowance_cpus) for s in column.samples if s.allowance_cpus is not None]
        for colour, width, points in (
            (GREEN, 3, allowed),
            (ORANGE, 2, [(s.at_s, s.batch_cpus) for s in column.samples]),
            (BLUE, 2, [(s.at_s, s.online_cpus) for s in column.samples]),
        ):
            pen.line([(scale.x(at, at_s), scale.cpu_y(cpus)) for at_s, cpus in points], colour, width)
    names = ((BLUE, "online usage"), (ORANGE, "batch usage"), (GREEN, "batch allowance (no line: no limit)"))
    _legend(pen, font, 58, names)


def _latency(pen: ImageDraw, font: Font, columns: Sequence[Column], scale: _Scale) -> None:
    for at, column in enumerate(columns):
        for colour, points in (
            (PALE, [(slot.at_s, slot.max_us) for slot in column.slots]),
            (RED, [(slot.at_s, slot.p99_us) for slot in column.slots]),
        ):
            inside = [(min(at_s + 0.05, column.duration_s), value_us) for at_s, value_us in points]
            pen.line([(scale.x(at, at_s), scale.latency_y(value_us)) for at_s, value_us in inside], colour, 2)
    _legend(pen, font, 500, ((RED, "online p99 of each 0.1 s"), (PALE, "slowest request")))


def _legend(pen: ImageDraw, font: Font, y: float, names: Sequence[tuple[str, str]]) -> None:
    x = float(LEFT + 90)
    for colour, text in names:
        pen.line((x, y + 8, x + 26, y + 8), colour, 4)
        pen.text((x + 34, y), text, INK, font)
        x += 34 + pen.textlength(text, font) + 30
