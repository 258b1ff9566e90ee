"""Machines for allocator tests."""

from __future__ import annotations

from koordlet.model.cpuset import CpuSet
from koordlet.model.topology import Cpu, NumaNode, Topology


def topology(sockets: int, nodes_per_socket: int, cores_per_node: int, threads: int) -> Topology:
    """Cores are numbered node by node; the second threads follow after all the first ones, as on x86."""
    count = sockets * nodes_per_socket * cores_per_node
    cpus = [
        Cpu(core + thread * count, core, core // (count // sockets), core // cores_per_node)
        for thread in range(threads)
        for core in range(count)
    ]
    cpus.sort(key=lambda cpu: (cpu.node, cpu.socket, cpu.core, cpu.id))
    nodes = {cpu.node for cpu in cpus}
    return Topology(
        tuple(cpus), tuple(NumaNode(node, CpuSet(c.id for c in cpus if c.node == node), 16 << 30) for node in nodes)
    )


H16 = topology(2, 1, 4, 2)
