"""Pressure stall information of the node and of cgroups. Pure. (kernel: accounting/psi.rst)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Resource = Literal["cpu", "memory", "io"]


@dataclass(frozen=True, slots=True)
class PsiLine:
    """Share of time stalled, in percent over 10, 60 and 300 s, and in total since boot or creation."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total_us: int = 0


@dataclass(frozen=True, slots=True)
class Psi:
    """some: at least one task waited. full: all did; zeros with full_supported False where the kernel has none."""

    some: PsiLine
    full: PsiLine = PsiLine()
    full_supported: bool = False


@dataclass(frozen=True, slots=True)
class Pressures:
    """at_s: monotonic time of the readings. groups: by cgroup path; a group without pressure files has no entry."""

    at_s: float
    node: dict[Resource, Psi] = field(default_factory=dict)
    groups: dict[str, dict[Resource, Psi]] = field(default_factory=dict)
