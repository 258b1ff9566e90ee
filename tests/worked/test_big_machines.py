"""Allocation and pools on layouts of real machines (public descriptions), built as topologies."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.decide.pinning.allocate import NodeRules, Wish, allocate
from koordlet.decide.pinning.machine import machine
from koordlet.decide.pools import pool_cpus, share_pools
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.topology import read_topology
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import BindPolicy, NodePinning, NumaPolicy, NumaStrategy, PinRequest
from koordlet.model.qos import PriorityClass, Qos
from koordlet.model.topology import Cpu, NumaNode, Topology
from koordlet.model.view import NodeInfo
from tests.hosts.tree import HostTree, cpus, numa, proc
from tests.unit.decide.pinning.machines import topology


def hybrid() -> Topology:
    """A desktop part: 8 P cores with two threads (0-15), 16 E cores with one (16-31), one NUMA node."""
    cpus = [Cpu(cpu, cpu // 2, 0, 0) for cpu in range(16)] + [Cpu(cpu, cpu - 8, 0, 0) for cpu in range(16, 32)]
    return Topology(tuple(cpus), (NumaNode(0, CpuSet(range(32)), 32 << 30),))


def with_cxl() -> Topology:
    """Two sockets of 32 cores, and a memory-only node 2 behind a CXL port."""
    plain = topology(2, 1, 32, 2)
    return Topology(plain.cpus, (*plain.nodes, NumaNode(2, CpuSet(), 256 << 30)))


MACHINES = {
    "two sockets of 64 cores, 16 L3 groups": topology(2, 1, 64, 2),
    "SNC-4: two sockets, eight nodes of 14 cores": topology(2, 4, 14, 2),
    "four sockets of 64 cores: 512 CPUs": topology(4, 1, 64, 2),
    "hybrid": hybrid(),
    "CXL": with_cxl(),
}


def sockets(cpu: Cpu) -> int:
    return cpu.socket


def eights(cpu: Cpu) -> int:
    """A core complex: eight cores around one L3."""
    return cpu.core // 8


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_found_in_sysfs_as_it_is(tmp_path: Path, name: str) -> None:
    shape, l3_of = MACHINES[name], eights if "L3" in name else sockets
    system = {
        "cpu": cpus({cpu.id: (cpu.socket, cpu.core, l3_of(cpu)) for cpu in shape.cpus}),
        "node": numa({node.id: (str(node.cpus), (node.memory_bytes or 0) >> 10) for node in shape.nodes}),
    }
    layout = {"sys": {"devices": {"system": system}}, "proc": proc(range(1), 1 << 20)}
    found = read_topology(HostTree(tmp_path, CgroupVersion.V2, layout).host)
    assert [(cpu.id, cpu.core, cpu.socket, cpu.node, cpu.l3) for cpu in found.cpus] == [
        (cpu.id, cpu.core, cpu.socket, cpu.node, l3_of(cpu)) for cpu in shape.cpus
    ]
    assert found.nodes == shape.nodes
    assert len({cpu.l3 for cpu in found.cpus}) == (16 if "L3" in name else len({cpu.socket for cpu in shape.cpus}))


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_fills_up_and_its_pools_are_what_is_left(name: str) -> None:
    shape = MACHINES[name]
    known = machine(shape)
    totals = {node: {"cpu": 1000 * len(cpus)} for node, cpus in known.nodes.items()}
    rules = NodeRules(NodePinning(strategy=NumaStrategy.LEAST_ALLOCATED), numa_totals=totals)
    held = {}
    for number in range(len(known.nodes)):
        pin = PinRequest(BindPolicy.FULL_PCPUS, numa=NumaPolicy.SINGLE)
        made = allocate(Wish(Qos.LSR, PriorityClass.PROD, 8000, 0, pin), held, rules, known)
        assert made is not None
        assert len(made.cpus) == 8
        assert all(threads <= made.cpus for threads in known.cores.values() if threads & made.cpus)
        held[str(number)] = made
    assert len({share.node for pin in held.values() for share in pin.shares}) == len(known.nodes)  # the emptiest first
    free = shape.online - CpuSet(cpu for pin in held.values() for cpu in pin.cpus)
    pools = share_pools(shape, (), NodeInfo(topology=shape, reserved_cpus=shape.online - free))
    assert pool_cpus(pools.ls) == free
    rest = allocate(Wish(Qos.LSR, PriorityClass.PROD, 1000 * len(free)), held, rules, known)
    assert rest is not None
    assert rest.cpus == free


def test_on_a_hybrid_machine_whole_p_cores_come_first() -> None:
    made = allocate(Wish(Qos.LSR, PriorityClass.PROD, 4000), {}, NodeRules(), machine(hybrid()))
    assert made is not None
    assert str(made.cpus) == "0-3"
