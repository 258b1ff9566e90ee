"""`NodeView`: everything a strategy may know at one moment, and `Outcome`: everything it may answer. Pure.

Every reading carries when it was taken, on the monotonic clock. None is "no such reading", never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Generic, TypeVar

from koordlet.model.blkio import BlockDevices
from koordlet.model.cpuset import CpuSet
from koordlet.model.effect import Effect
from koordlet.model.eviction import Eviction
from koordlet.model.hardware import Hardware
from koordlet.model.knob import Decision
from koordlet.model.pinning import NOBODY, Exclusive, NodePinning, PinOptions
from koordlet.model.pod import HostApp, Pod, PodSet, Tree
from koordlet.model.podevent import Device
from koordlet.model.resources import Resources
from koordlet.model.slo import NodeSlo
from koordlet.model.support import Support
from koordlet.model.topology import Topology


@dataclass(frozen=True, slots=True)
class Reading:
    """One value and the monotonic second at which it was taken."""

    value: float
    at_s: float

    def age_s(self, now_s: float) -> float:
        return now_s - self.at_s


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals of one pass. CPU in milli-CPU over the last interval, memory in bytes without page cache.

    pods/nonbe_pods: sums over known pods; hosts/nonbe_hosts: over host applications; be: the BE roots' own
    counters. system = max(0, node - pods - hosts), not yet raised to the reservation.
    surge: non-BE usage as the sentinel saw it over its short window. ls_pressure: share of time in which
    something of the LS groups waited for a CPU, in permyriad, over the same window. memory_pressure: share in which
    something of the node waited for memory, as the sentinel saw it while it watched memory.
    throttled_containers: cgroups of those throttled since the last pass, None where nobody asked for it.
    """

    node_mcpu: Reading | None = None
    pods_mcpu: Reading | None = None
    nonbe_pods_mcpu: Reading | None = None
    hosts_mcpu: Reading | None = None
    nonbe_hosts_mcpu: Reading | None = None
    be_mcpu: Reading | None = None
    system_mcpu: Reading | None = None
    node_memory_bytes: Reading | None = None
    pods_memory_bytes: Reading | None = None
    be_memory_bytes: Reading | None = None
    system_memory_bytes: Reading | None = None
    surge_mcpu: Reading | None = None
    ls_pressure_permyriad: Reading | None = None
    throttled_containers: tuple[str, ...] | None = None
    memory_pressure_permyriad: Reading | None = None

    def readings(self) -> Iterator[tuple[str, Reading | None]]:
        """Every reading with its field's name; `throttled_containers` is none."""
        for column in fields(self):
            if column.name != "throttled_containers":
                yield column.name, getattr(self, column.name)


@dataclass(frozen=True, slots=True)
class WorkloadUsage:
    """Latest figures of a pod, a container (container name set) or a host application (pod None).

    cpu_mcpu over the last interval; memory_bytes without page cache; memory_raw_bytes as the kernel counts it;
    throttled: share of periods throttled 0..1, None where no quota is set. file_bytes: page cache.
    """

    name: str
    cgroup: str
    pod: Pod | None = None
    container: str = ""
    cpu_mcpu: Reading | None = None
    memory_bytes: Reading | None = None
    memory_raw_bytes: Reading | None = None
    throttled: Reading | None = None
    file_bytes: Reading | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Facts about the node. capacity: from the Node object, else the online CPUs / MemTotal.

    allocatable: what the Node object offers, batch and mid included; None is "not said". raw_allocatable: the same
    before the control plane amplified it, where an annotation tells.
    reserved_mcpu: max(capacity - allocatable, annotation reservation). reserved_cpus: explicit list of that
    annotation; reservation_mcpu: its CPU quantity when it has no such list, else 0. system_qos_cpus: exclusive
    System-QoS CPUs; system_cpuset: those of System-QoS pods, exclusive or not. kubelet_policy: "none" or "static"; None
    when the annotation is malformed (then container-level rules skip their round). cpu_normalization_ratio: of that
    annotation, None when absent. cgroup_v2: the unified hierarchy. rdma: (PCI address, device node) of RDMA functions,
    and ("", the connection manager).
    """

    name: str = ""
    capacity_mcpu: int | None = None
    capacity_bytes: int | None = None
    reserved_mcpu: int = 0
    reserved_cpus: CpuSet = field(default_factory=CpuSet)
    system_qos_cpus: CpuSet = field(default_factory=CpuSet)
    kubelet_policy: str | None = "none"
    allocatable: Resources = field(default_factory=Resources)
    raw_allocatable: Resources = field(default_factory=Resources)
    topology: Topology | None = None
    reservation_mcpu: int = 0
    pinning: NodePinning = field(default_factory=NodePinning)
    exclusive: Exclusive = NOBODY
    irqs: tuple[tuple[int, CpuSet], ...] = ()
    system_cpuset: CpuSet = field(default_factory=CpuSet)
    cpu_normalization_ratio: float | None = None
    cgroup_v2: bool = False
    rdma: tuple[tuple[str, Device], ...] = ()


@dataclass(frozen=True, slots=True)
class BeRoot:
    """Top of one best-effort subtree: `kubepods/besteffort`, or a declared cgroup of our own.

    levels: existing directories at depth 0 (the root itself), 1 (pods) and 2 (containers), relative paths.
    quota_us/period_us/cpuset/shares/idle: what the kernel files said at the last read (cpuset: effective list
    on v2), None where unreadable or unsupported. request_mcpu: sum of batch-cpu requests below it.
    child_quotas: (path, us) of the groups below that have a quota, where the kernel refuses a smaller one on the
    root (v1); () elsewhere.
    """

    path: str
    tree: Tree
    levels: tuple[tuple[str, ...], ...] = ()
    request_mcpu: int = 0
    quota_us: int | None = None
    period_us: int | None = None
    cpuset: CpuSet | None = None
    shares: int | None = None
    idle: int | None = None
    child_quotas: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeView:
    """interval_s: the collect interval, the unit in which ages are judged. workloads: by cgroup path, every pod,
    container and host application of this pass; made on first use, so look only when the totals give reason to.
    root_usage: the same of the best-effort roots. evictions: by pod uid, what became of the evictions asked for.
    blocks: disks that policy and pods name. wall_s: wall clock, for the age of pods."""

    now_s: float
    interval_s: float = 1.0
    node: NodeInfo = field(default_factory=NodeInfo)
    usage: Usage = field(default_factory=Usage)
    pods: PodSet = field(default_factory=PodSet)
    host_apps: tuple[HostApp, ...] = ()
    be_roots: tuple[BeRoot, ...] = ()
    support: Support = field(default_factory=Support)
    hardware: Hardware = field(default_factory=Hardware)
    workloads: Mapping[str, WorkloadUsage] = field(default_factory=dict)
    root_usage: Mapping[str, WorkloadUsage] = field(default_factory=dict)
    evictions: Mapping[str, Eviction] = field(default_factory=dict)
    blocks: BlockDevices = field(default_factory=BlockDevices)
    wall_s: float = 0.0

    @property
    def online(self) -> CpuSet:
        """CPUs that are, none while the topology is unknown."""
        return self.node.topology.online if self.node.topology is not None else CpuSet()

    def facts(self) -> tuple[object, ...]:
        """What is there, without how much it uses: equal in most ticks, and then made of the same objects."""
        return (
            self.pods.revision,
            self.pods.at_s is None,
            self.node,
            self.support,
            self.be_roots,
            self.host_apps,
            self.blocks,
            self.hardware.resctrl,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """slo: None before any NodeSLO or policy file was seen. gates: names of the enabled feature gates.

    identity: give BE groups their identity at all. idle_on_be_pods: cpu.idle on BE pods of a kubelet's tree, beside
    one at work (kubelet) only while hooked.
    floor_percent: safe floor for stale data when the NodeSLO names none. unset_cpu_quota: pods with CPUs of their own
    run without quota. hami_library: the library that shares a GPU. hooked: a runtime asks us before it makes a
    container.
    memory_ladder: throttle best effort's memory before evicting. memory_watch: look at memory between ticks.
    *_cool_s: pause after an eviction. evict_min_age_s: younger pods are spared. pods_fresh_s: nothing is evicted on a
    pod list older than that. resctrl_monitor: pods get monitoring groups.
    resctrl_dynamic: best effort's cache and bandwidth shrink while an online workload is over its baseline.
    amd_bandwidth_units: eighths of GB/s that 100 % of memory bandwidth are on AMD.
    """

    slo: NodeSlo | None = None
    gates: frozenset[str] = frozenset()
    identity: bool = True
    idle_on_be_pods: bool = False
    floor_percent: int = 10
    pinning: PinOptions = field(default_factory=PinOptions)
    unset_cpu_quota: bool = True
    hami_library: str = "/usr/local/vgpu/libvgpu.so"
    hooked: bool = False
    kubelet: bool = False
    cpu_evict_cool_s: float = 20.0
    memory_evict_cool_s: float = 4.0
    evict_min_age_s: float = 0.0
    pods_fresh_s: float = 30.0
    resctrl_monitor: bool = False
    resctrl_dynamic: bool = False
    amd_bandwidth_units: int = 160
    memory_ladder: bool = False
    memory_watch: bool = True


@dataclass(frozen=True, slots=True)
class SurgePlan:
    """When the sentinel must wake us before the next tick.

    nonbe_mcpu: non-BE usage above which the present allowance is too large; None switches the watch off.
    pressure_permyriad: LS pressure above which to look at once; None where there is no such signal.
    memory_used_bytes, memory_pressure_permyriad: the same for the node's memory.
    """

    nonbe_mcpu: int | None = None
    pressure_permyriad: int | None = None
    memory_used_bytes: int | None = None
    memory_pressure_permyriad: int | None = None

    def beside(self, other: SurgePlan) -> SurgePlan:
        """Both plans in one; each names what the other leaves out."""

        def first(one: int | None, two: int | None) -> int | None:
            return two if one is None else one

        return SurgePlan(
            first(self.nonbe_mcpu, other.nonbe_mcpu),
            first(self.pressure_permyriad, other.pressure_permyriad),
            first(self.memory_used_bytes, other.memory_used_bytes),
            first(self.memory_pressure_permyriad, other.memory_pressure_permyriad),
        )


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[S]):
    """A strategy's answer. decisions: all that it wants now; what it wanted before and no longer names is
    restored by act. gauges: (metric name without prefix, label pairs, value). notes: one-line faults, each
    logged once per minute at most. plan: when to be asked again before the next tick. effects: all that it wants now
    and that is no knob. until_s: the answer stays the same until then, or until something of `NodeView.facts` or the
    policy changes; 0: ask in every tick."""

    decisions: tuple[Decision, ...]
    state: S
    gauges: tuple[tuple[str, tuple[tuple[str, str], ...], float], ...] = ()
    notes: tuple[str, ...] = ()
    plan: SurgePlan | None = None
    effects: tuple[Effect, ...] = ()
    until_s: float = 0.0
