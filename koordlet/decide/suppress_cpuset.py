"""Suppress policy `cpuset`: from the target to a number of CPUs and the directories that get them. Pure. (spec 3.3)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordlet.decide import slew
from koordlet.decide.pools import STATIC, kubelet_cpus, withheld
from koordlet.decide.slew import Ramp
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import Qos
from koordlet.model.topology import Topology
from koordlet.model.view import BeRoot, NodeView
from koordlet.model.why import Why

MIN_CPUS: Final = 2
CONTAINER: Final = 2


@dataclass(frozen=True, slots=True)
class Pools:
    """What pods, reservations and topology leave to BE; derived once per change of these (key).

    lsr: CPUs of LSR pods, shared proportionally. ls: the rest that BE may use; neither holds LSE, reserved or
    exclusive System-QoS CPUs, nor what the kubelet's static policy gave to pods. full: the whole BE set (spec 3.5),
    kubelet's CPUs included. parents: of root and pods under a static kubelet, which must not be narrower than what it
    writes below them. pinned: last valid cpuset per pod uid. allocations: own CPUs of BE pods by cgroup.
    """

    key: tuple[object, ...]
    topology: Topology
    lsr: CpuSet
    ls: CpuSet
    full: CpuSet
    parents: CpuSet
    online: int
    threads_per_core: int
    pinned: dict[str, tuple[Qos | None, CpuSet]] = field(default_factory=dict)
    allocations: dict[str, CpuSet] = field(default_factory=dict)


def pools_of(view: NodeView, topology: Topology, before: Pools | None) -> Pools:
    """The pools of this view; `before` itself while nothing that they are made of has changed."""
    node = view.node
    kept = (node.reserved_cpus, node.reservation_mcpu, node.system_qos_cpus, node.exclusive)
    key = (view.pods.revision, topology, *kept)
    if before is not None and before.key == key:
        return before
    pinned: dict[str, tuple[Qos | None, CpuSet]] = {}
    allocations: dict[str, CpuSet] = {}
    for pod in view.pods.pods:
        cpus = _pinned_cpus(pod, before)
        if cpus:
            pinned[pod.uid] = (pod.qos, cpus)
            if pod.is_be:
                allocations[pod.cgroup] = cpus
    lse, lsr = _owned(pinned, Qos.LSE), _owned(pinned, Qos.LSR)
    full = topology.online - withheld(node, topology) - lse
    usable = full - kubelet_cpus(view.pods.pods, node.exclusive)
    siblings = topology.siblings()
    return Pools(
        key=key,
        topology=topology,
        lsr=usable & lsr,
        ls=usable - lsr,
        full=full,
        parents=full if node.cgroup_v2 else topology.online,
        online=len(topology.cpus),
        threads_per_core=max((len(threads) for threads in siblings.values()), default=1),
        pinned=pinned,
        allocations=allocations,
    )


def _pinned_cpus(pod: Pod, before: Pools | None) -> CpuSet | None:
    """CPUs of a pod that still runs; a finished one releases them.

    A resource-status that became unreadable leaves the last valid one in force: the pod must not look
    unpinned to its neighbours (case malformed-resource-status).
    """
    if not pod.active:
        return None
    if pod.cpuset_error and before is not None and pod.uid in before.pinned:
        return before.pinned[pod.uid][1]
    return pod.cpuset


def _owned(pinned: dict[str, tuple[Qos | None, CpuSet]], qos: Qos) -> CpuSet:
    """Union over the pods of that raw class. A CPU of several classes: LSE before LSR before the rest, whatever
    the order of pods (the reference lets the last pod win)."""
    owned = CpuSet()
    for owner, cpus in pinned.values():
        if owner is qos:
            owned |= cpus
    return owned


def step(
    target_mcpu: int, old: int | None, pools: Pools, ramp: Ramp, may_grow: bool, now_s: float
) -> tuple[int, str, Ramp]:
    """The next number of CPUs, the name of the rule that set it, and the next ramp.

    0 only when BE may use no CPU at all. old: size of our own last set, else of the kernel's (None: unreadable).
    Demand counts against the CPUs that BE may use (F-04).
    """
    there = len(pools.lsr) + len(pools.ls)
    want = min(max(-(-target_mcpu // 1000), MIN_CPUS), there)
    limits = slew.Limits(
        step=-(-pools.online // slew.GROWTH_DIVISOR),
        band=max(MIN_CPUS, pools.threads_per_core, -(-pools.online // slew.BAND_DIVISOR)),
    )
    return slew.toward(want, old, limits, ramp, may_grow, now_s)


def kernel_size(roots: Sequence[BeRoot]) -> int | None:
    """CPUs of the narrowest BE root as the kernel has it, None while none is readable."""
    return min((len(root.cpuset) for root in roots if root.cpuset), default=None)


def placed(
    roots: Sequence[BeRoot], kubelet_policy: str, chosen: CpuSet, pools: Pools, why: Why, owner: str
) -> tuple[Decision, ...]:
    """One decision per directory.

    Policy none, and trees of our own: the same set on all levels. A kubelet with the static CPU manager
    fails to create containers under a narrowed parent, so there root and pods keep the full set and only
    containers get the chosen one. On v1 full means all CPUs: what the kubelet gives to a container knows nothing of
    LSE pods and reservations, and is refused where its parent has less. Containers of a BE pod with an allocation of
    its own keep what of it lies in the set.
    """
    decisions: list[Decision] = []
    for root in roots:
        static = kubelet_policy == STATIC and root.tree is Tree.KUBELET
        for depth, directory in directories(root):
            cpus = pools.parents if static and depth < CONTAINER else chosen
            own = pools.allocations.get(directory.rpartition("/")[0]) if depth == CONTAINER else None
            value = cpus if own is None else (own & cpus) or cpus
            decisions.append(Decision(directory, Knob.CPUSET, value, why, owner, hot=depth == 0))
    return tuple(decisions)


def directories(root: BeRoot) -> Iterator[tuple[int, str]]:
    """(depth, directory) of a best-effort subtree: the root, pods, containers (depth CONTAINER)."""
    for depth, level in enumerate(root.levels[: CONTAINER + 1] or ((root.path,),)):
        for directory in level:
            yield depth, directory
