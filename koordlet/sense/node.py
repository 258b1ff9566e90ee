"""`NodeMeter`: CPU and memory usage of the whole node from /proc/stat and /proc/meminfo.

CPU is user + nice + system + irq + softirq; memory is MemTotal - MemAvailable, so page cache is not counted.
"""

from __future__ import annotations

import os
from typing import Final

from koordlet._native import ffi, lib
from koordlet.kernel.host import Host
from koordlet.model.view import Reading
from koordlet.sense.kept import KeptFile

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
MAX_MISSED: Final = 2
"""Failed reads in a row that the next rate may span. Over a longer gap it is no figure to take the pods' present use
from: what best effort used before the gap would count as use by the system."""


class NodeMeter:
    """mcpu/memory: latest good readings, kept (with their age) when a later read fails. total_bytes: MemTotal.
    moved_mcpu: by how much the CPU usage of the last pass differs from the one before, None without it.

    with_cache_bytes: MemTotal - MemFree of the last pass, None when it could not be read.
    """

    def __init__(self, host: Host) -> None:
        self.mcpu: Reading | None = None
        self.moved_mcpu: float | None = None
        self.memory: Reading | None = None
        self.total_bytes: int | None = None
        self.with_cache_bytes: int | None = None
        self.errors = 0
        self._stat = KeptFile(host.proc_root / "stat")
        self._meminfo = KeptFile(host.proc_root / "meminfo")
        self._out = ffi.new("struct kl_node *")
        self._base: tuple[int, float] | None = None
        self._missed = 0

    def read(self, now_s: float) -> None:
        """Takes new readings. The first one gives no CPU usage, nor does a counter that went back."""
        out = self._out
        self.moved_mcpu = None
        if lib.kl_node_read(self._stat.fd(), self._meminfo.fd(), out) != 0:
            self.errors += 1
        if out.has_cpu:
            self._missed = 0
            self._count(out.busy_ticks, now_s)
        else:
            self._missed += 1
            if self._missed > MAX_MISSED:
                self._base = None
            self._stat.close()
        if out.has_memory:
            self.memory = Reading(max(out.memory_total - out.memory_available, 0), now_s)
            self.total_bytes = out.memory_total
            self.with_cache_bytes = max(out.memory_total - out.memory_free, 0)
        else:
            self.with_cache_bytes = None
            self._meminfo.close()

    def _count(self, ticks: int, now_s: float) -> None:
        base = self._base
        if base is not None and now_s <= base[1]:
            return
        self._base = (ticks, now_s)
        if base is not None and ticks >= base[0]:
            mcpu = (ticks - base[0]) * 1000 / _TICKS_PER_S / (now_s - base[1])
            if self.mcpu is not None:
                self.moved_mcpu = abs(mcpu - self.mcpu.value)
            self.mcpu = Reading(mcpu, now_s)

    def close(self) -> None:
        self._stat.close()
        self._meminfo.close()
