"""`RingStore`: the samples of the last minutes, in native memory (native/ring.h), and aggregates over windows.

A series is named by (kind, id, metric): ("pod", uid, "cpu"). CPU is in milli-CPU, memory in bytes; times are monotonic
seconds, kept in whole milliseconds. Any thread may ask.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from koordlet._native import ffi, lib
from koordlet.store.aggregate import Aggregate

if TYPE_CHECKING:
    from koordlet._native import CData

WORKLOAD_SAMPLES: Final = 300
"""Five minutes at one sample per second, the reporter's aggregate window."""
NODE_SAMPLES: Final = 1800
"""Half an hour, the longest window that is reported."""
LONG_KINDS: Final = frozenset({"node", "system", "be"})

_ALL: Final = -(2**62)


class RingStore:
    """All series of one agent. `handle` is the native object, for the sampler's pass; it lives as long as the store."""

    def __init__(self) -> None:
        made = lib.kl_rings_new()
        if made == ffi.NULL:
            raise MemoryError("no memory for the sample rings")
        self.handle: CData = ffi.gc(made, lib.kl_rings_free)
        self._series: dict[tuple[str, str], dict[str, int]] = {}
        self._lock = threading.Lock()

    def open(self, kind: str, ident: str, metric: str) -> int:
        """Number of the series, made when it is not there yet. Raises MemoryError."""
        with self._lock:
            metrics = self._series.setdefault((kind, ident), {})
            if metric not in metrics:
                capacity = NODE_SAMPLES if kind in LONG_KINDS else WORKLOAD_SAMPLES
                number = lib.kl_rings_open(self.handle, capacity)
                if number < 0:
                    raise MemoryError(f"no memory for samples of {kind} {ident}")
                metrics[metric] = number
            return metrics[metric]

    def close(self, kind: str, ident: str) -> None:
        """Forgets all metrics of one workload."""
        with self._lock:
            for number in self._series.pop((kind, ident), {}).values():
                lib.kl_rings_close(self.handle, number)

    def push(self, series: int, at_s: float, value: float) -> None:
        """Appends one sample; a time not after the series' last one, or a value that is not finite, is left out."""
        lib.kl_rings_push(self.handle, series, _ms(at_s), value)

    def window(self, kind: str, ident: str, metric: str, seconds: float, now_s: float) -> Aggregate | None:
        """Aggregate of [now - seconds, now], both included; None without samples in it."""
        return self.between(kind, ident, metric, _ms(now_s) - _ms(seconds), _ms(now_s))

    def latest(self, kind: str, ident: str, metric: str) -> Aggregate | None:
        """Aggregate of everything kept."""
        return self.between(kind, ident, metric, _ALL, -_ALL)

    def between(self, kind: str, ident: str, metric: str, from_ms: int, to_ms: int) -> Aggregate | None:
        """Aggregate of [from_ms, to_ms]; None without samples in it."""
        out = ffi.new("struct kl_aggregate *")
        with self._lock:
            number = self._series.get((kind, ident), {}).get(metric, -1)
            if lib.kl_rings_aggregate(self.handle, number, from_ms, to_ms, out) <= 0:
                return None
        return Aggregate(
            count=out.count,
            avg=out.avg,
            min=out.min,
            max=out.max,
            latest=out.latest,
            p50=out.p50,
            p90=out.p90,
            p95=out.p95,
            p99=out.p99,
            first_s=out.first_ms / 1000,
            latest_s=out.latest_ms / 1000,
        )

    def __len__(self) -> int:
        """Number of series."""
        with self._lock:
            return sum(len(metrics) for metrics in self._series.values())


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
