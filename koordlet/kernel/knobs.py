"""Every cgroup file that may be written, as one table: names on v1 and v2, units, ranges, rules, conversions.

Reading a knob for drift, encoding a wanted value, comparing the two and probing for support all use the same
row. Sources: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, spec/collect 1.4-1.5, spec/qos 14 and 18.1.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import KernelFileError, is_gone, is_unsupported
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob, KnobValue
from koordlet.model.units import (
    QUOTA_MIN_US,
    SHARES_MAX,
    SHARES_MIN,
    UNLIMITED,
    shares_to_weight,
    weight_to_shares,
)

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
INT64_MAX: Final = 2**63 - 1
QUOTA_MAX_US: Final = 2**44 - 1
"""Largest quota the kernel takes (kernel: MAX_BW)."""
V1_UNLIMITED_BYTES: Final = 2**63 - 65536
"""v1 prints "no limit" as 2^63-1 rounded down to a page; 64 KiB is the largest page, and 2^64-1 of old kernels
is above it too."""


class KnobValueError(ValueError):
    """A value that the knob cannot hold; nothing is written."""

    def __init__(self, knob: Knob, value: object, legal: str) -> None:
        self.knob = knob
        self.value = value
        super().__init__(f"{knob}: {value!r} is not {legal}")


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
}  # fmt: skip
"""All of `Knob`. Only knobs in this table can be written."""


def ensure_target(target: str) -> str:
    """The cgroup path in its plain form, without outer slashes.

    Raises ValueError where it would name the hierarchy's root or something outside: a write there hits the
    whole machine.
    """
    parts = [part for part in target.split("/") if part]
    if not parts or "." in parts or ".." in parts or "\0" in target:
        raise ValueError(f"cgroup {target!r} is the root cgroup or no plain path below it; not written")
    return "/".join(parts)


def knob_path(host: Host, target: str, knob: Knob, *, effective: bool = False) -> Path | None:
    """The knob's file in this version's naming, which may be absent on disk; None: the version has no such file."""
    row = KNOBS[knob]
    v2_file = (effective and row.v2_effective) or row.v2_file
    name = row.v1_file if host.version is CgroupVersion.V1 else v2_file
    return host.dir(row.subsystem, target) / name if name else None


def read_text(host: Host, target: str, knob: Knob, *, effective: bool = False) -> str | None:
    """Stripped content; None when the file or cgroup is gone or unsupported. Other faults raise OSError."""
    path = knob_path(host, target, knob, effective=effective)
    return None if path is None else _read(path)


def read_knob(host: Host, target: str, knob: Knob, *, effective: bool = False) -> KnobValue | None:
    """Value in the model's unit; None as in `read_text`. Raises KernelFileError for garbage.

    effective: on v2 what is in force (an unset cpuset.cpus reads as empty although the group may use CPUs).
    """
    text = read_text(host, target, knob, effective=effective)
    if text is None:
        return None
    try:
        return parse(host.version, knob, text)
    except KernelFileError as error:
        path = knob_path(host, target, knob, effective=effective)
        raise error.at(path or error.path) from None


def read_period_us(host: Host, target: str) -> int | None:
    """CFS period in microseconds; None when gone or unsupported. Raises KernelFileError for garbage."""
    directory = host.dir("cpu", target)
    if host.version is CgroupVersion.V1:
        path = directory / "cpu.cfs_period_us"
        text = _read(path)
        return None if text is None else _integer(str(path), text)
    path = directory / "cpu.max"
    text = _read(path)
    return None if text is None else _integer(str(path), _cpu_max(str(path), text)[1])


def parse(version: CgroupVersion, knob: Knob, text: str) -> KnobValue:
    """Value of the file's text, in the model's unit. Raises KernelFileError naming the file."""
    row, text = KNOBS[knob], text.strip()
    name = row.v1_file if version is CgroupVersion.V1 else row.v2_file
    match row.unit:
        case Unit.CPUS:
            try:
                return CpuSet.parse(text)
            except ValueError as error:
                raise KernelFileError(name, str(error), text) from None
        case Unit.FREEZER if version is CgroupVersion.V1:
            if text not in _FREEZER:
                raise KernelFileError(name, f"expected one of {', '.join(_FREEZER)}", text)
            return _FREEZER[text]
        case Unit.PARTITION:
            word = text.partition(" ")[0]
            if word not in _PARTITIONS:
                raise KernelFileError(name, f"expected one of {', '.join(_PARTITIONS)}", text)
            return _PARTITIONS.index(word)
        case Unit.SHARES if version is CgroupVersion.V2:
            return weight_to_shares(_integer(name, text))
        case Unit.QUOTA if version is CgroupVersion.V2:
            quota = _cpu_max(name, text)[0]
            return UNLIMITED if quota == "max" else _integer(name, quota)
        case Unit.BYTES_LIMIT:
            value = _bytes(name, text)
            return UNLIMITED if value >= V1_UNLIMITED_BYTES else value
        case Unit.BYTES:
            return min(_bytes(name, text), INT64_MAX)
        case _:
            return _integer(name, text)


def encode(version: CgroupVersion, knob: Knob, value: KnobValue) -> bytes:
    """Bytes for one write. Raises KnobValueError for a value of the wrong kind or outside the knob's range.

    cpu.max gets its first field only, so the period stays as it is. An empty CPU set is refused: v1 answers
    with an error, v2 silently lets go of the pinning.
    """
    row = KNOBS[knob]
    if row.unit is Unit.CPUS:
        if not isinstance(value, CpuSet) or not value:
            raise KnobValueError(knob, value, "a CPU set with at least one member")
        return str(value).encode()
    unlimited = row.unit in (Unit.QUOTA, Unit.BYTES_LIMIT)
    legal = f"{'-1 or ' if unlimited else ''}an integer in {row.low}..{row.high}"
    if not isinstance(value, int) or not (row.low <= value <= row.high or (unlimited and value == UNLIMITED)):
        raise KnobValueError(knob, value, legal)
    if row.unit is Unit.FREEZER and version is CgroupVersion.V1:
        return b"FROZEN" if value else b"THAWED"
    if row.unit is Unit.PARTITION:
        return _PARTITIONS[value].encode()
    if version is CgroupVersion.V2:
        if row.unit is Unit.SHARES:
            return b"%d" % shares_to_weight(value)
        if (unlimited and value == UNLIMITED) or (row.unit is Unit.BYTES and value == INT64_MAX):
            return b"max"
    return b"%d" % value


def same(version: CgroupVersion, knob: Knob, value: KnobValue, text: str) -> bool:
    """True if the file's text already says `value`, so nothing need be written.

    Compared in the file's unit: the weight (shares -> weight loses digits), the quota without the period, sets
    as sets, memory in the whole pages that the kernel keeps. Garbage is not the same as anything.
    """
    row, text = KNOBS[knob], text.strip()
    if row.unit is Unit.SHARES and version is CgroupVersion.V2 and isinstance(value, int):
        return text == str(shares_to_weight(value))
    try:
        found = parse(version, knob, text)
    except KernelFileError:
        return False
    if row.unit in (Unit.BYTES, Unit.BYTES_LIMIT) and isinstance(value, int) and isinstance(found, int):
        return found // PAGE_BYTES == value // PAGE_BYTES
    return found == value


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("ascii", "replace").strip()
    except OSError as error:
        if is_gone(error) or is_unsupported(error):
            return None
        raise


def _integer(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise KernelFileError(name, "expected an integer", text)
    return int(text)


def _bytes(name: str, text: str) -> int:
    return INT64_MAX if text == "max" else _integer(name, text)


def _cpu_max(name: str, text: str) -> tuple[str, str]:
    fields = text.split()
    if len(fields) != 2:
        raise KernelFileError(name, "expected quota and period", text)
    return fields[0], fields[1]


_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")
_PARTITIONS: Final = ("member", "root", "isolated")
_FREEZER: Final = {"THAWED": 0, "FREEZING": 1, "FROZEN": 1}
