"""What goes beyond the CPU list of a workload with CPUs of its own: memory, cpuset partitions, interrupts. Pure.

All of them are options and off by default: each takes something from others, or from whoever else sets it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import SYSTEM, Decision, Knob
from koordlet.model.pinning import MemsMode, Partition
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import Qos
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo, NodeView, Outcome, Policy
from koordlet.model.why import stages

NAME: Final = "pinning"


@dataclass(frozen=True, slots=True)
class State:
    """key: what the last answer was made from. irqs: an interrupt's own CPUs, from before we moved it, and what we
    asked for."""

    key: tuple[object, ...] = ()
    decisions: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()
    irqs: Mapping[int, tuple[CpuSet, CpuSet]] = field(default_factory=dict)


class Isolation:
    """Strategy `pinning`."""

    name = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        key = (view.pods.revision, policy.pinning, view.node)
        if key != state.key:
            state = _anew(view, policy, state, key)
        return Outcome(state.decisions, state, notes=state.notes, until_s=0.0 if state.notes else math.inf)


ISOLATION: Final = Isolation()


def _anew(view: NodeView, policy: Policy, state: State, key: tuple[object, ...]) -> State:
    options, topology = policy.pinning, view.node.topology
    decisions: list[Decision] = []
    notes: list[str] = []
    irqs: dict[int, tuple[CpuSet, CpuSet]] = {}
    if topology is not None:
        owners = [pod for pod in view.pods.pods if pod.active and pod.cpuset and pod.qos is not Qos.BE]
        lse = [pod for pod in owners if pod.qos is Qos.LSE]
        if options.mems is not MemsMode.KEEP:
            for pod in owners:
                decisions += _mems(pod, topology, options.mems)
            if options.balancing_off and decisions:
                # It would unmap pages of the whole node to see who touches them, though they cannot move any more.
                why = stages(bound=len({decision.target for decision in decisions}))
                decisions.append(Decision(SYSTEM, Knob.NUMA_BALANCING, 0, why, NAME))
        if options.partition is not Partition.MEMBER:
            for pod in lse:
                decisions += _partition(pod, options.partition, notes)
        if options.irq and lse:
            irqs = _irqs(view.node, lse, topology.online, state.irqs)
            why = stages(lse_cpus=str(_cpus(lse)))
            decisions += [
                Decision(str(number), Knob.IRQ_AFFINITY, asked, why, NAME)
                for number, (own, asked) in irqs.items()
                if own != asked
            ]
    made = tuple(decisions)
    return State(key, state.decisions if made == state.decisions else made, tuple(notes), irqs)


def _cpus(pods: list[Pod]) -> CpuSet:
    cpus = CpuSet()
    for pod in pods:
        cpus |= pod.cpuset or CpuSet()
    return cpus


def _mems(pod: Pod, topology: Topology, mode: MemsMode) -> list[Decision]:
    """NUMA nodes of the pod's CPUs that have memory; where none has (CPUs without memory), nothing is bound."""
    cpus = pod.cpuset or CpuSet()
    nodes = CpuSet(node.id for node in topology.nodes if node.cpus & cpus and node.memory_bytes != 0)
    if not nodes:
        return []
    why = stages(own_cpus=str(cpus), numa_nodes=str(nodes), mode=mode.value)
    # In a kubelet's tree the pod's directory is the kubelet's, and the list there must hold all containers' nodes.
    targets = [pod.cgroup] if pod.tree is Tree.OURS else [item.cgroup for item in pod.containers if item.cgroup]
    found = []
    for target in targets:
        if mode is MemsMode.MIGRATE:
            found.append(Decision(target, Knob.CPUSET_MIGRATE, 1, why, NAME))
        found.append(Decision(target, Knob.CPUSET_MEMS, nodes, why, NAME))
    return found


def _partition(pod: Pod, kind: Partition, notes: list[str]) -> list[Decision]:
    """Only for a declared group at the top: a partition's parent has to be one itself."""
    if pod.tree is not Tree.OURS or "/" in pod.cgroup:
        notes.append(f"{pod.key}: no cpuset partition: {pod.cgroup} is not a declared top-level cgroup")
        return []
    why = stages(own_cpus=str(pod.cpuset), partition=kind.value)
    return [Decision(pod.cgroup, Knob.CPUSET_PARTITION, tuple(Partition).index(kind), why, NAME)]


def _irqs(
    node: NodeInfo, lse: list[Pod], online: CpuSet, before: Mapping[int, tuple[CpuSet, CpuSet]]
) -> dict[int, tuple[CpuSet, CpuSet]]:
    """Own CPUs and wish of each interrupt that touches an LSE CPU. One whose list is neither what we asked for nor its
    own was moved by somebody else (irqbalance): that is its own list now."""
    taken = _cpus(lse)
    others = online - taken
    found: dict[int, tuple[CpuSet, CpuSet]] = {}
    for number, now in node.irqs:
        own, asked = before.get(number, (now, now))
        if now not in (own, asked):
            own = now
        if own & taken and others:
            found[number] = (own, own - taken or others)
    return found
