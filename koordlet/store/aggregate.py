"""`Aggregate`: what a window of samples says. Units are those of the samples (milli-CPU, bytes, ratio)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Over all samples of a window, at least one (spec/collect 3.2).

    Percentile P is the ascending sample at the 0-based index max(count * P // 100 - 1, 0). # compat: biased low
    first_s/latest_s: monotonic times of the oldest and the newest sample inside.
    """

    count: int
    avg: float
    min: float
    max: float
    latest: float
    p50: float
    p90: float
    p95: float
    p99: float
    first_s: float
    latest_s: float

    @property
    def duration_s(self) -> float:
        """Time between the first and the last sample; 0 for one sample."""
        return self.latest_s - self.first_s
