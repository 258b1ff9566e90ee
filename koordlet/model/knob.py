"""What can be written (`Knob`) and what a strategy asks for (`Decision`). Pure.

The files, units on disk, legal ranges and probes of each knob stand in one table, kernel/knobs.py.
Values here are in the knob's model unit: shares, microseconds, bytes, 0/1, CpuSet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from koordlet.model.cpuset import CpuSet
from koordlet.model.why import Why


class Knob(StrEnum):
    """One name per thing that can be written to a cgroup; the value is the v1 file's usual name."""

    CPU_SHARES = "cpu.shares"  # shares 2..262144 (v2: cpu.weight, linear rule)
    CPU_QUOTA = "cpu.cfs_quota_us"  # us per period, -1 unlimited (v2: first field of cpu.max)
    CPU_BURST = "cpu.cfs_burst_us"  # us
    CPU_IDLE = "cpu.idle"  # 0/1
    CPU_BVT = "cpu.bvt_warp_ns"  # -1..2
    CPUSET = "cpuset.cpus"  # CpuSet
    CPUSET_MEMS = "cpuset.mems"  # CpuSet (of NUMA node ids)
    CPUSET_MIGRATE = "cpuset.memory_migrate"  # 0/1 (v2 always moves memory along)
    CPUSET_PARTITION = "cpuset.cpus.partition"  # 0 member, 1 root, 2 isolated
    IRQ_AFFINITY = "smp_affinity_list"  # CpuSet; the target is an interrupt's number
    MEMORY_LIMIT = "memory.limit_in_bytes"  # bytes, -1 unlimited (v2: memory.max)
    MEMORY_MIN = "memory.min"  # bytes
    MEMORY_LOW = "memory.low"  # bytes
    MEMORY_HIGH = "memory.high"  # bytes, -1 unlimited
    MEMORY_OOM_GROUP = "memory.oom.group"  # 0/1
    FREEZE = "cgroup.freeze"  # 0/1 (v1: freezer.state)


class Restore(Enum):
    """Asks for the recorded original bytes instead of a value."""

    RESTORE = "restore"


RESTORE: Final = Restore.RESTORE
KnobValue = int | CpuSet


@dataclass(frozen=True, slots=True)
class Decision:
    """One wanted value, with its evidence.

    target: cgroup path relative to the hierarchy root (another directory for a knob that is no cgroup file), no leading
    or trailing slash, never empty (an empty target would be the root cgroup: refused, case empty-cgroup-parent).
    owner: the strategy's name, for precedence, audit and explain.
    hot: the executor reads the file back every tick (the few parents whose drift hurts at once)
    instead of only at the forced refresh.
    """

    target: str
    knob: Knob
    value: KnobValue | Restore
    why: Why
    owner: str
    hot: bool = False

    @property
    def key(self) -> tuple[str, Knob]:
        return (self.target, self.knob)
