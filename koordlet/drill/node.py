"""What a drill must know of the real node: its load, its memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

MAX_CPU_SHARE: Final = 0.7
MAX_MEMORY_SHARE: Final = 0.8
MAX_MEMORY_STALL_PERCENT: Final = 5.0


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
