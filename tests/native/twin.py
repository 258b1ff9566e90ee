"""Slow, plain Python twins of native/parse.c, ring.c and the rates of read.c, used as their oracles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

U64 = 2**64
MAX_GAP_NS = 20 * 10**9
MEMORY_KEYS = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")


def number(text: bytes, factor: int = 1) -> int | None:
    """An unsigned decimal, None for anything else or one that does not fit 64 bits."""
    if not text or not set(text) <= set(b"0123456789"):
        return None
    value = int(text) * factor
    return value if value < U64 else None


def words(line: bytes) -> list[bytes]:
    return [word for word in line.replace(b"\t", b" ").split(b" ") if word]


def keyed(text: bytes) -> dict[bytes, bytes]:
    """First two words of each line, later duplicates win."""
    rows = [words(line) for line in text.split(b"\n")]
    return {row[0]: row[1] for row in rows if len(row) >= 2}


def all_values(text: bytes, names: tuple[bytes, ...]) -> list[list[bytes]]:
    rows = [words(line) for line in text.split(b"\n")]
    return [[row[1] for row in rows if len(row) >= 2 and row[0] == name] for name in names]


def u64(text: bytes) -> int | None:
    return number(text.strip(b"\n"))


def quota(text: bytes) -> int | None:
    first = words(text.strip(b"\n"))[:1]
    if first in ([b"max"], [b"-1"]):
        return -1
    value = number(first[0]) if first else None
    return value if value is not None and value < 2**63 else None


def cpu_stat(text: bytes) -> dict[str, int | None] | None:
    """usage_ns, periods, throttled_periods, throttled_ns; the last three None unless all are there."""
    wanted = {b"usage_usec": 1000, b"nr_periods": 1, b"nr_throttled": 1, b"throttled_usec": 1000, b"throttled_time": 1}
    values: dict[bytes, int] = {}
    for line in text.split(b"\n"):
        row = words(line)
        if len(row) < 2 or row[0] not in wanted:
            continue
        value = number(row[1], wanted[row[0]])
        if value is None:
            return None
        values[b"throttled_ns" if row[0].startswith(b"throttled_") else row[0]] = value
    throttling = [values.get(key) for key in (b"nr_periods", b"nr_throttled", b"throttled_ns")]
    complete = None not in throttling
    periods, throttled, time_ns = throttling if complete else (None, None, None)
    return {
        "usage_ns": values.get(b"usage_usec"),
        "periods": periods,
        "throttled_periods": throttled,
        "throttled_ns": time_ns,
    }


def memory_stat(text: bytes, version: int) -> list[int] | None:
    prefix = "total_" if version == 1 else ""
    found = all_values(text, tuple(f"{prefix}{key}".encode() for key in MEMORY_KEYS))
    numbers = [[number(value) for value in values] for values in found]
    if any(not values or None in values for values in numbers):
        return None
    return [values[-1] or 0 for values in numbers]


def proc_stat(text: bytes) -> int | None:
    for line in text.split(b"\n"):
        row = words(line)
        if row[:1] != [b"cpu"]:
            continue
        columns = [number(word) for word in row[1:8]]
        if len(columns) < 7 or None in columns:
            return None
        busy = sum(columns[i] or 0 for i in (0, 1, 2, 5, 6))
        return busy if busy < U64 else None
    return None


def meminfo(text: bytes) -> dict[str, int] | None:
    names = (b"MemTotal:", b"MemFree:", b"MemAvailable:", b"Active(file):", b"Inactive(file):", b"SReclaimable:")
    numbers = [[number(value, 1024) for value in values] for values in all_values(text, names)]
    if any(None in values for values in numbers) or not numbers[0] or not numbers[1]:
        return None
    total, free, available, *rest = [values[-1] if values else None for values in numbers]
    assert total is not None
    assert free is not None
    if available is None:
        available = free + sum(value or 0 for value in rest)
        if available >= U64:
            return None
    return {"total": total, "free": free, "available": available}


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[max(len(values) * percent // 100 - 1, 0)]


@dataclass
class Ring:
    """One series."""

    capacity: int
    samples: list[tuple[int, float]] = field(default_factory=list)

    def push(self, at_ms: int, value: float) -> bool:
        if not math.isfinite(value) or (self.samples and at_ms <= self.samples[-1][0]):
            return False
        self.samples = [s for s in self.samples[-self.capacity + 1 or len(self.samples) :] if at_ms - s[0] <= 2**31]
        self.samples.append((at_ms, value))
        return True

    def aggregate(self, from_ms: int, to_ms: int) -> dict[str, float] | None:
        inside = [sample for sample in self.samples if from_ms <= sample[0] <= to_ms]
        if not inside:
            return None
        values = [value for _, value in inside]
        return {
            "count": len(values),
            "avg": sum(values) / len(values),
            "min": min(values),
            "max": max(values),
            "latest": values[-1],
            "first_ms": inside[0][0],
            "latest_ms": inside[-1][0],
            **{f"p{percent}": percentile(values, percent) for percent in (50, 90, 95, 99)},
        }


@dataclass
class Rate:
    """milli-CPU of a counter in nanoseconds: None for first samples, resets, no time passed and long gaps."""

    base: tuple[int, int] | None = None

    def read(self, usage_ns: int, at_ns: int) -> float | None:
        base = self.base
        if base is not None and at_ns <= base[1]:
            return None
        self.base = (usage_ns, at_ns)
        if base is None or usage_ns < base[0] or at_ns - base[1] > MAX_GAP_NS:
            return None
        return (usage_ns - base[0]) * 1000 / (at_ns - base[1])
