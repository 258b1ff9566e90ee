"""Slow twin of native/window.c, the oracle of its tests: lists and fractions, no ring, no restart bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Window:
    width_ns: int
    samples: list[tuple[int, int]] = field(default_factory=list)

    def push(self, at_ns: int, value: int) -> bool:
        if self.samples:
            apart_ns = at_ns - self.samples[-1][0]
            if apart_ns < 0:
                self.samples.clear()
            elif apart_ns == 0 or apart_ns < self.width_ns // 16:
                return False
        self.samples.append((at_ns, value))
        return True

    def growth(self) -> tuple[int, int, bool] | None:
        """(delta, span_ns, full) of the newest sample."""
        if len(self.samples) < 2:
            return None
        slack_ns = self.width_ns // 8
        newest_ns, newest = self.samples[-1]
        inside = [s for s in self.samples[:-1] if newest_ns - s[0] <= self.width_ns + slack_ns]
        base_ns, base = inside[0] if inside else self.samples[-2]
        span_ns = newest_ns - base_ns
        return max(newest - base, 0), span_ns, span_ns >= self.width_ns - slack_ns


@dataclass
class Meter:
    """Counter 0 minus the others. Readings that do not compare with the one before start a new window."""

    width_ns: int
    window: Window = field(init=False)
    last: list[int] | None = None
    total: int = 0

    def __post_init__(self) -> None:
        self.window = Window(self.width_ns)

    def push(self, at_ns: int, counters: list[int]) -> bool:
        if counters[0] < 0:
            return False
        if self.last is not None and _compare(self.last, counters):
            grown = [new - old for old, new in zip(self.last, counters, strict=True)]
            self.total += grown[0] - sum(grown[1:])
        else:
            self.window = Window(self.width_ns)
            self.total = 0
        self.last = counters
        return self.window.push(at_ns, self.total)


def _compare(last: list[int], counters: list[int]) -> bool:
    """Same counters there, none went back."""
    return all((old < 0) == (new < 0) and new >= old for old, new in zip(last, counters, strict=True))


def rate(growth: tuple[int, int, bool], scale: int) -> int:
    delta, span_ns, _ = growth
    return int(Fraction(delta * scale, span_ns))


def above(growth: tuple[int, int, bool], width_ns: int, scale: int, limit: int) -> bool:
    delta, span_ns, full = growth
    return Fraction(delta * scale, span_ns if full else width_ns) > limit
