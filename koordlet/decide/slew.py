"""When an allowance may grow: a tenth of the node per interval, and not back and forth. Pure.

Shrinking is never delayed. Growth needs a new sample, one interval after the sample that last permitted
growth, so calls between two samples (surge, pressure) cannot grow. A small gain after a shrink waits:
without that, noise of the online side would be copied into the knob each second (F-01).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROWTH_DIVISOR: Final = 10
"""Largest growth per interval: capacity / 10."""

BAND_DIVISOR: Final = 20
"""A gain below capacity / 20 after a shrink waits for QUIET_S."""

QUIET_S: Final = 120.0
_EARLY: Final = 0.1
"""A sample may come this share of an interval early: ticks jitter, their rate does not."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """permitted_at_s: sample that last permitted growth. shrunk_at_s: last shrink. falling: it is the last move."""

    permitted_at_s: float | None = None
    shrunk_at_s: float = 0.0
    falling: bool = False


def permits(ramp: Ramp, sample_at_s: float, interval_s: float) -> bool:
    """Whether this sample opens a growth step."""
    return ramp.permitted_at_s is None or sample_at_s - ramp.permitted_at_s >= (1 - _EARLY) * interval_s


def waits(ramp: Ramp, gain: int, band: int, now_s: float) -> bool:
    """Whether a gain (same unit as band) is too small to turn round for."""
    return ramp.falling and gain < band and now_s - ramp.shrunk_at_s < QUIET_S


def moved(ramp: Ramp, before: int | None, after: int, now_s: float) -> Ramp:
    """The ramp after the allowance went from `before` (None: unlimited or unknown) to `after`."""
    if before is None or after == before:
        return ramp
    if after < before:
        return Ramp(ramp.permitted_at_s, now_s, True)
    return Ramp(ramp.permitted_at_s, ramp.shrunk_at_s, False)
