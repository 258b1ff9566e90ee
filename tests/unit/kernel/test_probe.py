import os
from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import KNOBS, Base
from koordlet.kernel.probe import probe
from koordlet.model.knob import Knob
from koordlet.model.support import Level
from tests.hosts.cases import case_json
from tests.hosts.tree import V1_SUBSYSTEMS, HostTree, v1_two_sockets_ht, v2_no_psi, v2_one_socket

SIGNALS = {
    "cpu.usage", "cpu.throttle", "memory.stat", "memory.reclaim",
    "psi.node", "psi.cgroup", "psi.trigger", "resctrl", "perf.hw",
    "core_sched",
}  # fmt: skip
RARE = [
    knob
    for knob in Knob
    if KNOBS[knob].base is not Base.CGROUP or KNOBS[knob].root or KNOBS[knob].needs == "an Anolis kernel"
] + [Knob.IO_BFQ_WEIGHT]
"""Knobs of vendor kernels, of the root cgroup and of the machine, which the shapes here do not have."""
BE_V2 = "kubepods.slice/kubepods-besteffort.slice"


@pytest.mark.parametrize("shape", [v1_two_sockets_ht, v2_one_socket, v2_no_psi])
@pytest.mark.parametrize("be_dir", [None, BE_V2, "not/there"])
def test_every_knob_and_signal_has_a_row(tmp_path: Path, shape: Callable[[Path], HostTree], be_dir: str | None) -> None:
    support = probe(shape(tmp_path).host, be_dir)
    assert set(support.table) == {str(knob) for knob in Knob} | SIGNALS
    for name, row in support.table.items():
        assert (row.name, bool(row.reason)) == (name, True)


@pytest.mark.parametrize("be_dir", [None, BE_V2])
def test_v2_has_all_mainline_knobs(tmp_path: Path, be_dir: str | None) -> None:
    support = probe(v2_one_socket(tmp_path).host, be_dir)
    missing = [knob for knob in Knob if not support.has(knob) and knob not in RARE]
    assert missing == [Knob.CPUSET_MIGRATE, Knob.IRQ_AFFINITY]
    assert [knob for knob in RARE if support.has(knob)] == []
    assert support.has("cpu.usage")
    assert support.has("cpu.throttle")
    assert support.has("psi.cgroup")


def test_v1_has_no_memory_protection(tmp_path: Path) -> None:
    support = probe(v1_two_sockets_ht(tmp_path).host, None)
    missing = [knob for knob in Knob if not support.has(knob) and knob not in RARE]
    assert missing == [
        *(Knob.CPUSET_PARTITION, Knob.IRQ_AFFINITY),
        *(Knob.MEMORY_MIN, Knob.MEMORY_LOW, Knob.MEMORY_HIGH, Knob.MEMORY_OOM_GROUP, Knob.IO_WEIGHT),
    ]
    assert support.table[Knob.CPUSET_PARTITION].reason.startswith("cgroup v1 has no such file, needs cgroup v2")
    assert not support.has("psi.cgroup")
    assert support.has("memory.stat")


def test_an_absent_file_is_told_with_place_and_need(tmp_path: Path) -> None:
    tree = v2_one_socket(tmp_path)
    (tmp_path / "cgroup" / BE_V2 / "cpu.idle").unlink()
    row = probe(tree.host, BE_V2).table[Knob.CPU_IDLE]
    assert row.level is Level.UNSUPPORTED
    assert row.reason == f"cpu.idle: file absent in {tmp_path}/cgroup/{BE_V2}, needs kernel >= 5.15"
    assert probe(tree.host, None).has(Knob.CPU_IDLE)  # the other cgroups still have it


def test_probing_again_sees_what_has_come(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2)
    assert not probe(tree.host, "be").has(Knob.CPU_QUOTA)
    tree.cgroup("be")
    assert probe(tree.host, "be").has(Knob.CPU_QUOTA)


def test_v1_root_files_count_before_any_cgroup_exists(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V1)
    tree.cgroup("")
    assert probe(tree.host, "kubepods/besteffort").has(Knob.CPU_QUOTA)


def test_a_controller_that_is_off_is_advised(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2)
    tree.put("cgroup/cgroup.subtree_control", "cpu memory\n")
    tree.cgroup("be", drop=("cpuset.cpus", "cpuset.cpus.effective"))
    assert "echo +cpuset >" in probe(tree.host, "be").table[Knob.CPUSET].advice

    v1 = HostTree(tmp_path / "v1", CgroupVersion.V1)
    (tmp_path / "v1/cgroup/freezer").rmdir()
    assert "mount" in probe(v1.host, None).table[Knob.FREEZE].advice


def test_cpu_stat_without_throttling_counters(tmp_path: Path) -> None:
    tree = v2_one_socket(tmp_path)
    tree.put(f"cgroup/{BE_V2}/cpu.stat", "usage_usec 1\nuser_usec 1\nsystem_usec 0\n")
    support = probe(tree.host, BE_V2)
    assert support.has("cpu.usage")
    assert not support.has("cpu.throttle")


def test_no_psi_is_a_capability_not_a_failure(tmp_path: Path) -> None:
    support = probe(v2_no_psi(tmp_path).host, None)
    assert not support.has("psi.node")
    assert not support.has("psi.cgroup")
    assert not support.has("psi.trigger")
    assert "psi=1" in support.table["psi.node"].advice
    assert "ENOENT" in support.table["psi.node"].reason
    assert support.has("cpu.usage")
    assert support.has("memory.stat")


def test_pressure_of_the_node_only(tmp_path: Path) -> None:
    assert case_json("psi-disabled-eopnotsupp")[2]["psi"] == "node-only"
    tree = v2_one_socket(tmp_path)
    (tmp_path / "cgroup" / BE_V2 / "cpu.pressure").unlink()
    support = probe(tree.host, BE_V2)
    assert support.has("psi.node")
    assert not support.has("psi.cgroup")


def test_a_hybrid_host_has_pressure_in_its_unified_hierarchy(tmp_path: Path) -> None:
    tree = v1_two_sockets_ht(tmp_path)
    pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    tree.put("cgroup/unified/batch.slice/cpu.pressure", pressure)
    assert probe(tree.host, None).has("psi.cgroup")
    assert probe(tree.host, "batch.slice").has("psi.cgroup")
    assert not probe(tree.host, BE_V2).has("psi.cgroup")


def test_a_copied_tree_is_not_written_to(tmp_path: Path) -> None:
    tree = v2_one_socket(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    row = probe(tree.host, BE_V2).table["psi.trigger"]
    assert (row.level, "not tried" in row.reason) == (Level.UNSUPPORTED, True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_resctrl_and_perf(tmp_path: Path) -> None:
    tree = v2_one_socket(tmp_path)
    support = probe(tree.host, None)
    assert not support.has("resctrl")
    assert not support.has("perf.hw")
    tree.put("proc/filesystems", "nodev\tresctrl\n")
    assert "mount -t resctrl" in probe(tree.host, None).table["resctrl"].advice
    tree.put("sys/fs/resctrl/schemata", "L3:0=fff\n")
    tree.put("sys/bus/event_source/devices/cpu", {})
    support = probe(tree.host, None)
    assert support.has("resctrl")
    assert support.has("perf.hw")


def test_a_missing_cgroup_mount_leaves_everything_unsupported(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V1)
    for subsystem in V1_SUBSYSTEMS:
        (tmp_path / "cgroup" / subsystem).rmdir()
    assert not any(probe(tree.host, None).has(name) for name in [*Knob, *SIGNALS])


def test_this_machine_is_left_as_it_was() -> None:
    host = Host.preset("host")
    open_before = len(os.listdir("/proc/self/fd"))
    first, second = probe(host, None), probe(host, None)
    assert first.table.keys() == second.table.keys()
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert first.has(Knob.CPU_QUOTA) == host.dir("cpu", "").exists()
