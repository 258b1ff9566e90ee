"""Every kernel file that may be written, as one table: names on v1 and v2, units, ranges, rules, conversions.

Reading a knob for drift, encoding a wanted value, comparing the two (kernel/knobtext.py) and probing for support all
use the same row. Files that hold one line or word per item are taken apart in kernel/knobitems.py. Sources:
Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, spec/collect 1.4-1.5, spec/qos 14 and 18.1.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.knob import SYSTEM, Knob
from koordlet.model.units import (
    QUOTA_MIN_US,
    SHARES_MAX,
    SHARES_MIN,
)

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
INT64_MAX: Final = 2**63 - 1
QUOTA_MAX_US: Final = 2**44 - 1
"""Largest quota the kernel takes (kernel: MAX_BW)."""
V1_UNLIMITED_BYTES: Final = 2**63 - 65536
"""v1 prints "no limit" as 2^63-1 rounded down to a page; 64 KiB is the largest page, and 2^64-1 of old kernels
is above it too."""


class Unit(Enum):
    """How a file's text stands for the value in the model's unit."""

    SHARES = auto()  # v2: cpu.weight
    QUOTA = auto()  # v2: first field of cpu.max
    INTEGER = auto()
    BYTES = auto()  # kept in whole pages; 2^63-1 is "max"
    BYTES_LIMIT = auto()  # as BYTES, but -1 is "max" on v2 and a huge number on v1
    CPUS = auto()
    FREEZER = auto()  # v1: FROZEN / THAWED
    PARTITION = auto()  # member / root / isolated, with "invalid (why)" behind where it is not in force
    RATE = auto()  # -1 is "max" on v2 and 0 on v1
    IO_WEIGHT = auto()  # percent; v2: 100..10000
    BFQ_WEIGHT = auto()  # percent; 10..1000
    FIELDS = auto()  # key=value ...


class Base(Enum):
    """Where a knob's file is looked for."""

    CGROUP = auto()
    PROC_SYS = auto()
    SYS = auto()


class Item(Enum):
    """What one knob means in a file that holds many; the last part of its target names it."""

    NONE = auto()
    DEVICE = auto()  # the line that begins with major:minor
    FEATURE = auto()  # NAME or NO_NAME among words


class Hierarchy(Enum):
    """What must hold between a cgroup and its children at every moment, for the order of writes."""

    NONE = auto()
    CHILD_WITHIN_PARENT = auto()
    PARENT_AT_LEAST_CHILDREN = auto()


@dataclass(frozen=True, slots=True)
class KnobRow:
    """subsystem: v1 directory. v1_file/v2_file: "" where a version has none.

    low/high: legal model values, besides UNLIMITED where the unit has one.
    v2_effective: file with the value in force. needs: what a kernel must have, for the operator.
    restore: what to mind when the recorded original is written back.
    base, paths: of a file that is in no cgroup, candidates below its base; the first that exists counts.
    item: see there. v2_field: the key of a device's line. unset: what a device without a line counts as, per version.
    root: of the root cgroup only, otherwise never.
    """

    subsystem: str
    v1_file: str
    v2_file: str
    unit: Unit
    low: int = 0
    high: int = INT64_MAX
    hierarchy: Hierarchy = Hierarchy.NONE
    v2_effective: str = ""
    needs: str = ""
    restore: str = "recorded bytes"
    base: Base = Base.CGROUP
    paths: tuple[str, ...] = ()
    item: Item = Item.NONE
    v2_field: str = ""
    unset: tuple[str, str] = ("", "")
    root: bool = False


def _anolis(name: str, low: int, high: int, unit: Unit = Unit.INTEGER, *, v1: bool = True) -> KnobRow:
    return KnobRow("memory", name if v1 else "", name, unit, low, high, needs="an Anolis kernel")


def _rate(v1_file: str, field: str) -> KnobRow:
    return KnobRow(
        "blkio", v1_file, "io.max", Unit.RATE, 1, item=Item.DEVICE, v2_field=field, unset=("0", "max"),
        needs="CONFIG_BLK_DEV_THROTTLING and the block I/O controller enabled for this cgroup",
    )  # fmt: skip


def _of_root(v1_file: str, v2_file: str, unset: str) -> KnobRow:
    return KnobRow(
        "blkio", v1_file, v2_file, Unit.FIELDS, item=Item.DEVICE, unset=(unset, unset), root=True,
        needs="CONFIG_BLK_CGROUP_IOCOST (on v1 an Anolis kernel)",
    )  # fmt: skip


def _system(base: Base, *paths: str, low: int = 0, high: int = 1, needs: str = "", item: Item = Item.NONE) -> KnobRow:
    return KnobRow("", "", "", Unit.INTEGER, low, high, base=base, paths=paths, needs=needs, item=item)


KNOBS: Final[dict[Knob, KnobRow]] = {
    Knob.CPU_SHARES: KnobRow(
        "cpu", "cpu.shares", "cpu.weight", Unit.SHARES, SHARES_MIN, SHARES_MAX,
        restore="recorded bytes, after cpu.idle: refused while idle, reset to the default when idle ends",
    ),
    Knob.CPU_QUOTA: KnobRow(
        "cpu", "cpu.cfs_quota_us", "cpu.max", Unit.QUOTA, QUOTA_MIN_US, QUOTA_MAX_US, Hierarchy.CHILD_WITHIN_PARENT,
        restore="recorded bytes; growing before cpu.cfs_burst_us, shrinking after it",
    ),
    Knob.CPU_BURST: KnobRow(
        "cpu", "cpu.cfs_burst_us", "cpu.max.burst", Unit.INTEGER, 0, QUOTA_MAX_US, needs="kernel >= 5.14",
        restore="recorded bytes; never above the quota in force",
    ),
    Knob.CPU_IDLE: KnobRow(
        "cpu", "cpu.idle", "cpu.idle", Unit.INTEGER, 0, 1, needs="kernel >= 5.15",
        restore="recorded bytes, then the recorded shares: clearing it resets them",
    ),
    Knob.CPU_BVT: KnobRow("cpu", "cpu.bvt_warp_ns", "cpu.bvt_warp_ns", Unit.INTEGER, -1, 2, needs="an Anolis kernel"),
    Knob.CPUSET: KnobRow(
        "cpuset", "cpuset.cpus", "cpuset.cpus", Unit.CPUS, hierarchy=Hierarchy.CHILD_WITHIN_PARENT,
        v2_effective="cpuset.cpus.effective", needs="the cpuset controller enabled for this cgroup",
        restore="recorded bytes; an empty v2 file is written back as an empty line",
    ),
    Knob.CPUSET_MEMS: KnobRow(
        "cpuset", "cpuset.mems", "cpuset.mems", Unit.CPUS, hierarchy=Hierarchy.CHILD_WITHIN_PARENT,
        v2_effective="cpuset.mems.effective", needs="the cpuset controller enabled for this cgroup",
        restore="recorded bytes; an empty v2 file is written back as an empty line",
    ),
    Knob.CPUSET_MIGRATE: KnobRow(
        "cpuset", "cpuset.memory_migrate", "", Unit.INTEGER, 0, 1, needs="cgroup v1; v2 moves memory along by itself",
    ),
    Knob.CPUSET_PARTITION: KnobRow(
        "cpuset", "", "cpuset.cpus.partition", Unit.PARTITION, 0, 2, needs="cgroup v2 with the cpuset controller",
    ),
    Knob.IRQ_AFFINITY: KnobRow("irq", "smp_affinity_list", "smp_affinity_list", Unit.CPUS),
    Knob.MEMORY_LIMIT: KnobRow(
        "memory", "memory.limit_in_bytes", "memory.max", Unit.BYTES_LIMIT, PAGE_BYTES, V1_UNLIMITED_BYTES - 1,
        hierarchy=Hierarchy.CHILD_WITHIN_PARENT,
    ),
    Knob.MEMORY_MIN: KnobRow(
        "memory", "memory.min", "memory.min", Unit.BYTES, hierarchy=Hierarchy.PARENT_AT_LEAST_CHILDREN,
        needs="cgroup v2 (on v1 an Anolis kernel)",
    ),
    Knob.MEMORY_LOW: KnobRow(
        "memory", "memory.low", "memory.low", Unit.BYTES, hierarchy=Hierarchy.PARENT_AT_LEAST_CHILDREN,
        needs="cgroup v2 (on v1 an Anolis kernel)",
    ),
    Knob.MEMORY_HIGH: KnobRow(
        "memory", "memory.high", "memory.high", Unit.BYTES_LIMIT, 0, V1_UNLIMITED_BYTES - 1,
        Hierarchy.CHILD_WITHIN_PARENT, needs="cgroup v2 (on v1 an Anolis kernel)",
    ),
    Knob.MEMORY_OOM_GROUP: KnobRow(
        "memory", "memory.oom.group", "memory.oom.group", Unit.INTEGER, 0, 1,
        needs="cgroup v2 and kernel >= 4.19 (on v1 an Anolis kernel)",
    ),
    Knob.FREEZE: KnobRow(
        "freezer", "freezer.state", "cgroup.freeze", Unit.FREEZER, 0, 1,
        needs="cgroup v2 and kernel >= 5.2, or the v1 freezer controller", restore="thaw, whatever was recorded",
    ),
    Knob.MEMORY_WMARK_RATIO: _anolis("memory.wmark_ratio", 0, 100),
    Knob.MEMORY_WMARK_SCALE: _anolis("memory.wmark_scale_factor", 1, 1000),
    Knob.MEMORY_WMARK_MIN_ADJ: _anolis("memory.wmark_min_adj", -25, 50),
    Knob.MEMORY_PRIORITY: _anolis("memory.priority", 0, 12),
    Knob.MEMORY_USE_PRIORITY_OOM: _anolis("memory.use_priority_oom", 0, 1),
    Knob.PAGECACHE_ENABLE: _anolis("memory.pagecache_limit.enable", 0, 1, v1=False),
    Knob.PAGECACHE_SIZE: _anolis("memory.pagecache_limit.size", 0, INT64_MAX, Unit.BYTES, v1=False),
    Knob.PAGECACHE_SYNC: _anolis("memory.pagecache_limit.sync", 0, 1, v1=False),
    Knob.IO_READ_BPS: _rate("blkio.throttle.read_bps_device", "rbps"),
    Knob.IO_WRITE_BPS: _rate("blkio.throttle.write_bps_device", "wbps"),
    Knob.IO_READ_IOPS: _rate("blkio.throttle.read_iops_device", "riops"),
    Knob.IO_WRITE_IOPS: _rate("blkio.throttle.write_iops_device", "wiops"),
    Knob.IO_WEIGHT: KnobRow(
        "blkio", "blkio.cost.weight", "io.weight", Unit.IO_WEIGHT, 1, 100, item=Item.DEVICE, unset=("100", "default"),
        needs="CONFIG_BLK_CGROUP_IOCOST (on v1 an Anolis kernel)",
    ),
    Knob.IO_BFQ_WEIGHT: KnobRow(
        "blkio", "blkio.bfq.weight_device", "io.bfq.weight", Unit.BFQ_WEIGHT, 1, 100, item=Item.DEVICE,
        unset=("default", "default"), needs="the bfq I/O scheduler",
    ),
    Knob.IO_COST_QOS: _of_root("blkio.cost.qos", "io.cost.qos", "enable=0"),
    Knob.IO_COST_MODEL: _of_root("blkio.cost.model", "io.cost.model", "ctrl=auto"),
    Knob.VM_MIN_FREE_KBYTES: _system(Base.PROC_SYS, "vm/min_free_kbytes", low=10_240, high=10_485_760),
    Knob.VM_WATERMARK_SCALE: _system(Base.PROC_SYS, "vm/watermark_scale_factor", low=10, high=400),
    Knob.MEMCG_REAP: _system(Base.SYS, "kernel/mm/memcg_reaper/reap_background", needs="an Anolis kernel"),
    Knob.SCHED_GROUP_IDENTITY: _system(
        Base.PROC_SYS, "kernel/sched_group_identity_enabled", needs="an Anolis kernel"
    ),
    Knob.SCHED_IDLE_SAVER: _system(
        Base.PROC_SYS, "kernel/sched_idle_saver_wmark", high=INT64_MAX, needs="an Anolis kernel"
    ),
    Knob.PAGECACHE_LIMIT: _system(Base.SYS, "kernel/mm/pagecache_limit/enabled", needs="an Anolis kernel"),
    Knob.KIDLED_SCAN_PERIOD: _system(
        Base.SYS, "kernel/mm/kidled/scan_period_in_seconds", high=65_535, needs="an Anolis kernel"
    ),
    Knob.KIDLED_HIERARCHY: _system(Base.SYS, "kernel/mm/kidled/use_hierarchy", needs="an Anolis kernel"),
    Knob.NUMA_BALANCING: _system(Base.PROC_SYS, "kernel/numa_balancing", high=3, needs="CONFIG_NUMA_BALANCING"),
    Knob.SCHED_FEATURE: _system(
        # F-22: moved in 5.13
        Base.SYS, "kernel/debug/sched/features", "kernel/debug/sched_features", item=Item.FEATURE,
        needs="debugfs mounted and CONFIG_SCHED_DEBUG",
    ),
}  # fmt: skip
"""All of `Knob`. Only knobs in this table can be written."""


def ensure_target(target: str, knob: Knob | None = None) -> str:
    """The cgroup path in its plain form, without outer slashes.

    Raises ValueError where it would name the hierarchy's root or something outside: a write there hits the
    whole machine. knob: with an item, the last part is held against it, too, and what is above is the cgroup.
    """
    parts = [part for part in target.split("/") if part]
    row = KNOBS[knob] if knob is not None else None
    depth = 1
    if row is not None and row.item is not Item.NONE:
        if not parts or not _ITEMS[row.item].fullmatch(parts[-1]):
            raise ValueError(f"{knob}: {target!r} does not end in {_ITEM_WORDS[row.item]}; not written")
        depth = 1 if row.root else 2
    if row is not None and (row.base is not Base.CGROUP or row.root):
        above = parts[:-1] if row.item is not Item.NONE else parts
        if above != ([] if row.root else [SYSTEM]):
            raise ValueError(f"{knob}: {target!r} is no target of it; not written")
        return "/".join(parts)
    if len(parts) < depth or "." in parts or ".." in parts or "\0" in target:
        raise ValueError(f"cgroup {target!r} is the root cgroup or no plain path below it; not written")
    return "/".join(parts)


def knob_path(host: Host, target: str, knob: Knob, *, effective: bool = False) -> Path | None:
    """The knob's file in this version's naming, which may be absent on disk; None: the version has no such file."""
    row = KNOBS[knob]
    if row.base is not Base.CGROUP:
        top = host.proc_root / "sys" if row.base is Base.PROC_SYS else host.sys_root
        paths = [top / path for path in row.paths]
        return next((path for path in paths if path.is_file()), paths[0])
    v2_file = (effective and row.v2_effective) or row.v2_file
    name = row.v1_file if host.version is CgroupVersion.V1 else v2_file
    cgroup = target.rpartition("/")[0] if row.item is Item.DEVICE else target
    return host.dir(row.subsystem, cgroup) / name if name else None


_ITEMS: Final = {Item.DEVICE: re.compile(r"[0-9]{1,8}:[0-9]{1,8}"), Item.FEATURE: re.compile(r"(?!NO_)[A-Z][A-Z0-9_]*")}
_ITEM_WORDS: Final = {Item.DEVICE: "major:minor of a block device", Item.FEATURE: "a scheduler feature"}
