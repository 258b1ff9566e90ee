"""Which CPUs a reservation by amount stands for: the kubelet's topology packing. Pure. (spec/api 1.3, 3.2)"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordlet.model.cpuset import CpuSet
from koordlet.model.topology import Cpu, Topology


def pack(count: int, topology: Topology) -> CpuSet:
    """`count` of the online CPUs: whole sockets, whole NUMA nodes, whole cores, then single threads.

    At each level the unit with the fewest CPUs left comes first, of equal ones the lowest id. Empty when the machine
    has fewer CPUs: half a reservation would be a wrong one.
    """
    if not 0 < count <= len(topology.cpus):
        return CpuSet()
    left = list(topology.cpus)
    taken: list[int] = []
    levels: tuple[Callable[[Cpu], int], ...] = (lambda cpu: cpu.socket, lambda cpu: cpu.node, lambda cpu: cpu.core)
    for level in levels:
        size = _sizes(topology.cpus, level)
        for unit in _order(left, level):
            members = [cpu for cpu in left if level(cpu) == unit]
            if len(members) == size[unit] and len(members) <= count - len(taken):
                taken += (cpu.id for cpu in members)
                left = [cpu for cpu in left if level(cpu) != unit]
    for core in _order(left, levels[-1]):
        threads = sorted(cpu.id for cpu in left if cpu.core == core)
        taken += threads[: count - len(taken)]
    return CpuSet(taken)


def _order(left: list[Cpu], level: Callable[[Cpu], int]) -> list[int]:
    """Units with CPUs left, those of the emptiest socket first, then the emptiest unit, then the lowest id."""
    sockets, sizes = _sizes(left, lambda cpu: cpu.socket), _sizes(left, level)
    socket_of = {level(cpu): cpu.socket for cpu in reversed(left)}
    return sorted(sizes, key=lambda unit: (sockets[socket_of[unit]], socket_of[unit], sizes[unit], unit))


def _sizes(cpus: Iterable[Cpu], level: Callable[[Cpu], int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for cpu in cpus:
        found[level(cpu)] = found.get(level(cpu), 0) + 1
    return found
