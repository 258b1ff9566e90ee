"""Who of the declared workloads holds which CPUs, from one moment to the next. Pure.

What is held is never moved: not by a newcomer, not by a better fit (`defragment` plans that, on request). CPUs that
went offline stay booked for their owner and come back with it; an owner of whom no CPU is left is placed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from koordlet.decide.pinning.allocate import NodeRules, Wish, allocate
from koordlet.decide.pinning.machine import Machine, machine
from koordlet.decide.pinning.numa import CPU, MEMORY, Amounts
from koordlet.decide.pinning.take import NotEnoughError
from koordlet.model.pinning import Allocation, PinRequest
from koordlet.model.pod import Pod
from koordlet.model.view import NodeInfo


@dataclass(frozen=True, slots=True)
class Assigned:
    """pods: with their CPUs in `cpuset`. held: by uid. refused: one line per workload that got none though it asked."""

    pods: tuple[Pod, ...]
    held: Mapping[str, Allocation]
    refused: tuple[str, ...] = ()


def assign(
    pods: Iterable[Pod],
    held: Mapping[str, Allocation],
    node: NodeInfo,
    others: Iterable[Pod] = (),
) -> Assigned:
    """Places the declared workloads among `pods`. others: pods that somebody else pinned. Needs `node.topology`.

    A gone or finished workload releases its CPUs; only call this with a list of workloads that is known to be whole.
    """
    pods = tuple(pods)
    if node.topology is None:
        return Assigned(pods, held)
    known = machine(node.topology)
    live = {pod.uid: pod for pod in pods if pod.active}
    kept = {uid: pin for uid, pin in held.items() if uid in live and pin.cpus & known.cpus}
    rules = rules_of(node, known, others)
    refused: list[str] = []
    for pod in sorted(live.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        if pod.uid in kept or pod.pin is None:
            continue
        try:
            made = allocate(wish_of(pod, pod.pin), kept, rules, known)
        except NotEnoughError as error:
            refused.append(f"workload {pod.key}: no CPUs of its own: {error}")
            continue
        if made is not None:
            kept[pod.uid] = made
    return Assigned(tuple(_with_cpus(pod, kept.get(pod.uid), known) for pod in pods), kept, tuple(refused))


def _with_cpus(pod: Pod, held: Allocation | None, known: Machine) -> Pod:
    return pod if held is None else replace(pod, cpuset=held.cpus & known.cpus)


def wish_of(pod: Pod, pin: PinRequest) -> Wish:
    """Requests, each copied from its limit where only that is set, as Kubernetes does."""
    cpu_mcpu = memory_bytes = 0
    for container in pod.containers:
        asked, limits = container.requests, container.limits
        cpu_mcpu += (limits.cpu_mcpu if asked.cpu_mcpu is None else asked.cpu_mcpu) or 0
        memory_bytes += (limits.memory_bytes if asked.memory_bytes is None else asked.memory_bytes) or 0
    return Wish(pod.qos, pod.priority_class, max(cpu_mcpu, 0), max(memory_bytes, 0), pin)


def rules_of(node: NodeInfo, known: Machine, others: Iterable[Pod]) -> NodeRules:
    reserved = node.reserved_cpus | node.system_qos_cpus | node.exclusive.cpus
    for pod in others:
        if pod.active and pod.cpuset:
            reserved |= pod.cpuset
    return NodeRules(node=node.pinning, reserved=reserved & known.cpus, numa_totals=_totals(node, known))


def _totals(node: NodeInfo, known: Machine) -> dict[int, Amounts]:
    """Resources per NUMA node; memory only where its size is known. A node without CPUs holds nobody's CPUs."""
    sizes = {numa.id: numa.memory_bytes for numa in node.topology.nodes} if node.topology is not None else {}
    totals: dict[int, Amounts] = {}
    for number, cpus in known.nodes.items():
        totals[number] = {CPU: 1000 * len(cpus)}
        size = sizes.get(number)
        if size is not None:
            totals[number][MEMORY] = size
    return totals
