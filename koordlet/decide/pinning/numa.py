"""NUMA alignment (spec/ledger 3.2): which nodes a workload spans and how much it gets on each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from koordlet.decide.pinning.take import NotEnoughError
from koordlet.model.pinning import Allocation, NumaExclusive, NumaPolicy, NumaShare, NumaStrategy

CPU = "cpu"
MEMORY = "memory"
Amounts = dict[str, int]
"""Resource name -> milli-CPU or bytes; a resource that is not named is not accounted per node."""


@dataclass(frozen=True, slots=True)
class Zone:
    """One NUMA node: what it has, what is free of it, and who sits there.

    single/shared: a workload of this node alone, one of several nodes, has CPUs here.
    """

    total: Amounts
    free: Amounts
    single: bool = False
    shared: bool = False


def zones(totals: Mapping[int, Amounts], held: Iterable[Allocation]) -> dict[int, Zone]:
    """Zones by node id. Only allocations with shares count here; see `account` for the rest."""
    used: dict[int, Amounts] = {node: {} for node in totals}
    single: set[int] = set()
    shared: set[int] = set()
    for allocation in held:
        nodes = {share.node for share in allocation.shares}
        (single if len(nodes) == 1 else shared).update(nodes)
        for share in allocation.shares:
            there = used.setdefault(share.node, {})
            there[CPU] = there.get(CPU, 0) + (share.cpu_mcpu or 0)
            there[MEMORY] = there.get(MEMORY, 0) + (share.memory_bytes or 0)
    return {
        node: Zone(
            dict(total),
            {name: max(0, amount - used[node].get(name, 0)) for name, amount in total.items()},
            node in single,
            node in shared,
        )
        for node, total in totals.items()
    }


def account(allocation: Allocation, node_of: Mapping[int, int]) -> Allocation:
    """An allocation with shares, made from its CPUs where it has none: koord-scheduler forgets those (ledger 8.9)."""
    if allocation.shares:
        return allocation
    counts: dict[int, int] = {}
    for cpu in allocation.cpus:
        if cpu in node_of:
            counts[node_of[cpu]] = counts.get(node_of[cpu], 0) + 1000
    shares = tuple(NumaShare(node, mcpu) for node, mcpu in sorted(counts.items()))
    return Allocation(allocation.cpus, allocation.bind, allocation.exclusive, shares)


def choose(
    request: Amounts,
    known: Mapping[int, Zone],
    policy: NumaPolicy,
    exclusive: NumaExclusive,
    strategy: NumaStrategy,
) -> tuple[int, ...] | None:
    """The narrowest set of nodes that satisfies the request; None when not aligned. Raises NotEnoughError.

    At equal width the set with the better score, then the lower one. Best effort falls back to no alignment.
    """
    if not any(zone.total for zone in known.values()):
        raise NotEnoughError("no NUMA node tells its resources")
    ids = sorted(known)
    widest = 1 if policy is NumaPolicy.SINGLE else len(ids)
    for width in range(1, widest + 1):
        fitting = [nodes for nodes in combinations(ids, width) if _fits(request, [known[node] for node in nodes])]
        if exclusive is NumaExclusive.REQUIRED:
            fitting = [nodes for nodes in fitting if not _clash(nodes, known)]
        if fitting:
            return min(
                fitting,
                key=lambda nodes: (
                    exclusive is NumaExclusive.PREFERRED and _clash(nodes, known),
                    -_score(request, [known[node] for node in nodes], strategy),
                    nodes,
                ),
            )
    if policy is NumaPolicy.BEST_EFFORT:
        return None
    raise NotEnoughError(f"no {'NUMA node' if widest == 1 else 'set of NUMA nodes'} satisfies {policy.value}")


def split(
    request: Amounts, nodes: tuple[int, ...], known: Mapping[int, Zone], cpu_step_mcpu: int
) -> tuple[NumaShare, ...]:
    """The request over the nodes, each at most its even part of what is left; the least available first.

    cpu_step_mcpu: CPUs are given in multiples of it, 1 where nothing is bound. Raises NotEnoughError for a remainder.
    """
    given: dict[int, Amounts] = {node: {} for node in nodes}
    for name, amount in request.items():
        there = [node for node in nodes if name in known[node].total]
        if not there:
            continue  # not accounted per node
        left = amount
        for place, node in enumerate(sorted(there, key=lambda node: (known[node].free[name], node))):
            step = cpu_step_mcpu if name == CPU else 1
            part = min(known[node].free[name], left // (len(there) - place))
            part -= part % step
            given[node][name] = part
            left -= part
        if left:
            raise NotEnoughError(f"Insufficient NUMA {name}")
    return tuple(
        NumaShare(node, amounts.get(CPU), amounts.get(MEMORY)) for node, amounts in sorted(given.items()) if amounts
    )


def _fits(request: Amounts, spanned: list[Zone]) -> bool:
    """Every requested resource that some node accounts for is free in sum."""
    return all(
        sum(zone.free.get(name, 0) for zone in spanned) >= amount
        for name, amount in request.items()
        if any(name in zone.total for zone in spanned)
    ) and any(name in zone.total for name in request for zone in spanned)


def _clash(nodes: tuple[int, ...], known: Mapping[int, Zone]) -> bool:
    """One-node work on a node of several-node work, or the other way round."""
    return any(known[node].shared if len(nodes) == 1 else known[node].single for node in nodes)


def _score(request: Amounts, spanned: list[Zone], strategy: NumaStrategy) -> int:
    """Mean percentage left free (used, under MostAllocated) after the request."""
    scores = []
    for name, amount in request.items():
        total = sum(zone.total.get(name, 0) for zone in spanned)
        if total:
            left = sum(zone.free.get(name, 0) for zone in spanned) - amount
            percent = max(left, 0) * 100 // total
            scores.append(100 - percent if strategy is NumaStrategy.MOST_ALLOCATED else percent)
    return sum(scores) // len(scores) if scores else 0
