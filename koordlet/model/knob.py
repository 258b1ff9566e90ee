"""What can be written (`Knob`) and what a strategy asks for (`Decision`). Pure.

The files, units on disk, legal ranges and probes of each knob stand in one table, kernel/knobs.py.
Values here are in the knob's model unit: shares, microseconds, bytes, 0/1, CpuSet, "key=value ..." text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from koordlet.model.cpuset import CpuSet
from koordlet.model.why import Why


class Knob(StrEnum):
    """One name per thing that can be written; the value is the v1 file's usual name.

    Knobs of a block device are written to a line of a file that all devices share: their target is
    `<cgroup>/<major>:<minor>`. Those of the machine as a whole have the target `system`, or `system/<feature>`.
    """

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
    MEMORY_WMARK_RATIO = "memory.wmark_ratio"  # percent of the limit, 0 off
    MEMORY_WMARK_SCALE = "memory.wmark_scale_factor"  # permill
    MEMORY_WMARK_MIN_ADJ = "memory.wmark_min_adj"  # percent, -25..50
    MEMORY_PRIORITY = "memory.priority"  # 0..12
    MEMORY_USE_PRIORITY_OOM = "memory.use_priority_oom"  # 0/1
    PAGECACHE_ENABLE = "memory.pagecache_limit.enable"  # 0/1
    PAGECACHE_SIZE = "memory.pagecache_limit.size"  # bytes
    PAGECACHE_SYNC = "memory.pagecache_limit.sync"  # 0/1
    FREEZE = "cgroup.freeze"  # 0/1 (v1: freezer.state)
    # Of one block device (v2: fields of io.max, io.weight)
    IO_READ_BPS = "blkio.throttle.read_bps_device"  # bytes/s, -1 unlimited
    IO_WRITE_BPS = "blkio.throttle.write_bps_device"  # bytes/s, -1 unlimited
    IO_READ_IOPS = "blkio.throttle.read_iops_device"  # requests/s, -1 unlimited
    IO_WRITE_IOPS = "blkio.throttle.write_iops_device"  # requests/s, -1 unlimited
    IO_WEIGHT = "blkio.cost.weight"  # percent, 1..100
    IO_BFQ_WEIGHT = "blkio.bfq.weight_device"  # percent, 1..100, where bfq schedules the device
    IO_COST_QOS = "blkio.cost.qos"  # text, of the root cgroup
    IO_COST_MODEL = "blkio.cost.model"  # text, of the root cgroup
    # Of the machine
    VM_MIN_FREE_KBYTES = "vm.min_free_kbytes"  # KiB
    VM_WATERMARK_SCALE = "vm.watermark_scale_factor"  # 1/10000 of memory
    MEMCG_REAP = "memcg_reaper.reap_background"  # 0/1
    SCHED_GROUP_IDENTITY = "kernel.sched_group_identity_enabled"  # 0/1
    SCHED_IDLE_SAVER = "kernel.sched_idle_saver_wmark"  # ns
    PAGECACHE_LIMIT = "pagecache_limit.enabled"  # 0/1
    KIDLED_SCAN_PERIOD = "kidled.scan_period_in_seconds"  # s, 0 off
    KIDLED_HIERARCHY = "kidled.use_hierarchy"  # 0/1
    NUMA_BALANCING = "kernel.numa_balancing"  # 0 off, 1 on, 2 memory tiering
    SCHED_FEATURE = "sched_features"  # 0/1, of one feature


class Restore(Enum):
    """Asks for the recorded original bytes instead of a value."""

    RESTORE = "restore"


RESTORE: Final = Restore.RESTORE
KnobValue = int | CpuSet | str
SYSTEM: Final = "system"
"""Target of the machine's own knobs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One wanted value, with its evidence.

    target: cgroup path relative to the hierarchy root (another directory for a knob that is no cgroup file), no leading
    or trailing slash, never empty (an empty target would be the root cgroup: refused, case empty-cgroup-parent).
    For knobs of a device or of the machine see `Knob`.
    owner: the strategy's name, for precedence, audit and explain.
    hot: the executor reads the file back every tick (the few parents whose drift hurts at once)
    instead of only at the forced refresh.
    at_least: of a number: a higher one, or none, stays as it is and counts as whoever wrote it wants it.
    """

    target: str
    knob: Knob
    value: KnobValue | Restore
    why: Why
    owner: str
    hot: bool = False
    at_least: bool = False

    @property
    def key(self) -> tuple[str, Knob]:
        return (self.target, self.knob)
