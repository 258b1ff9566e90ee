"""How an allowance moves: down at once, up by a tenth of the node per interval, and not back and forth. Pure.

Growth needs a new sample, one interval after the sample that last permitted growth, so calls between two samples
(surge, pressure) cannot grow. A small gain after a shrink waits for two quiet minutes and then goes no higher than
what was safe all that time: without that, noise of the online side would be copied into the knob each second (F-01).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

GROWTH_DIVISOR: Final = 10
"""Largest growth per interval: capacity / 10."""

BAND_DIVISOR: Final = 20
"""A gain below capacity / 20 after a shrink is small."""

QUIET_S: Final = 120.0
_EARLY: Final = 0.1
"""A sample may come this share of an interval early: ticks jitter, their rate does not."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """permitted_at_s: sample that last permitted growth. falling: the last move was a shrink, at quiet_from_s.

    lowest: least that was wanted since then, in the policy's unit.
    """

    permitted_at_s: float | None = None
    falling: bool = False
    quiet_from_s: float = 0.0
    lowest: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """In the policy's unit. step: largest growth. band: below it a gain is small. dead: below it nothing moves."""

    step: int
    band: int
    dead: int = 0


def permits(ramp: Ramp, sample_at_s: float, interval_s: float) -> bool:
    """Whether this sample opens a growth step."""
    return ramp.permitted_at_s is None or sample_at_s - ramp.permitted_at_s >= (1 - _EARLY) * interval_s


def permitted(ramp: Ramp, sample_at_s: float) -> Ramp:
    """The ramp after a sample that did."""
    return Ramp(sample_at_s, ramp.falling, ramp.quiet_from_s, ramp.lowest)


def toward(
    want: int, old: int | None, limits: Limits, ramp: Ramp, may_grow: bool, now_s: float
) -> tuple[int, str, Ramp]:
    """The next value, the name of the rule that set it, and the next ramp. old None is unlimited or unknown."""
    if old is None:
        return want, "first", ramp
    if want == old or abs(want - old) < limits.dead:
        return old, "same" if want == old else "dead_band", _saw(ramp, old)
    if want < old:
        return want, "shrink", Ramp(ramp.permitted_at_s, True, now_s)
    if not may_grow:
        return old, "growth_waits", _saw(ramp, want)
    if not ramp.falling or want - old >= limits.band:
        value = min(want, old + limits.step)
        return value, "grow" if value == want else "grow_limited", Ramp(ramp.permitted_at_s)
    ramp = _saw(ramp, want)
    if now_s - ramp.quiet_from_s < QUIET_S:
        return old, "small_gain_waits", ramp
    safe = want if ramp.lowest is None else min(want, ramp.lowest)
    return min(max(safe, old), old + limits.step), "grow_to_safe", Ramp(ramp.permitted_at_s, True, now_s)


def _saw(ramp: Ramp, want: int) -> Ramp:
    if not ramp.falling or (ramp.lowest is not None and ramp.lowest <= want):
        return ramp
    return replace(ramp, lowest=want)
