"""Reaction to pressure of the online side between and at ticks: cut, hold, and know when it is not BE's doing. Pure.

CPU pressure also rises when an online group is throttled by its own limit or has more threads than CPUs.
Cutting BE does not help then: cuts without relief, several or down to the floor, end in ignoring the signal
for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordlet.model.view import Reading

LIMIT_PERMYRIAD: Final = 2_000
"""Share of time in which something of the LS groups waited for a CPU."""

CUT_EVERY_S: Final = 0.1
HOLD_S: Final = 10.0
MAX_CUTS: Final = 5
IGNORE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """read_at_s: last reading judged. cut_at_s: last cut. cuts: in a row without relief."""

    read_at_s: float | None = None
    cut_at_s: float | None = None
    cuts: int = 0
    ignored_until_s: float | None = None


def react(
    before: Pressure, reading: Reading | None, above_floor: bool, now_s: float, interval_s: float
) -> tuple[Pressure, bool]:
    """The next state, and whether the allowance is to be cut by a tenth of the node now."""
    if reading is None or reading.at_s == before.read_at_s or reading.age_s(now_s) > interval_s:
        return before, False
    if reading.value <= LIMIT_PERMYRIAD:
        return Pressure(reading.at_s, before.cut_at_s, 0, before.ignored_until_s), False
    too_soon = before.cut_at_s is not None and now_s - before.cut_at_s < CUT_EVERY_S
    if too_soon or ignored(before, now_s):
        return before, False
    if before.cuts >= MAX_CUTS or (before.cuts and not above_floor):
        return Pressure(reading.at_s, None, 0, now_s + IGNORE_S), False
    if not above_floor:
        return before, False
    return Pressure(reading.at_s, now_s, before.cuts + 1, None), True


def ignored(pressure: Pressure, now_s: float) -> bool:
    """Whether cuts were found not to help lately."""
    return pressure.ignored_until_s is not None and now_s < pressure.ignored_until_s


def holds(pressure: Pressure, now_s: float) -> bool:
    """Whether growth waits because of a recent cut."""
    return pressure.cut_at_s is not None and now_s - pressure.cut_at_s < HOLD_S
