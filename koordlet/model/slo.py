"""The effective NodeSLO: received policy merged with the built-in defaults (spec/api 1.2). Pure.

config/nodeslo.py merges and validates; these are its results. None means "not configured".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from koordlet.model.pod import HostApp


class SuppressPolicy(StrEnum):
    CPUSET = "cpuset"
    CFS_QUOTA = "cfsQuota"


@dataclass(frozen=True, slots=True)
class Threshold:
    """`spec.resourceUsedThresholdWithBE`; percents are of node capacity."""

    enable: bool = False
    cpu_suppress_threshold_percent: int = 65
    cpu_suppress_min_percent: int | None = None
    cpu_suppress_policy: SuppressPolicy = SuppressPolicy.CPUSET
    memory_evict_threshold_percent: int = 70
    memory_evict_lower_percent: int | None = None


@dataclass(frozen=True, slots=True)
class CpuQos:
    """`spec.resourceQOSStrategy.<class>.cpuQOS`, neutral values when disabled."""

    enable: bool = False
    group_identity: int = 0
    sched_idle: int = 0
    core_expeller: bool = False


@dataclass(frozen=True, slots=True)
class NodeSlo:
    """What the control loops obey."""

    threshold: Threshold = field(default_factory=Threshold)
    lsr_cpu: CpuQos = field(default_factory=CpuQos)
    ls_cpu: CpuQos = field(default_factory=CpuQos)
    be_cpu: CpuQos = field(default_factory=CpuQos)
    host_apps: tuple[HostApp, ...] = ()
