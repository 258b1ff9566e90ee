"""Units and rounding used across the house. Pure; standard library only.

Integers in base units everywhere: CPU in milli-CPU (`_mcpu`), memory in bytes, cgroup quota in
microseconds per period (`_us`), shares of a whole in permyriad (1/10000). Floats live only inside
a formula and are rounded once, by a function of this file or at a place that names its rule.
"""

from __future__ import annotations

import math
from typing import Final

DEFAULT_PERIOD_US: Final = 100_000
"""CFS period assumed wherever a limit is turned into a quota (spec/collect 1.5)."""

UNLIMITED: Final = -1
"""Quota or limit that means "none", in the units of the knob."""

SHARES_MIN: Final = 2
SHARES_MAX: Final = 262_144
WEIGHT_MIN: Final = 1
WEIGHT_MAX: Final = 10_000
WEIGHT_DEFAULT: Final = 100
"""Of a new cgroup on v2."""
QUOTA_MIN_US: Final = 1_000
"""The kernel refuses a smaller CFS quota with EINVAL (kernel: min_cfs_quota_period)."""


def clamp(value: int, low: int, high: int) -> int:
    """`value` moved into [low, high]."""
    return max(low, min(value, high))


def mcpu_to_shares(mcpu: int) -> int:
    """cpu.shares for a CPU request in milli-CPU; nothing requested gives the kernel's minimum."""
    return SHARES_MIN if mcpu <= 0 else clamp(mcpu * 1024 // 1000, SHARES_MIN, SHARES_MAX)


def mcpu_to_quota_us(mcpu: int) -> int:
    """cfs quota per 100 ms for a CPU limit in milli-CPU; no limit gives UNLIMITED."""
    return UNLIMITED if mcpu <= 0 else max(mcpu * DEFAULT_PERIOD_US // 1000, QUOTA_MIN_US)


def quota_to_mcpu(quota_us: int, period_us: int = DEFAULT_PERIOD_US) -> int:
    """Milli-CPU that a quota allows; UNLIMITED stays UNLIMITED."""
    return UNLIMITED if quota_us < 0 else quota_us * 1000 // period_us


def shares_to_weight(shares: int) -> int:
    """cpu.weight for cpu.shares, the linear rule of runc before 1.3 (1024 -> 39)."""
    return clamp(1 + (clamp(shares, SHARES_MIN, SHARES_MAX) - 2) * 9999 // 262_142, WEIGHT_MIN, WEIGHT_MAX)


def shares_to_weight_log(shares: int) -> int:
    """cpu.weight for cpu.shares, the rule of crun and of runc since 1.3.2 (2 -> 1, 1024 -> 100, 262144 -> 10000)."""
    power = math.log2(clamp(shares, SHARES_MIN, SHARES_MAX))
    return clamp(math.ceil(10 ** ((power * power + 125 * power) / 612 - 7 / 34)), WEIGHT_MIN, WEIGHT_MAX)


def weight_to_shares(weight: int) -> int:
    """cpu.shares for cpu.weight; lossy inverse of `shares_to_weight` (39 -> 998)."""
    return clamp((weight - 1) * 262_142 // 9999 + 2, SHARES_MIN, SHARES_MAX)
