import os
import random
import shutil
from pathlib import Path

import pytest

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.topology import CpuBasicInfo, cpu_basic_info, parse_lscpu, read_topology
from koordlet.model.cpuset import CpuSet
from koordlet.model.topology import Cpu, NumaNode
from tests.hosts.cases import CASES, case_json, case_text
from tests.hosts.tree import Content, HostTree, cpus, numa, proc, v1_two_sockets_ht, v2_four_numa, v2_no_l3

GIB = 1 << 30


def machine(root: Path, cpu: dict[str, Content], node: dict[str, Content] | None = None, **more: Content) -> Host:
    system: dict[str, Content] = {"cpu": cpu}
    if node is not None:
        system["node"] = node
    tree = HostTree(root, CgroupVersion.V2, {"sys": {"devices": {"system": system}}, "proc": proc(range(1), 1024)})
    tree.put("", more)
    return tree.host


def test_two_sockets_with_threads(tmp_path: Path) -> None:
    topology = read_topology(v1_two_sockets_ht(tmp_path).host)
    assert str(topology.online) == "0-7"
    assert topology.siblings() == {core: CpuSet([core, core + 4]) for core in range(4)}
    assert [(cpu.id, cpu.core, cpu.socket, cpu.node, cpu.l3) for cpu in topology.cpus[:5]] == [
        (0, 0, 0, 0, 0),
        (4, 0, 0, 0, 0),
        (1, 1, 0, 0, 0),
        (5, 1, 0, 0, 0),
        (2, 2, 1, 1, 1),
    ]
    assert topology.nodes == (
        NumaNode(0, CpuSet([0, 1, 4, 5]), 32 * GIB),
        NumaNode(1, CpuSet([2, 3, 6, 7]), 32 * GIB),
    )


def test_four_nodes_on_two_sockets(tmp_path: Path) -> None:
    topology = read_topology(v2_four_numa(tmp_path).host)
    assert [(cpu.node, cpu.socket, cpu.l3) for cpu in topology.cpus[::4]] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 2),
        (3, 1, 3),
    ]
    assert len(topology.siblings()) == 16


def test_no_l3_is_zero(tmp_path: Path) -> None:
    assert {cpu.l3 for cpu in read_topology(v2_no_l3(tmp_path).host).cpus} == {0}


def test_an_l3_without_id_is_numbered_by_who_shares_it(tmp_path: Path) -> None:
    host = machine(tmp_path, cpus({cpu: (0, cpu, cpu // 2) for cpu in range(4)}))
    for path in host.sys_root.rglob("index3/id"):
        path.unlink()
    assert [cpu.l3 for cpu in read_topology(host).cpus] == [0, 0, 1, 1]


def test_offline_cpus_are_left_out_and_cores_numbered_without_gap(tmp_path: Path) -> None:
    sysfs = cpus({0: (0, 0, 0), 1: (0, 0, 0), 4: (0, 8, 0), 5: (0, 8, 0), 6: (0, 9, 0)})
    sysfs["cpu2"] = {"online": "0\n"}
    topology = read_topology(machine(tmp_path, sysfs, numa({0: ("0-6", 1024)})))
    assert str(topology.online) == "0-1,4-6"
    assert topology.siblings() == {0: CpuSet([0, 1]), 1: CpuSet([4, 5]), 2: CpuSet([6])}
    assert topology.nodes[0].cpus == CpuSet([0, 1, 4, 5, 6])


def test_hybrid_cores_are_what_the_sibling_lists_say(tmp_path: Path) -> None:
    layout = {0: (0, 0, 0), 1: (0, 0, 0), 2: (0, 4, 0), 3: (0, 5, 0)}
    assert read_topology(machine(tmp_path, cpus(layout))).siblings() == {
        0: CpuSet([0, 1]),
        1: CpuSet([2]),
        2: CpuSet([3]),
    }


def test_core_ids_that_repeat_per_socket_stay_apart(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, cpus({0: (0, 0, 0), 1: (1, 0, 1)})))
    assert [(cpu.core, cpu.socket) for cpu in topology.cpus] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("package", [-1, 36])
def test_odd_package_ids_are_socket_zero(tmp_path: Path, package: int) -> None:
    layout = {cpu: (package, cpu, 0) for cpu in range(4)}
    assert {cpu.socket for cpu in read_topology(machine(tmp_path, cpus(layout))).cpus} == {0}


def test_without_sibling_list_the_core_id_decides(tmp_path: Path) -> None:
    sysfs: dict[str, Content] = {"online": "0-3\n"}
    for cpu in range(4):
        sysfs[f"cpu{cpu}"] = {"topology": {"physical_package_id": "0\n", "core_id": f"{cpu // 2}\n"}}
    assert read_topology(machine(tmp_path, sysfs)).siblings() == {0: CpuSet([0, 1]), 1: CpuSet([2, 3])}


def test_without_any_topology_each_cpu_is_a_core_of_node_zero(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, {"online": "0-2\n"}))
    assert topology.cpus == tuple(Cpu(cpu, cpu, 0, 0, 0, "0") for cpu in range(3))
    assert topology.nodes == (NumaNode(0, CpuSet(range(3)), 1024 * 1024),)


def test_without_online_list_the_cpu_directories_count(tmp_path: Path) -> None:
    assert str(read_topology(machine(tmp_path, {"cpu0": {}, "cpu1": {}, "cpufreq": {}})).online) == "0-1"


@pytest.mark.parametrize("online", ["\n", "a-b\n"])
def test_no_usable_cpu_list_is_an_error(tmp_path: Path, online: str) -> None:
    with pytest.raises(KernelFileError, match="devices/system/cpu/online"):
        read_topology(machine(tmp_path, {"online": online}))


def with_nodes(host: Host, case: str) -> Host:
    """The case's folder as `devices/system/node`."""
    shutil.copytree(CASES / case, host.sys_root / "devices/system/node")
    return host


@pytest.mark.parametrize(("case", "online"), [("numa-sparse-node-ids", "0-7\n"), ("numa-memory-only-node", "0-31\n")])
def test_numa_nodes_with_gaps_and_without_cpus(tmp_path: Path, case: str, online: str) -> None:
    expected = case_json(case)
    topology = read_topology(with_nodes(machine(tmp_path, {"online": online}), case))
    assert [node.id for node in topology.nodes] == expected["node_ids"]
    for node in topology.nodes:
        cpu_list = expected["cpus"][str(node.id)]
        assert node.cpus == (CpuSet.parse(cpu_list) if isinstance(cpu_list, str) else CpuSet(cpu_list))
        assert node.memory_bytes == expected["mem_total_bytes"][str(node.id)]
    assert {cpu.id: cpu.node for cpu in topology.cpus} == {cpu: node.id for node in topology.nodes for cpu in node.cpus}


def test_generic_initiators_are_no_nodes(tmp_path: Path) -> None:
    case = "generic-initiator-nodes"
    expected = case_json(case)
    topology = read_topology(with_nodes(machine(tmp_path, {"online": "0-71\n"}), case))
    assert {str(node.id): node.memory_bytes for node in topology.nodes} == expected["mem_total_bytes"]
    assert [node.id for node in topology.nodes] == expected["node_ids"]


def test_nodes_from_the_bus_where_the_system_directory_is_missing(tmp_path: Path) -> None:
    host = machine(tmp_path, cpus({0: (0, 0, 0)}), sys={"bus": {"node": {"devices": numa({3: ("0", 1024)})}}})
    assert read_topology(host).nodes == (NumaNode(3, CpuSet([0]), 1024 * 1024),)


def test_a_node_without_meminfo_is_kept(tmp_path: Path) -> None:
    nodes: dict[str, Content] = {"node0": {"cpulist": "0\n"}}
    assert read_topology(machine(tmp_path, cpus({0: (0, 0, 0)}), nodes)).nodes == (NumaNode(0, CpuSet([0]), None),)


@pytest.mark.parametrize("name", list(case_json("lscpu-no-l3")))
def test_lscpu_without_l3(name: str) -> None:
    expected = case_json("lscpu-no-l3")[name]
    topology = parse_lscpu(case_text("lscpu-no-l3", name))
    assert len(topology.cpus) == expected["cpus"]
    assert [cpu.l3 for cpu in topology.cpus] == expected["l3"]
    assert len(topology.siblings()) == expected["cores"]
    assert len(topology.nodes) == expected.get("nodes", 1)
    assert len({cpu.socket for cpu in topology.cpus}) == expected.get("sockets", 1)
    if "l1l2" in expected:
        assert [cpu.l1l2 for cpu in topology.cpus] == expected["l1l2"]


def test_lscpu_offline_rows() -> None:
    expected = case_json("lscpu-offline-rows")
    topology = parse_lscpu(case_text("lscpu-offline-rows", "lscpu.txt"))
    assert list(topology.online) == expected["online"]
    assert str(topology.online) == expected["share_pool"]
    assert topology.siblings() == {int(core): CpuSet(ids) for core, ids in expected["cores"].items()}


def test_lscpu_hybrid() -> None:
    expected = case_json("hybrid-threads-per-core")
    siblings = parse_lscpu(case_text("hybrid-threads-per-core", "lscpu.txt")).siblings()
    assert sum(len(ids) for ids in siblings.values()) == expected["cpus"]
    assert len(siblings) == expected["cores"]
    assert {str(core): list(ids) for core, ids in siblings.items() if len(ids) > 1} == expected["siblings"]
    singles = [cpu for ids in siblings.values() if len(ids) == 1 for cpu in ids]
    assert sorted(singles) == expected["single_thread_cpus"]


def test_lscpu_in_any_row_order_is_one_topology() -> None:
    header, *rows = case_text("shared-pool-annotation-churn", "lscpu.txt").splitlines()
    shuffled = random.Random(7)
    found = set()
    for _ in range(20):
        shuffled.shuffle(rows)
        found.add(parse_lscpu("\n".join([header, *rows])))
    assert len(found) == 1
    assert str(found.pop().nodes[0].cpus) == "0-7"


@pytest.mark.parametrize(
    ("line", "cpu"),
    [  # W-13, the third on every architecture
        ("3 0 0 1 1:1:1:0 yes", Cpu(3, 1, 0, 0, 0, "1")),
        ("0 - 0 0 0:0:0 yes", Cpu(0, 0, 0, 0, 0, "0")),
        ("2 0 0 1 - yes", Cpu(2, 1, 0, 0, 0, "0")),
    ],
)
def test_lscpu_lines(line: str, cpu: Cpu) -> None:
    assert parse_lscpu(line).cpus == (cpu,)


def test_lscpu_columns_are_found_by_name() -> None:
    assert parse_lscpu("CPU CORE SOCKET ONLINE\n0 5 1 yes\n").cpus == (Cpu(0, 5, 1, 0, 0, "0"),)


def test_lscpu_cores_counted_per_socket_are_made_unique() -> None:
    topology = parse_lscpu("0 0 0 0 - yes\n1 0 0 1 - yes\n2 0 1 0 - yes\n3 0 1 1 - yes\n")
    assert topology.siblings() == {core: CpuSet([core]) for core in range(4)}


@pytest.mark.parametrize("text", ["", "CPU NODE SOCKET CORE CACHE ONLINE\n", "x 0 0 0 - yes", "0 0 0 0 - no"])
def test_lscpu_without_a_cpu_is_an_error(text: str) -> None:
    with pytest.raises(KernelFileError, match="lscpu"):
        parse_lscpu(text)


def test_basic_info(tmp_path: Path) -> None:
    info = cpu_basic_info(v1_two_sockets_ht(tmp_path).host)
    assert info == CpuBasicInfo("Test CPU @ 2.00GHz", "GenuineIntel", smt_active=True, turbo=True)


@pytest.mark.parametrize(
    ("cpu", "smt", "turbo"),
    [
        ({"intel_pstate": {"no_turbo": "1\n"}, "cpufreq": {"boost": "1\n"}}, False, False),
        ({"cpufreq": {"boost": "1\n"}}, False, True),
        ({"smt": {"active": "1\n"}}, True, False),
        ({**cpus({0: (0, 0, 0), 1: (0, 0, 0)})}, True, False),
    ],
)
def test_smt_and_turbo(tmp_path: Path, cpu: dict[str, Content], smt: bool, turbo: bool) -> None:
    info = cpu_basic_info(machine(tmp_path, {"online": "0\n", **cpu}))
    assert (info.smt_active, info.turbo) == (smt, turbo)


def test_this_machine() -> None:
    topology = read_topology(Host.preset("host"))
    assert len(topology.cpus) == os.cpu_count()
    assert sum(len(node.cpus) for node in topology.nodes) == os.cpu_count()
    cpu_basic_info(Host.preset("host"))
