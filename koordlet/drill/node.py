"""What a drill must know of the real node: its load, its memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from koordlet.load.cgroups import Group

MAX_CPU_SHARE: Final = 0.7
MAX_MEMORY_SHARE: Final = 0.8
MAX_MEMORY_STALL_PERCENT: Final = 5.0
WINDOW_S: Final = 0.5
"""Shorter ones are too coarse: /proc/stat counts in hundredths of a second."""


def under_pressure() -> str:
    """Why no drill should add to this node's load, "" when it may."""
    busy = cpu_share(0.5)
    if busy > MAX_CPU_SHARE:
        return f"{busy:.0%} of the CPUs are busy"
    total, available = memory()
    if total - available > MAX_MEMORY_SHARE * total:
        return f"{(total - available) / total:.0%} of the memory is in use"
    stall = _memory_stall_percent()
    if stall > MAX_MEMORY_STALL_PERCENT:
        return f"tasks wait for memory {stall:.0f} % of the time"
    return ""


def cpu_share(seconds: float) -> float:
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    return (after[0] - before[0]) / max(after[1] - before[1], 1)


class Others:
    """What the node does beside these cgroups, in windows of half a second: the agent leaves that much to them.

    peak: the most in one window since `again`, of the node's CPUs, 0 before the first.
    """

    def __init__(self, *groups: Group) -> None:
        self._groups = groups
        self.again()

    def again(self) -> None:
        self.peak = 0.0
        self._before = self._read()

    def look(self) -> float:
        """Call it often; returns the peak."""
        before, now = self._before, self._read()
        if now[0] - before[0] >= WINDOW_S:
            share = (now[1] - before[1] - (now[3] - before[3])) / max(now[2] - before[2], 1)
            self.peak, self._before = max(self.peak, share), now
        return self.peak

    def _read(self) -> tuple[float, float, float, float]:
        """Monotonic seconds; ticks of the node that were busy, all ticks, ticks of the groups."""
        busy, total = _ticks()
        groups = sum(group.usage_ns() for group in self._groups) / 1e9 * os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, total, groups


def memory() -> tuple[int, int]:
    """MemTotal and MemAvailable, bytes."""
    found = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * 1024
    return found["MemTotal"], found["MemAvailable"]


def oom_kills() -> int:
    """Of the whole node since boot."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _ticks() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _memory_stall_percent() -> float:
    try:
        text = Path("/proc/pressure/memory").read_text()
    except OSError:
        return 0.0
    return float(text.split("avg10=", 1)[1].split()[0])


def cpus() -> int:
    return len(os.sched_getaffinity(0))
