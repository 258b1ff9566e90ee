"""CPU and memory by NUMA node, from /proc/stat, the nodes' meminfo and the pods' memory.numa_stat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Pod
from koordlet.model.qos import KubeQos
from koordlet.model.topology import NumaNode
from koordlet.sense.numa import ROTATION, NumaMeter
from koordlet.store.rings import RingStore
from tests.native.trees import Tree

NODES = (NumaNode(0, CpuSet([0, 1])), NumaNode(2, CpuSet([2, 3])))
KIB = 1024


def pod(name: str) -> Pod:
    return Pod(name, "ns", name, name, KubeQos.BURSTABLE)


class Machine:
    def __init__(self, root: Path, version: CgroupVersion = CgroupVersion.V2) -> None:
        self.tree = Tree(root, version)
        self.rings = RingStore()
        self.meter = NumaMeter(self.tree.host, self.rings)
        self.now_s = 100.0
        self.ticks: dict[int, int] = dict.fromkeys(range(4), 0)
        for node in (0, 2):
            self.memory(node, free=300)

    def memory(self, node: int, free: int) -> None:
        base = self.tree.host.sys_root / f"devices/system/node/node{node}"
        base.mkdir(parents=True, exist_ok=True)
        rows = {"MemTotal": 1000, "MemFree": free, "Active(file)": 200, "Inactive(file)": 100, "SReclaimable": 50}
        (base / "meminfo").write_text("".join(f"Node {node} {key}: {value} kB\n" for key, value in rows.items()))

    def pages(self, name: str, **by_node: int) -> None:
        """Bytes by node (n0=...), all anonymous."""
        directory = self.tree.host.dir("memory", name)
        directory.mkdir(parents=True, exist_ok=True)
        unit = 4096 if self.tree.version is CgroupVersion.V1 else 1
        found = " ".join(f"N{node[1:]}={count // unit}" for node, count in by_node.items())
        text = f"total=1 {found}\n" if unit > 1 else f"anon {found}\nfile N0=0 N2=0\n"
        (directory / "memory.numa_stat").write_text(text)

    def step(self, *pods: Pod, system: float | None = None, after_s: float = 10.0, **mcpu: int) -> None:
        """mcpu: c0=1000 and so on, over these seconds."""
        for cpu, used in mcpu.items():
            self.ticks[int(cpu[1:])] += int(used * after_s / 10)
        lines = [f"cpu{cpu} {ticks} 0 0 9 9 0 0 0 0 0" for cpu, ticks in self.ticks.items()]
        (self.tree.host.proc_root / "stat").write_text("cpu  1 0 0 9 9 0 0 0 0 0\n" + "\n".join(lines) + "\n")
        self.now_s += after_s
        if system is not None:
            self.rings.push(self.rings.open("system", "", "cpu"), self.now_s, system)
        self.meter.step(NODES, pods, self.now_s)

    def found(self, kind: str, metric: str) -> dict[str, float]:
        latest = {str(node): self.rings.window(kind, str(node), metric, 0.0, self.now_s) for node in (0, 2)}
        return {node: round(found.latest, 6) for node, found in latest.items() if found is not None}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_cpu_by_node_after_the_second_step(machine: Machine) -> None:
    machine.step()
    assert machine.found("numa", "cpu") == {}
    machine.step(c0=1000, c1=500, c3=250)
    assert machine.found("numa", "cpu") == {"0": 1500.0, "2": 250.0}
    assert machine.meter.ids == {0, 2}


def test_v09_w23_the_system_has_of_each_node_what_the_node_has_of_all(machine: Machine) -> None:
    machine.step()
    machine.step(c0=6000, c2=2000, system=2000.0)
    assert machine.found("system_numa", "cpu") == {"0": 1500.0, "2": 500.0}
    machine.step(c0=6000, c2=4500, system=3000.0)
    assert machine.found("system_numa", "cpu") == {"0": 1714.285714, "2": 1285.714286}
    machine.step(system=3000.0)
    assert machine.found("system_numa", "cpu") == {"0": 0.0, "2": 0.0}


def test_without_the_system_its_part_alone_is_left_out(machine: Machine) -> None:
    machine.step()
    machine.step(c0=1000)
    assert machine.found("system_numa", "cpu") == {}
    assert machine.found("numa", "cpu") == {"0": 1000.0, "2": 0.0}


def test_a_cpu_that_is_new_or_fell_does_not_count(machine: Machine) -> None:
    del machine.ticks[1]
    machine.step()
    machine.ticks |= {1: 5000, 0: -1}
    machine.ticks[0] = 0
    machine.step(c0=1000)
    assert machine.found("numa", "cpu") == {"0": 1000.0, "2": 0.0}
    machine.ticks[0] = 3
    machine.step()
    assert machine.found("numa", "cpu") == {"0": 0.0, "2": 0.0}


def test_no_rate_over_a_long_gap(machine: Machine) -> None:
    machine.step()
    machine.step(c0=1000, after_s=60.0)
    assert machine.found("numa", "cpu") == {}


def test_w14_memory_of_a_node(machine: Machine) -> None:
    machine.step()
    assert machine.found("numa", "memory") == {"0": 350 * KIB, "2": 350 * KIB}


def test_v08(machine: Machine) -> None:
    base = machine.tree.host.sys_root / "devices/system/node/node0/meminfo"
    base.write_text(
        "Node 0 MemTotal: 65536000 kB\nNode 0 MemFree: 20000000 kB\nNode 0 Active(file): 10000000 kB\n"
        "Node 0 Inactive(file): 8000000 kB\nNode 0 SReclaimable: 2000000 kB\n"
    )
    machine.step()
    assert machine.found("numa", "memory")["0"] == 26148864000


@pytest.mark.parametrize("version", list(CgroupVersion), ids=str)
def test_system_memory_is_what_pods_do_not_have_there(tmp_path: Path, version: CgroupVersion) -> None:
    machine = Machine(tmp_path, version)
    machine.pages("a", n0=100 * KIB, n2=40 * KIB)
    machine.pages("b", n0=8 * KIB, n2=400 * KIB)
    machine.step(pod("a"), pod("b"))
    assert machine.found("system_numa", "memory") == {"0": 242 * KIB, "2": 0.0}


def test_no_pod_is_a_node_of_the_system_alone_but_no_reading_is_none(machine: Machine) -> None:
    machine.step()
    assert machine.found("system_numa", "memory") == {"0": 350 * KIB, "2": 350 * KIB}
    machine.step(pod("unreadable"))
    assert machine.found("system_numa", "memory") == {}
    assert machine.found("numa", "memory") == {"0": 350 * KIB, "2": 350 * KIB}


def test_pages_come_round_and_new_pods_first(machine: Machine) -> None:
    pods = [pod(f"p{number}") for number in range(12)]
    for each in pods:
        machine.pages(each.name, n0=KIB)
    machine.step(*pods)
    assert machine.found("system_numa", "memory")["0"] == (350 - 12) * KIB
    for each in pods:
        machine.pages(each.name, n0=2 * KIB)
    seen = []
    for _ in range(ROTATION):
        machine.step(*pods)
        seen.append(machine.found("system_numa", "memory")["0"] / KIB)
    assert seen == [336.0, 334.0, 332.0, 330.0, 328.0, 326.0]  # two of twelve in each step
    machine.pages("new", n0=100 * KIB)
    machine.step(*pods, pod("new"))
    assert machine.found("system_numa", "memory")["0"] == 226 * KIB
    machine.step(replace(pods[0], phase="Succeeded"))  # finished, the others are gone
    assert machine.found("system_numa", "memory")["0"] == 350 * KIB


def test_files_that_cannot_be_read_leave_their_part_out(machine: Machine) -> None:
    (machine.tree.host.sys_root / "devices/system/node/node2/meminfo").write_text("Node 2 MemTotal: many kB\n")
    machine.pages("a", n0=KIB)
    (machine.tree.host.dir("memory", "a") / "memory.numa_stat").write_text("garbage")
    machine.step(pod("a"))
    assert machine.found("numa", "memory") == {"0": 350 * KIB}
    assert machine.found("system_numa", "memory") == {}
    assert machine.meter.errors == 1
