"""`PodSettings`: a pod's own wishes, from koordinator's labels and annotations, already validated. Pure.

One field per annotation, None when absent or malformed; `faults` names every malformed one, so that a consumer that
must not act on a guess can tell "absent" from "not readable". sources/settings.py reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from koordlet.model.blkio import Block
from koordlet.model.burst import BurstSettings
from koordlet.model.cpuset import CpuSet
from koordlet.model.memory_qos import MemorySettings
from koordlet.model.resctrl import PodResctrl
from koordlet.model.resources import Resources

EVICTION_POLICY: Final = "koordinator.sh/eviction-policy"
"""Annotation; a malformed one means that the pod is never evicted."""


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """What the scheduler allocated. cpuset: None where it names no CPUs. cpu_nodes: NUMA nodes on which it gave CPU or
    batch CPU."""

    cpuset: CpuSet | None = None
    cpu_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendedAmounts:
    """A container's batch and mid resources as the webhook copied them into the pod's annotations."""

    container: str
    requests: Resources = field(default_factory=Resources)
    limits: Resources = field(default_factory=Resources)


@dataclass(frozen=True, slots=True)
class PodCpuQos:
    """Annotation cpuQOS: None is "not said"."""

    enable: bool | None = None
    group_identity: int | None = None


@dataclass(frozen=True, slots=True)
class GpuShare:
    """One allocated GPU. core_percent, memory_percent: of the device. id: its UUID, "" where nobody said it."""

    minor: int
    core_percent: int | None = None
    memory_percent: int | None = None
    memory_bytes: int | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class RdmaShare:
    """One allocated RDMA device: the PCI addresses of its functions, virtual ones where there are any."""

    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """Annotation device-allocated."""

    gpus: tuple[GpuShare, ...] = ()
    rdma: tuple[RdmaShare, ...] = ()


@dataclass(frozen=True, slots=True)
class PodNetworkQos:
    """Annotation networkQOS, in bits per second; None is "no limit"."""

    ingress_bps: int | None = None
    egress_bps: int | None = None


@dataclass(frozen=True, slots=True)
class PodSettings:
    """faults: (annotation key, what is wrong with its value).

    evict_by: features by which the pod may be evicted, None for all. evict_priority: lower goes first.
    evict_enabled: label `eviction-enabled`, None where it is neither "true" nor "false". sub_priority: label
    `priority`.
    """

    faults: tuple[tuple[str, str], ...] = ()
    resource_status: ResourceStatus | None = None
    extended: tuple[ExtendedAmounts, ...] | None = None
    cpu_qos: PodCpuQos | None = None
    devices: DeviceAllocation | None = None
    network_qos: PodNetworkQos | None = None
    oom_score_adj: int | None = None
    oom_score_adj_spec: tuple[tuple[str, int], ...] | None = None
    core_sched_group: str | None = None
    core_sched_policy: str | None = None
    gpu_isolation: str | None = None
    evict_by: tuple[str, ...] | None = None
    evict_priority: int = 0
    evict_enabled: bool | None = None
    sub_priority: int | None = None
    cpu_burst: BurstSettings | None = None
    resctrl: PodResctrl | None = None
    memory_qos: MemorySettings | None = None
    blkio: tuple[Block, ...] | None = None

    def fault(self, key: str) -> str:
        """What is wrong with an annotation, "" when nothing is."""
        return next((text for name, text in self.faults if name == key), "")
