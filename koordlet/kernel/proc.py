"""Node CPU and memory from /proc. Malformed lines are passed over: half a file must not stop the node's figures."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from koordlet.kernel.host import Host

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""Unit of /proc/stat (USER_HZ), 100 on every common kernel."""


def read_node_cpu(host: Host) -> dict[str, int]:
    """Busy ticks of "cpu" (all) and "cpuN" (each online CPU) from /proc/stat. Raises OSError."""
    return parse_stat((host.proc_root / "stat").read_text("ascii", "replace"))


def parse_stat(text: str) -> dict[str, int]:
    """`cpu*` lines -> busy ticks = user + nice + system + irq + softirq.

    idle and iowait may run backwards, guest is already inside user, and stolen time was used by nobody here:
    none of them enters.
    """
    busy: dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 8 and _CPU.fullmatch(fields[0]) and all(_NUMBER.fullmatch(field) for field in fields[1:8]):
            user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[1:8])
            busy[fields[0]] = user + nice + system + irq + softirq
    return busy


def busy_mcpu(before_ticks: int, after_ticks: int, elapsed_s: float, ticks_per_s: int = TICKS_PER_S) -> float | None:
    """Milli-CPU between two readings; None where the counter fell or no time passed (no sample, not 0)."""
    if after_ticks < before_ticks or elapsed_s <= 0:
        return None
    return (after_ticks - before_ticks) / ticks_per_s / elapsed_s * 1000


def cgroup_of(host: Host, pid: int) -> str:
    """The cgroup of a process, relative; on v1 as the cpu controller has it, "" in the root. Raises OSError."""
    found = ""
    for line in (host.proc_root / str(pid) / "cgroup").read_text("utf-8", "surrogateescape").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            return path.strip("/")
        if number == "0" and not controllers:
            found = path.strip("/")
    return found


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """used: what cannot be had without swapping or killing. used_with_cache: all that is not free."""

    total_bytes: int
    used_bytes: int
    used_with_cache_bytes: int


def read_node_memory(host: Host) -> NodeMemory | None:
    """/proc/meminfo of the whole node. Raises OSError."""
    return node_memory(parse_meminfo((host.proc_root / "meminfo").read_text("ascii", "replace")))


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo or a NUMA node's meminfo -> bytes by key (the file's "kB" are KiB; plain counts stay)."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        row = _MEMINFO.fullmatch(line)
        if row:
            found[row["key"]] = int(row["value"]) * (1024 if row["unit"] else 1)
    return found


def node_memory(meminfo: dict[str, int]) -> NodeMemory | None:
    """Used memory from meminfo's bytes; None when the file tells too little, never "all used".

    Without MemAvailable (before Linux 3.14, some container views, NUMA nodes) what is free or could be dropped
    stands for it: MemFree + Active(file) + Inactive(file) + SReclaimable.
    """
    total, free = meminfo.get("MemTotal"), meminfo.get("MemFree")
    if not total or free is None:
        return None
    available = meminfo.get("MemAvailable")
    if available is None:
        if any(key not in meminfo for key in _DROPPABLE):
            return None
        available = free + sum(meminfo[key] for key in _DROPPABLE)
    return NodeMemory(total, max(total - available, 0), max(total - free, 0))


_CPU: Final = re.compile(r"cpu[0-9]{0,5}")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_MEMINFO: Final = re.compile(
    r"(?:Node [0-9]+ )?(?P<key>[A-Za-z0-9_()]+):[ \t]*(?P<value>[0-9]{1,20})(?:[ \t]+(?P<unit>kB))?[ \t]*"
)
_DROPPABLE: Final = ("Active(file)", "Inactive(file)", "SReclaimable")
