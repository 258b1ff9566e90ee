"""Exclusive CPUs: what a workload asks for (`PinRequest`) and what it holds (`Allocation`). Pure.

The words are koord-scheduler's: pod annotations `scheduling.koordinator.sh/resource-spec`, `/numa-topology-spec` and
`/resource-status` (spec/ledger 3.2); a local declaration says the same under `cpu:` (spec/ledger 6.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koordlet.model.cpuset import CpuSet


class BindPolicy(StrEnum):
    """How CPUs are chosen: whole cores, one thread per core, or no CPUs of its own."""

    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"


class ExclusivePolicy(StrEnum):
    """Which units are not to be shared with workloads of the same policy; a preference."""

    NONE = "None"
    PCPU = "PCPULevel"
    NUMA_NODE = "NUMANodeLevel"


class NumaPolicy(StrEnum):
    """How a workload's CPUs and memory are to be aligned with NUMA nodes."""

    NONE = "None"
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE = "SingleNUMANode"


class NumaStrategy(StrEnum):
    """Which NUMA nodes come first: the fullest, the emptiest, or all of them evenly."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"


class NumaExclusive(StrEnum):
    """May workloads of one NUMA node and of several meet on a node."""

    NONE = ""
    PREFERRED = "Preferred"
    REQUIRED = "Required"


@dataclass(frozen=True, slots=True)
class PinRequest:
    """A workload's wish. required: the bind policy must hold or nothing is given."""

    bind: BindPolicy = BindPolicy.DEFAULT
    required: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    numa: NumaPolicy = NumaPolicy.NONE
    numa_exclusive: NumaExclusive = NumaExclusive.NONE


@dataclass(frozen=True, slots=True)
class Exclusive:
    """The kubelet's exclusive CPUs: pod UID -> CPUs, and those whose owner has no name (an old checkpoint)."""

    pods: Mapping[str, CpuSet] = field(default_factory=dict)
    nameless: CpuSet = field(default_factory=CpuSet)

    @property
    def cpus(self) -> CpuSet:
        found = self.nameless
        for cpus in self.pods.values():
            found |= cpus
        return found


NOBODY = Exclusive()


@dataclass(frozen=True, slots=True)
class NodePinning:
    """The node's own rules, from its labels. bind: policy for every pod with CPUs, None: only LSE and LSR get some."""

    bind: BindPolicy | None = None
    numa: NumaPolicy = NumaPolicy.NONE
    strategy: NumaStrategy = NumaStrategy.LEAST_ALLOCATED


class MemsMode(StrEnum):
    """What happens to the memory of a workload with CPUs of its own: nothing, new pages near its CPUs, all of it."""

    KEEP = "keep"
    BIND = "bind"
    MIGRATE = "migrate"


class Partition(StrEnum):
    """Kind of cpuset partition for LSE workloads (cgroup-v2.rst, cpuset.cpus.partition), in the order of the knob's
    values."""

    MEMBER = "member"
    ROOT = "root"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True)
class PinOptions:
    """What goes beyond the CPU list itself, from flags. irq: keep interrupts off LSE workloads' CPUs. balancing_off: no
    automatic NUMA balancing while a workload's memory is bound."""

    mems: MemsMode = MemsMode.KEEP
    partition: Partition = Partition.MEMBER
    irq: bool = False
    balancing_off: bool = False


@dataclass(frozen=True, slots=True)
class NumaShare:
    """What an allocation holds on one NUMA node; None is "not said there"."""

    node: int
    cpu_mcpu: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """CPUs held by one workload, taken under `bind`. shares: by NUMA node id, () when not aligned."""

    cpus: CpuSet
    bind: BindPolicy = BindPolicy.FULL_PCPUS
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    shares: tuple[NumaShare, ...] = ()
