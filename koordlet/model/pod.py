"""Workloads as the agent sees them, whatever their source. Pure.

A kubelet's pod, a locally declared workload and (later) a sandbox that the runtime synchronised
all become a `Pod`, so every loop has one code path. Annotations come from strangers: sources
validate them and hand over parsed values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import PinRequest
from koordlet.model.qos import (
    KubeQos,
    PriorityClass,
    Qos,
    default_priority_class,
    default_qos,
    priority_value,
    raw_priority_class,
)
from koordlet.model.resources import Resources as Resources
from koordlet.model.settings import PodSettings


class Tree(StrEnum):
    """Who else writes to a workload's cgroup tree (design.md 4, identity table)."""

    KUBELET = "kubelet"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Container:
    """id: full runtime id ("containerd://...") or "" before the runtime named it.

    cgroup: path relative to the hierarchy root, "" while unknown. sidecar: an init container that keeps running.
    """

    name: str
    id: str = ""
    cgroup: str = ""
    running: bool = False
    requests: Resources = field(default_factory=Resources)
    limits: Resources = field(default_factory=Resources)
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """uid: key of metrics and rings (a static pod's config hash). cgroup: relative pod directory.

    cpuset: CPUs of annotation resource-status, None when absent or malformed (cpuset_error tells).
    pin: how a declared workload wants CPUs of its own, None for a pod that a scheduler places.
    host_network, ips: where its packets come from; () while it has no address.
    terminating: somebody has asked for its end. created_at_s: wall clock, None where the source does not know.
    static: from a file of the kubelet, which starts it again whoever ends it.
    request: what the scheduler counts for the pod: init containers, pod-level resources and overhead included.
    sandbox_cgroup: directory of the pause process, "" while unknown.
    claims: (volume, claim that it comes from) of volumes whose I/O the pod limits.
    """

    uid: str
    namespace: str
    name: str
    cgroup: str
    kube_qos: KubeQos
    tree: Tree = Tree.KUBELET
    phase: str = "Running"
    qos: Qos | None = None
    priority: int | None = None
    priority_label: str | None = None
    containers: tuple[Container, ...] = ()
    cpuset: CpuSet | None = None
    cpuset_error: str = ""
    pin: PinRequest | None = None
    settings: PodSettings = field(default_factory=PodSettings)
    host_network: bool = False
    ips: tuple[str, ...] = ()
    terminating: bool = False
    static: bool = False
    created_at_s: float | None = None
    request: Resources = field(default_factory=Resources)
    sandbox_cgroup: str = ""
    claims: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`, how people name it."""
        return f"{self.namespace}/{self.name}"

    @property
    def active(self) -> bool:
        return self.phase in ("Pending", "Running")

    @property
    def default_qos(self) -> Qos:
        return default_qos(self.qos, self.kube_qos)

    @property
    def is_be(self) -> bool:
        """Best effort for suppress and accounting: raw label BE or Kubernetes BestEffort."""
        return self.qos is Qos.BE or self.kube_qos is KubeQos.BESTEFFORT

    @property
    def priority_class(self) -> PriorityClass:
        return default_priority_class(raw_priority_class(self.priority_label, self.priority), self.default_qos)

    @property
    def priority_value(self) -> int:
        return priority_value(self.priority, self.priority_class)

    def directory(self, container: Container) -> str:
        """Where a container's values are: a declared workload's only container is the workload's own cgroup. "" while
        unknown."""
        return container.cgroup or (self.cgroup if self.tree is Tree.OURS and len(self.containers) == 1 else "")

    @property
    def batch_request_mcpu(self) -> int:
        """Sum of batch-cpu requests over the containers, negatives as 0."""
        return sum(max(c.requests.batch_cpu_mcpu or 0, 0) for c in self.containers)


NO_CLAIM: Final = float("inf")


@dataclass(frozen=True, slots=True)
class PodSet:
    """Known workloads. at_s: monotonic time of the last good answer, None before the first; NO_CLAIM from a source that
    never says that these are all.

    revision grows whenever the content changed, so consumers can keep derived tables.
    """

    pods: tuple[Pod, ...] = ()
    revision: int = 0
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class HostApp:
    """A host application of NodeSLO.spec.hostApplications. is_be: qos BE and base KubepodsBesteffort."""

    name: str
    cgroup: str
    qos: Qos | None = None
    priority_class: str = ""
    is_be: bool = False
