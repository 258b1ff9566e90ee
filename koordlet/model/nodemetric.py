"""`MetricPolicy`: what a NodeMetric's spec asks for (spec/api 1.1.1). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MemoryKind(StrEnum):
    """Which memory counts as used, `nodeMemoryCollectPolicy`."""

    WITHOUT_CACHE = "usageWithoutPageCache"
    WITH_HOT_CACHE = "usageWithHotPageCache"
    WITH_CACHE = "usageWithPageCache"


@dataclass(frozen=True, slots=True)
class MetricPolicy:
    """window_s: over which usage is averaged. durations: seconds and text of each aggregated window, in order."""

    window_s: float = 300.0
    interval_s: float = 60.0
    durations: tuple[tuple[float, str], ...] = ((300.0, "5m0s"), (600.0, "10m0s"), (1800.0, "30m0s"))
    memory: MemoryKind = MemoryKind.WITHOUT_CACHE
