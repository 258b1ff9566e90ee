"""The effective NodeSLO: received policy merged with the built-in defaults (spec/api 1.2). Pure.

config/nodeslo.py merges and validates; these are its results. None means "not configured".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from koordlet.model.blkio import BlkioClasses
from koordlet.model.burst import CpuBurst
from koordlet.model.memory_qos import MemoryClasses
from koordlet.model.pod import HostApp
from koordlet.model.system import SystemStrategy


class SuppressPolicy(StrEnum):
    CPUSET = "cpuset"
    CFS_QUOTA = "cfsQuota"


class CpuEvictPolicy(StrEnum):
    """What the satisfaction of best effort is measured against."""

    REAL_LIMIT = "evictByRealLimit"
    ALLOCATABLE = "evictByAllocatable"


@dataclass(frozen=True, slots=True)
class Threshold:
    """`spec.resourceUsedThresholdWithBE`; percents are of node capacity, of allocatable where the name says so."""

    enable: bool = False
    cpu_suppress_threshold_percent: int = 65
    cpu_suppress_min_percent: int | None = None
    cpu_suppress_policy: SuppressPolicy = SuppressPolicy.CPUSET
    memory_evict_threshold_percent: int = 70
    memory_evict_lower_percent: int | None = None
    memory_allocatable_evict_threshold_percent: int | None = None
    memory_allocatable_evict_lower_percent: int | None = None
    cpu_evict_be_satisfaction_upper_percent: int | None = None
    cpu_evict_be_satisfaction_lower_percent: int | None = None
    cpu_evict_be_usage_threshold_percent: int | None = None
    cpu_evict_time_window_s: int | None = None
    cpu_evict_threshold_percent: int | None = None
    cpu_evict_lower_percent: int | None = None
    cpu_allocatable_evict_threshold_percent: int | None = None
    cpu_allocatable_evict_lower_percent: int | None = None
    cpu_evict_policy: CpuEvictPolicy = CpuEvictPolicy.REAL_LIMIT
    evict_enabled_priority_threshold: int | None = None
    allocatable_evict_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class CpuQos:
    """`spec.resourceQOSStrategy.<class>.cpuQOS`, neutral values when disabled."""

    enable: bool = False
    group_identity: int = 0
    sched_idle: int = 0
    core_expeller: bool = False


class CpuPolicy(StrEnum):
    GROUP_IDENTITY = "groupIdentity"
    CORE_SCHED = "coreSched"


class NetworkPolicy(StrEnum):
    TC = "tc"
    TERWAY = "terway-qos"


@dataclass(frozen=True, slots=True)
class NetworkClass:
    """`networkQOS` of a class in bits per second, all 0 when disabled; a limit of 0 is "no limit of its own"."""

    enable: bool = False
    ingress_request_bps: int = 0
    ingress_limit_bps: int = 0
    egress_request_bps: int = 0
    egress_limit_bps: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """total_bps: `systemStrategy.totalNetworkBandwidth`, bits per second; 0 is "not told"."""

    policy: NetworkPolicy = NetworkPolicy.TC
    total_bps: int = 0
    ls: NetworkClass = field(default_factory=NetworkClass)
    be: NetworkClass = field(default_factory=NetworkClass)


@dataclass(frozen=True, slots=True)
class ResctrlQos:
    """`spec.resourceQOSStrategy.<class>.resctrlQOS`: share of the cache's ways and of the memory bandwidth, percent."""

    enable: bool = False
    cat_start_percent: int = 0
    cat_end_percent: int = 100
    mba_percent: int = 100


@dataclass(frozen=True, slots=True)
class NodeSlo:
    """What the control loops obey."""

    threshold: Threshold = field(default_factory=Threshold)
    lsr_cpu: CpuQos = field(default_factory=CpuQos)
    ls_cpu: CpuQos = field(default_factory=CpuQos)
    be_cpu: CpuQos = field(default_factory=CpuQos)
    system_cpu: CpuQos = field(default_factory=CpuQos)
    cpu_policy: CpuPolicy = CpuPolicy.GROUP_IDENTITY
    network: Network = field(default_factory=Network)
    burst: CpuBurst = field(default_factory=CpuBurst)
    lsr_resctrl: ResctrlQos = field(default_factory=ResctrlQos)
    ls_resctrl: ResctrlQos = field(default_factory=ResctrlQos)
    be_resctrl: ResctrlQos = field(default_factory=ResctrlQos)
    memory: MemoryClasses = field(default_factory=MemoryClasses)
    blkio: BlkioClasses = field(default_factory=BlkioClasses)
    system: SystemStrategy = field(default_factory=SystemStrategy)
    host_apps: tuple[HostApp, ...] = ()
