"""CPU counters of the demo's two sides and of the machine, and the use between two readings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from koordlet.demo.layout import Layout
from koordlet.load.cgroups import cpu_usage_ns

PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one moment of CLOCK_MONOTONIC, in nanoseconds of CPU, and the batch quota (None: none).

    stolen_ns: time the hypervisor gave to others; it was neither idle nor used.
    """

    at_ns: int
    online_ns: int
    batch_ns: int
    node_ns: int
    stolen_ns: int
    quota_us: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """at_s from the start. CPUs used since the sample before. allowance_cpus: the batch quota, None: none."""

    at_s: float
    online_cpus: float
    batch_cpus: float
    allowance_cpus: float | None


def read(layout: Layout) -> Reading:
    """The counters now."""
    return Reading(
        time.monotonic_ns(),
        layout.online.usage_ns(),
        layout.be_root.usage_ns(),
        cpu_usage_ns(layout.online.where),
        _stolen_ns(),
        layout.be_root.quota_us(),
    )


def cpus_between(before: Reading, after: Reading) -> tuple[float, float, float]:
    """Mean CPUs of online, batch and everything else on the machine, stolen time included."""
    span_ns = max(after.at_ns - before.at_ns, 1)
    online = (after.online_ns - before.online_ns) / span_ns
    batch = (after.batch_ns - before.batch_ns) / span_ns
    everything = (after.node_ns - before.node_ns + after.stolen_ns - before.stolen_ns) / span_ns
    return online, batch, max(everything - online - batch, 0.0)


def to_samples(readings: Sequence[Reading], start_ns: int) -> tuple[Sample, ...]:
    """The use between neighbours, each at the time of the later one."""
    made = []
    for before, after in pairwise(readings):
        online, batch, _ = cpus_between(before, after)
        allowance = None if after.quota_us is None else after.quota_us / PERIOD_US
        made.append(Sample((after.at_ns - start_ns) / 1e9, online, batch, allowance))
    return tuple(made)


def _stolen_ns() -> int:
    """Field 8 of the cpu line of /proc/stat, in 1/100 s."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) * 10_000_000 if len(fields) > 8 else 0
