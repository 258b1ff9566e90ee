"""The topology in the shape the allocator asks for, made once per topology. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from koordlet.model.cpuset import CpuSet
from koordlet.model.topology import Topology


@dataclass(frozen=True, slots=True)
class Machine:
    """cores/nodes/sockets: id -> CPUs; core_of/node_of/socket_of: CPU -> id. largest_*: CPUs of the largest unit.

    threads_per_core: of most cores, 2 on a machine where only some have SMT.
    """

    cores: dict[int, CpuSet]
    nodes: dict[int, CpuSet]
    sockets: dict[int, CpuSet]
    core_of: dict[int, int]
    node_of: dict[int, int]
    socket_of: dict[int, int]
    largest_node: int
    largest_socket: int
    threads_per_core: int

    @property
    def cpus(self) -> CpuSet:
        return CpuSet(self.core_of)


@lru_cache(maxsize=4)
def machine(topology: Topology) -> Machine:
    """Cached: topologies change only when a CPU is plugged."""
    cores: dict[int, list[int]] = defaultdict(list)
    nodes: dict[int, list[int]] = defaultdict(list)
    sockets: dict[int, list[int]] = defaultdict(list)
    for cpu in topology.cpus:
        cores[cpu.core].append(cpu.id)
        nodes[cpu.node].append(cpu.id)
        sockets[cpu.socket].append(cpu.id)
    return Machine(
        cores={core: CpuSet(cpus) for core, cpus in sorted(cores.items())},
        nodes={node: CpuSet(cpus) for node, cpus in sorted(nodes.items())},
        sockets={socket: CpuSet(cpus) for socket, cpus in sorted(sockets.items())},
        core_of={cpu.id: cpu.core for cpu in topology.cpus},
        node_of={cpu.id: cpu.node for cpu in topology.cpus},
        socket_of={cpu.id: cpu.socket for cpu in topology.cpus},
        largest_node=max((len(cpus) for cpus in nodes.values()), default=0),
        largest_socket=max((len(cpus) for cpus in sockets.values()), default=0),
        threads_per_core=max((len(cpus) for cpus in cores.values()), default=1),
    )
