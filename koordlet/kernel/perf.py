"""Hardware counters of one cgroup, read per CPU as groups: scaling and summing (man 2 perf_event_open).

The kernel time-slices groups when counters are short: a raw count stands for `running` of `enabled` nanoseconds and
is scaled up by their ratio. A group that never ran on a CPU was not counted there, which is not zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupReading:
    """One CPU's group {cycles (leader), instructions} as the kernel returned it."""

    cpu: int
    cycles: int
    instructions: int
    enabled_ns: int
    running_ns: int


@dataclass(frozen=True, slots=True)
class CycleCounts:
    """Scaled sums over the CPUs that counted. cpi: None without an instruction."""

    cycles: int
    instructions: int
    cpus: int

    @property
    def cpi(self) -> float | None:
        return self.cycles / self.instructions if self.instructions > 0 else None


def sum_scaled(readings: Iterable[GroupReading]) -> CycleCounts | None:
    """None when no CPU counted."""
    cycles = instructions = cpus = 0
    for reading in readings:
        if reading.running_ns <= 0:
            continue
        cycles += reading.cycles * reading.enabled_ns // reading.running_ns
        instructions += reading.instructions * reading.enabled_ns // reading.running_ns
        cpus += 1
    return CycleCounts(cycles, instructions, cpus) if cpus else None
