"""Pure parsers of cgroup files that are only read. Slow reference of the native readers, used at low rates.

Text in, values in base units out; a KernelFileError names the file. Sources: the kernel's cgroup documents,
spec/collect 1.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobs import PAGE_BYTES
from koordlet.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class Throttle:
    """CFS bandwidth counters since the cgroup was made."""

    periods: int
    throttled: int
    throttled_ns: int


@dataclass(frozen=True, slots=True)
class CpuStat:
    """usage/user/system: None on v1, where cpuacct has them. throttle: None while the cpu controller is off."""

    usage_ns: int | None = None
    user_ns: int | None = None
    system_ns: int | None = None
    throttle: Throttle | None = None


@dataclass(frozen=True, slots=True)
class MemoryStat:
    """Bytes of the whole subtree (v1: the `total_` fields)."""

    rss_bytes: int
    cache_bytes: int
    inactive_anon_bytes: int
    active_anon_bytes: int
    inactive_file_bytes: int
    active_file_bytes: int
    unevictable_bytes: int

    @property
    def usage_bytes(self) -> int:
        """Without page cache; the cache can be dropped, so it is nobody's use."""
        return self.inactive_anon_bytes + self.active_anon_bytes + self.unevictable_bytes

    @property
    def usage_with_page_cache_bytes(self) -> int:
        return self.usage_bytes + self.active_file_bytes + self.inactive_file_bytes


@dataclass(frozen=True, slots=True)
class IoRow:
    """Counters of one device since the cgroup was made."""

    read_bytes: int
    write_bytes: int
    reads: int
    writes: int


def parse_cpu_stat(version: CgroupVersion, text: str) -> CpuStat:
    """`cpu.stat`; microseconds of v2 become nanoseconds, unknown keys are left alone.

    Raises KernelFileError when v2's usage is missing.
    """
    found = _keyed("cpu.stat", text)
    if version is CgroupVersion.V1:
        return CpuStat(throttle=_throttle(found, "throttled_time", 1))
    if "usage_usec" not in found:
        raise KernelFileError("cpu.stat", "no usage_usec", text)
    return CpuStat(
        usage_ns=found["usage_usec"] * 1000,
        user_ns=_scaled(found.get("user_usec")),
        system_ns=_scaled(found.get("system_usec")),
        throttle=_throttle(found, "throttled_usec", 1000),
    )


def throttled_ratio(before: Throttle, after: Throttle) -> float:
    """Share of the periods between two readings that were throttled; 0.0 without a new period."""
    periods = after.periods - before.periods
    return (after.throttled - before.throttled) / periods if periods > 0 else 0.0


def parse_memory_stat(version: CgroupVersion, text: str) -> MemoryStat:
    """`memory.stat`. Raises KernelFileError when one of the needed keys is missing."""
    found = _keyed("memory.stat", text)
    keys = _MEMORY_KEYS[version]
    missing = [key for key in keys if key not in found]
    if missing:
        raise KernelFileError("memory.stat", f"no {', '.join(missing)}", text)
    return MemoryStat(*(found[key] for key in keys))


def parse_counter(text: str, name: str = "counter") -> int:
    """A file that is one number: `cpuacct.usage` (ns), `memory.current`, `memory.usage_in_bytes` (bytes)."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise KernelFileError(name, "expected one number", text)
    return int(text)


def parse_numa_stat(version: CgroupVersion, text: str) -> dict[int, int]:
    """`memory.numa_stat` -> bytes per NUMA node. Node ids may have gaps.

    v2: anon + file. v1: pages of the whole subtree (`hierarchical_total`, or `total` where a kernel lacks it).
    Raises KernelFileError when no line of the kind is there.
    """
    rows: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        if line.startswith(_NUMA_LINES[version]):  # a few of some forty
            name, *fields = line.split()
            nodes = (_NODE.fullmatch(field) for field in fields)
            rows[name.partition("=")[0]] = {int(node[1]): int(node[2]) for node in nodes if node}
    if version is CgroupVersion.V1:
        pages = rows.get("hierarchical_total", rows.get("total"))
        if pages is None:
            raise KernelFileError("memory.numa_stat", "no total line", text)
        return {node: count * PAGE_BYTES for node, count in pages.items()}
    if "anon" not in rows or "file" not in rows:
        raise KernelFileError("memory.numa_stat", "no anon and file lines", text)
    anon, cache = rows["anon"], rows["file"]
    return {node: anon.get(node, 0) + cache.get(node, 0) for node in sorted(anon.keys() | cache.keys())}


def parse_io_stat(text: str) -> dict[str, IoRow]:
    """`io.stat` -> "major:minor" -> counters. Takes unstripped text: a last row without newline was cut off.

    A device that was just attached shows without counters, and one that only has `cost.*` keys has none of
    ours: both give no row rather than zeros.
    """
    rows: dict[str, IoRow] = {}
    for line in text.splitlines(keepends=True):
        device, *fields = line.split() or [""]
        found = {key: int(value) for key, _, value in (field.partition("=") for field in fields) if _plain(value)}
        if line.endswith("\n") and _DEVICE.fullmatch(device) and all(key in found for key in _IO_KEYS):
            rows[device] = IoRow(*(found[key] for key in _IO_KEYS))
    return rows


def parse_cpu_list(text: str, name: str = "cpuset.cpus") -> CpuSet:
    """A kernel CPU or node list with its newline; an empty line is the empty set."""
    try:
        return CpuSet.parse(text.strip())
    except ValueError as error:
        raise KernelFileError(name, str(error), text) from None


def _keyed(name: str, text: str) -> dict[str, int]:
    """`key value` lines. Lines of one token are skipped, later duplicates win, a value that is no number is a fault."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2:
            if not _plain(fields[1]):
                raise KernelFileError(name, f"{fields[0]} is no number", line)
            found[fields[0]] = int(fields[1])
    return found


def _throttle(found: dict[str, int], time_key: str, scale: int) -> Throttle | None:
    keys = ("nr_periods", "nr_throttled", time_key)
    if any(key not in found for key in keys):
        return None
    return Throttle(found["nr_periods"], found["nr_throttled"], found[time_key] * scale)


def _scaled(usec: int | None) -> int | None:
    return None if usec is None else usec * 1000


def _plain(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text))


_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_NUMA_LINES: Final = {CgroupVersion.V1: ("hierarchical_total=", "total="), CgroupVersion.V2: ("anon ", "file ")}
_NODE: Final = re.compile(r"N([0-9]{1,5})=([0-9]{1,20})")
_DEVICE: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_IO_KEYS: Final = ("rbytes", "wbytes", "rios", "wios")
_MEMORY_KEYS: Final = {
    CgroupVersion.V1: (
        "total_rss",
        "total_cache",
        "total_inactive_anon",
        "total_active_anon",
        "total_inactive_file",
        "total_active_file",
        "total_unevictable",
    ),
    CgroupVersion.V2: (
        "anon",
        "file",
        "inactive_anon",
        "active_anon",
        "inactive_file",
        "active_file",
        "unevictable",
    ),
}
"""In the order of MemoryStat's fields."""
