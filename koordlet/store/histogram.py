"""`Histogram`: usage over days in buckets that grow by 5 % and whose weights decay (spec/collect 6.2). Pure arithmetic.

Values are cores or bytes, times wall-clock seconds, as in the checkpoint files shared with the reference. Old samples
are never touched: a new one weighs 2^((t - reference) / half-life), so it weighs more the later it comes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

RATIO: Final = 1.05
EPSILON: Final = 0.0001
"""A bucket that weighs less is empty when the lowest and the highest one are looked for."""
MAX_HALF_LIVES: Final = 100
"""Beyond this distance from the reference it is moved, before weights leave the range of floats."""
_YEAR_1_NS: Final = 62_135_596_800 * 10**9
"""From 1 January of the year 1, where Go's clock begins, to 1970."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Bucket 0 holds [0, first); bucket b begins at first * (1.05^b - 1) / 0.05; the last one holds the rest."""

    first: float
    count: int

    def index(self, value: float) -> int:
        if value < self.first:
            return 0
        return min(int(math.log(value * (RATIO - 1) / self.first + 1) / math.log(RATIO)), self.count - 1)

    def start(self, index: int) -> float:
        return self.first * (math.pow(RATIO, index) - 1) / (RATIO - 1)


def scale(first: float, highest: float) -> Scale:
    """Buckets from `first` on until `highest` is reached."""
    return Scale(first, math.ceil(math.log(highest * (RATIO - 1) / first + 1) / math.log(RATIO)) + 1)


CPU: Final = scale(0.025, 1024.0)
"""Cores."""
MEMORY: Final = scale(5 * 2**20, 2.0**41)
"""Bytes."""


class Histogram:
    """weights: bucket -> weight, only those ever hit. total: their sum. reference_s: None before the first sample."""

    __slots__ = ("half_life_s", "reference_s", "scale", "total", "weights")

    def __init__(self, buckets: Scale, half_life_s: float) -> None:
        self.scale = buckets
        self.half_life_s = half_life_s
        self.weights: dict[int, float] = {}
        self.total = 0.0
        self.reference_s: float | None = None

    def add(self, value: float, at_s: float) -> None:
        """One sample of weight 1 at its moment."""
        weight = math.exp2((at_s - self._refer(at_s)) / self.half_life_s)
        index = self.scale.index(value)
        self.weights[index] = self.weights.get(index, 0.0) + weight
        self.total += weight

    def percentile(self, share: float) -> float:
        """Upper bound of the bucket in which `share` (0..1) of the weight is reached, 0 when empty.

        So usage never predicts less than the first bucket. Of the last bucket its start.
        """
        buckets = sorted(self.weights.items())
        solid = [index for index, weight in buckets if weight >= EPSILON]
        if not solid:
            return 0.0
        low, found, reached, wanted = solid[0], solid[-1], 0.0, share * self.total
        for index, weight in buckets:
            if index < low:
                continue
            if index >= found:
                break
            reached += weight
            if reached >= wanted:
                found = index
        return self.scale.start(min(found + 1, self.scale.count - 1))

    def restore(self, weights: dict[int, float], total: float, reference_s: float | None) -> None:
        """Takes what a checkpoint says; an empty one leaves an empty histogram."""
        self.weights = dict(weights) if reference_s is not None else {}
        self.total = total if self.weights else 0.0
        self.reference_s = reference_s if self.weights else None

    def _refer(self, at_s: float) -> float:
        """The reference time for a sample at `at_s`, moved when it is too far away."""
        old = self.reference_s
        reach_s = MAX_HALF_LIVES * self.half_life_s
        if old is not None and abs(at_s - old) <= reach_s:
            return old
        new = _round(at_s, self.half_life_s)
        self.reference_s = new
        if old is not None and at_s > old:
            factor = math.exp2(round((old - new) / self.half_life_s))
            self.weights = {index: weight * factor for index, weight in self.weights.items()}
            self.total *= factor
        else:  # first sample; or the clock was years ahead before, and nothing of that can be weighed
            self.weights, self.total = {}, 0.0
        return new


def _round(at_s: float, half_life_s: float) -> float:
    """The multiple of the half-life, counted from the year 1, nearest to `at_s`; half rounds up."""
    step = round(half_life_s * 1e9)
    at = round(at_s * 1e9) + _YEAR_1_NS
    rest = at % step
    return (at - rest + (step if 2 * rest >= step else 0) - _YEAR_1_NS) / 1e9
