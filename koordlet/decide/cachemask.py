"""Percent -> cache mask and bandwidth number, by the machine's own limits (spec/qos 9.2, 9.3). Pure."""

from __future__ import annotations

from typing import Final

from koordlet.model.resctrl import BandwidthLine, BandwidthUnit, CacheLine, Range

AMD_UNITS: Final = 160
"""Eighths of GB/s that 100 % stand for on AMD: 25 GB/s per core complex at 80 %, measured on one Milan part."""


def mask_of(line: CacheLine, wanted: Range, most_ways: int | None = None) -> int:
    """Ways of a range, rounded up at both ends, and at least as many as the kernel takes. most_ways: a cap on their
    number. Raises ValueError for a range that is none."""
    start, end, ways = wanted.start_percent, wanted.end_percent, line.ways
    if not 0 <= start < end <= 100:
        raise ValueError(f"range {start}..{end} is no part of 0..100")
    if line.full != (1 << ways) - 1:
        raise ValueError(f"cache mask {line.full:x} is not all ones")
    low, high = -(-ways * start // 100), -(-ways * end // 100)
    least = min(max(1, line.min_bits), ways)
    if most_ways is not None:
        high = min(high, low + max(most_ways, least))
    # beyond: the reference writes an empty mask here, which the kernel refuses.
    high = min(max(high, low + least), ways)
    low = min(low, high - least)
    return (1 << high) - (1 << low)


def bandwidth_of(line: BandwidthLine, percent: int, amd_units: int = AMD_UNITS) -> int | None:
    """The line's number for a percentage; None where it says nothing (0, out of range, MBps mode)."""
    if not 1 <= percent <= 100:
        return None
    if line.unit is BandwidthUnit.MBPS:
        return None
    if line.unit is BandwidthUnit.EIGHTH_GBPS:
        return line.full if percent == 100 else max(1, line.minimum, amd_units * percent // 100)
    return min(line.full, max(line.minimum, -(-percent // line.step) * line.step))
