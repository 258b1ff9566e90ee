"""Does a workload get CPUs of its own, and which (spec/ledger 3.2, the decision list). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordlet.decide.pinning.machine import Machine
from koordlet.decide.pinning.numa import CPU, MEMORY, Amounts, account, choose, split, zones
from koordlet.decide.pinning.take import Ask, NotEnoughError, take
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import (
    Allocation,
    BindPolicy,
    NodePinning,
    NumaExclusive,
    NumaPolicy,
    NumaStrategy,
    PinRequest,
)
from koordlet.model.qos import PriorityClass, Qos

BINDING = (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What the node says. numa_totals: node id -> resources, empty where unknown. reserved: CPUs that nobody gets."""

    node: NodePinning = field(default_factory=NodePinning)
    default_bind: BindPolicy = BindPolicy.FULL_PCPUS
    reserved: CpuSet = field(default_factory=CpuSet)
    numa_totals: Mapping[int, Amounts] = field(default_factory=dict)
    compat: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """One workload. cpu_mcpu: native CPU request, 0 when none (batch and mid work has none)."""

    qos: Qos | None
    priority: PriorityClass
    cpu_mcpu: int
    memory_bytes: int = 0
    pin: PinRequest = field(default_factory=PinRequest)


def bind_policy(wish: Wish, rules: NodeRules) -> tuple[BindPolicy | None, bool]:
    """(policy, required); None when the workload gets no CPUs of its own. Raises NotEnoughError for a conflict."""
    wanted: BindPolicy | None = None
    required = False
    if wish.qos in (Qos.LSE, Qos.LSR) and wish.priority is PriorityClass.PROD:
        wanted = rules.default_bind if wish.pin.bind is BindPolicy.DEFAULT else wish.pin.bind
        required = wish.pin.required
    if rules.node.bind is not None and wish.cpu_mcpu > 0:
        if required and wanted is not rules.node.bind:
            raise NotEnoughError(f"{wanted} is required, the node has {rules.node.bind.value}")
        wanted, required = rules.node.bind, True
    if wanted not in BINDING or wish.cpu_mcpu <= 0:
        return None, False
    return wanted, required


def allocate(wish: Wish, held: Mapping[str, Allocation], rules: NodeRules, machine: Machine) -> Allocation | None:
    """CPUs for one workload beside those already held; None when it shares. Raises NotEnoughError with the reason."""
    bind, required = bind_policy(wish, rules)
    policy = rules.node.numa if wish.pin.numa is NumaPolicy.NONE else wish.pin.numa
    if NumaPolicy.NONE not in (rules.node.numa, wish.pin.numa) and rules.node.numa is not wish.pin.numa:
        raise NotEnoughError(f"asks for NUMA policy {wish.pin.numa.value}, the node has {rules.node.numa.value}")
    if bind is None:
        return None
    if wish.cpu_mcpu % 1000:
        raise NotEnoughError("the requested CPUs must be integer")
    if required and bind is BindPolicy.FULL_PCPUS and wish.cpu_mcpu // 1000 % machine.threads_per_core:
        raise NotEnoughError("requested cpus not multiple cpus per core")
    need = wish.cpu_mcpu // 1000
    free = machine.cpus - rules.reserved - _union(held)
    if required:
        free = _usable(bind, free, machine)
    ask = Ask(need, bind, wish.pin.exclusive, rules.node.strategy, rules.compat)
    made = None
    if policy is not NumaPolicy.NONE:
        made = _aligned(ask, wish, policy, required, free, held, rules, machine)
    if made is None:
        made = Allocation(_spread_or_take(ask, free, held, machine), bind, wish.pin.exclusive)
    if required and not _holds(bind, made.cpus, machine):
        raise NotEnoughError(f"no {need} free CPUs satisfy {bind.value}")
    return made


def _aligned(
    ask: Ask,
    wish: Wish,
    policy: NumaPolicy,
    required: bool,
    free: CpuSet,
    held: Mapping[str, Allocation],
    rules: NodeRules,
    machine: Machine,
) -> Allocation | None:
    """CPUs node by node; None when best effort finds no nodes."""
    sitting = [item if rules.compat else account(item, machine.node_of) for item in held.values()]
    totals = {node: _unreserved(amounts, node, rules, machine) for node, amounts in rules.numa_totals.items()}
    request: Amounts = {CPU: wish.cpu_mcpu}
    if wish.memory_bytes:
        request[MEMORY] = wish.memory_bytes
    exclusive = wish.pin.numa_exclusive
    if exclusive is NumaExclusive.NONE and wish.pin.numa is not NumaPolicy.NONE:
        exclusive = NumaExclusive.REQUIRED
    known = zones(totals, sitting)
    nodes = choose(request, known, policy, exclusive, ask.strategy)
    if nodes is None:
        return None
    whole = required and ask.bind is BindPolicy.FULL_PCPUS
    shares = split(request, nodes, known, 1000 * (machine.threads_per_core if whole else 1))
    cpus = CpuSet()
    for share in shares:
        part = Ask((share.cpu_mcpu or 0) // 1000, ask.bind, ask.exclusive, ask.strategy, ask.compat)
        cpus |= take(part, free & machine.nodes.get(share.node, CpuSet()), held.values(), machine)
    return Allocation(cpus, ask.bind, ask.exclusive, shares)


def _unreserved(amounts: Amounts, node: int, rules: NodeRules, machine: Machine) -> Amounts:
    reserved_mcpu = 1000 * len(rules.reserved & machine.nodes.get(node, CpuSet()))
    return {name: max(0, amount - reserved_mcpu) if name == CPU else amount for name, amount in amounts.items()}


def _spread_or_take(ask: Ask, free: CpuSet, held: Mapping[str, Allocation], machine: Machine) -> CpuSet:
    """As the strategy says; evenly over the NUMA nodes where that is asked (koord-scheduler takes it as Least)."""
    if ask.strategy is not NumaStrategy.DISTRIBUTE_EVENLY or ask.compat or len(machine.nodes) < 2:
        return take(ask, free, held.values(), machine)
    step = machine.threads_per_core if ask.bind is BindPolicy.FULL_PCPUS else 1
    room = {node: len(free & cpus) for node, cpus in machine.nodes.items()}
    if ask.need > sum(room.values()):
        raise NotEnoughError(f"{ask.need} CPUs asked for, {sum(room.values())} free")
    given = dict.fromkeys(room, 0)
    left = ask.need
    while left:
        # one core more to the node that has got least so far, of those the one with most left
        node = min((node for node in room if given[node] < room[node]), key=lambda n: (given[n], given[n] - room[n], n))
        part = min(step, left, room[node] - given[node])
        given[node] += part
        left -= part
    cpus = CpuSet()
    for node, count in given.items():
        part_ask = Ask(count, ask.bind, ask.exclusive, ask.strategy)
        cpus |= take(part_ask, free & machine.nodes[node], held.values(), machine)
    return cpus


def _union(held: Mapping[str, Allocation]) -> CpuSet:
    cpus = CpuSet()
    for allocation in held.values():
        cpus |= allocation.cpus
    return cpus


def _usable(bind: BindPolicy, free: CpuSet, machine: Machine) -> CpuSet:
    """What a required policy may use at all: wholly free cores, or the lowest free CPU of each core."""
    cores = [threads & free for threads in machine.cores.values() if threads & free]
    if bind is BindPolicy.FULL_PCPUS:
        return CpuSet(cpu for threads in machine.cores.values() if threads <= free for cpu in threads)
    return CpuSet(next(iter(threads)) for threads in cores)


def _holds(bind: BindPolicy, cpus: CpuSet, machine: Machine) -> bool:
    touched = [threads & cpus for threads in machine.cores.values() if threads & cpus]
    if bind is BindPolicy.FULL_PCPUS:
        return all(threads <= cpus for threads in machine.cores.values() if threads & cpus)
    return all(len(threads) == 1 for threads in touched)
