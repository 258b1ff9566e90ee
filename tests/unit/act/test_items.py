"""Device lines and the machine's own settings through executor, journal and undo: exactly ours comes and goes."""

from __future__ import annotations

import pytest

from koordlet.act.undo import undo
from koordlet.kernel.host import CgroupVersion
from koordlet.model.knob import Knob
from koordlet.model.status import HeldState
from tests.hosts.act_node import MakeNode, Node, want

V1, V2 = CgroupVersion.V1, CgroupVersion.V2
RBPS, WBPS, WEIGHT = Knob.IO_READ_BPS, Knob.IO_WRITE_BPS, Knob.IO_WEIGHT
V1_FILE = "cgroup/blkio/be/blkio.throttle.read_bps_device"


@pytest.fixture
def v2(make_node: MakeNode) -> Node:
    made = make_node(V2)
    made.tree.cgroup("be", {"io.max": "8:16 rbps=max wbps=777 riops=max wiops=max\n"})
    return made


def io_max(node: Node) -> dict[str, str]:
    lines = node.tree.read("cgroup/be/io.max").splitlines()
    return dict(line.partition(" ")[::2] for line in lines if line)


def test_only_our_fields_of_our_device_change_and_come_back(v2: Node) -> None:
    other = io_max(v2)["8:16"]
    v2.apply(want("be/8:0", RBPS, 1_000_000), want("be/8:16", RBPS, 5000))
    assert io_max(v2) == {
        "8:0": "rbps=1000000 wbps=max riops=max wiops=max",
        "8:16": "rbps=5000 wbps=777 riops=max wiops=max",
    }
    assert v2.held("be/8:0", RBPS).original == "max"
    v2.foreign("be", Knob.MEMORY_HIGH, "max")
    assert v2.apply(want("be/8:0", RBPS, 1_000_000), want("be/8:16", RBPS, 5000)).written == 0
    v2.apply()
    assert io_max(v2) == {"8:16": other}
    assert v2.journal.live() == ()


def test_a_foreign_change_of_another_field_is_not_ours(v2: Node) -> None:
    v2.apply(want("be/8:16", RBPS, 5000))
    v2.kernel.set(v2.tree.root / "cgroup/be/io.max", "8:16 wbps=999")
    report = v2.apply(want("be/8:16", RBPS, 5000), after_s=61)
    assert (report.written, report.drifted) == (0, 0)
    v2.apply()
    assert io_max(v2)["8:16"] == "rbps=max wbps=999 riops=max wiops=max"


def test_a_foreign_value_of_our_field_is_kept_on_release(v2: Node) -> None:
    v2.apply(want("be/8:0", RBPS, 5000))
    v2.kernel.set(v2.tree.root / "cgroup/be/io.max", "8:0 rbps=6000")
    v2.apply()
    assert io_max(v2)["8:0"].startswith("rbps=6000 ")


def test_a_crash_is_undone_device_by_device(v2: Node) -> None:
    before = v2.tree.read("cgroup/be/io.max")
    v2.apply(want("be/8:0", RBPS, 5000), want("be/8:0", WBPS, 6000), want("be/8:16", WBPS, 7000))
    v2.apply(want("be/8:0", WEIGHT, 60), want("be/8:0", RBPS, 5000))
    v2.stop()
    v2.start()
    report = undo(v2.tree.host, v2.journal, v2.audit.append, writer=v2.kernel)
    assert report.failed == 0
    assert v2.tree.read("cgroup/be/io.max").strip() == before.strip()
    assert v2.tree.read("cgroup/be/io.weight") == "default 100\n"


def test_weight(v2: Node) -> None:
    v2.apply(want("be/8:0", WEIGHT, 60))
    assert v2.tree.read("cgroup/be/io.weight") == "default 100\n8:0 6000\n"
    v2.apply()
    assert v2.tree.read("cgroup/be/io.weight") == "default 100\n"


def test_v1_lines(node: Node) -> None:
    node.tree.put(V1_FILE, "8:16 42\n")
    node.apply(want("be/8:0", RBPS, 1000), want("be/8:16", RBPS, 2000))
    assert node.tree.read(V1_FILE) == "8:16 2000\n8:0 1000\n"
    node.apply()
    assert node.tree.read(V1_FILE) == "8:16 42\n"


def test_a_device_that_is_gone_is_no_failure(v2: Node) -> None:
    v2.apply(want("be/9:9", RBPS, 5000))
    assert v2.state("be/9:9", RBPS) is HeldState.GONE
    assert v2.journal.live() == ()


def test_the_root_cgroup_keeps_its_cost_model(v2: Node) -> None:
    v2.tree.put("cgroup/io.cost.qos", "")
    v2.apply(want("8:0", Knob.IO_COST_QOS, "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000"))
    assert "8:0 enable=1 ctrl=user rpct=95.00 rlat=3000" in v2.tree.read("cgroup/io.cost.qos")
    assert v2.apply(
        want("8:0", Knob.IO_COST_QOS, "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000"), after_s=61
    ).written == 0  # fmt: skip
    v2.apply()
    assert v2.tree.read("cgroup/io.cost.qos").startswith("8:0 enable=0 ")
    assert v2.journal.live() == ()


def test_limits_of_the_root_cgroup_are_never_written(v2: Node) -> None:
    v2.tree.put("cgroup/io.max", "")
    v2.apply(want("8:0", RBPS, 5000))
    assert v2.tree.read("cgroup/io.max") == ""
    assert v2.state("8:0", RBPS) is HeldState.FAILED


SYSCTL = "proc/sys/vm/watermark_scale_factor"


@pytest.mark.parametrize("version", CgroupVersion)
def test_a_sysctl_comes_and_goes(make_node: MakeNode, version: CgroupVersion) -> None:
    node = make_node(version)
    node.tree.put(SYSCTL, "10\n")
    wish = want("system", Knob.VM_WATERMARK_SCALE, 20, "system")
    node.apply(wish)
    assert node.tree.read(SYSCTL) == "20\n"
    # Inodes of /proc/sys do not last: the path is the identity.
    path = node.tree.root / SYSCTL
    path.rename(path.with_name("old"))
    path.write_text("20\n")
    assert node.apply(wish, after_s=61).written == 0
    node.stop()
    node.start()
    assert undo(node.tree.host, node.journal, node.audit.append, writer=node.kernel).restored == 1
    assert node.tree.read(SYSCTL) == "10\n"
    assert node.audit[0].reason == "systemConfig reconcile"


def test_another_boot_has_other_values(make_node: MakeNode) -> None:
    node = make_node(V2)
    node.tree.put(SYSCTL, "10\n")
    node.apply(want("system", Knob.VM_WATERMARK_SCALE, 20))
    node.stop()
    node.boot = "boot-2"
    node.start()
    assert node.journal.live() == ()


def test_one_scheduler_feature_among_many(make_node: MakeNode) -> None:
    node = make_node(V2)
    node.tree.put("sys/kernel/debug/sched/features", "GENTLE NO_NEXT_BUDDY WAKEUP\n")
    node.apply(want("system/NEXT_BUDDY", Knob.SCHED_FEATURE, 1), want("system/WAKEUP", Knob.SCHED_FEATURE, 0))
    assert node.tree.read("sys/kernel/debug/sched/features") == "GENTLE NEXT_BUDDY NO_WAKEUP\n"
    node.apply()
    assert node.tree.read("sys/kernel/debug/sched/features") == "GENTLE NO_NEXT_BUDDY WAKEUP\n"


def test_vendor_settings_are_told_once_and_hurt_nobody(make_node: MakeNode) -> None:
    node = make_node(V2)
    node.tree.put(SYSCTL, "10\n")
    wishes = (want("system", Knob.MEMCG_REAP, 1), want("system", Knob.VM_WATERMARK_SCALE, 20))
    for _ in range(100):
        node.apply(*wishes)
    assert node.state("system", Knob.MEMCG_REAP) is HeldState.UNSUPPORTED
    assert node.tree.read(SYSCTL) == "20\n"
    assert sum("not tried again" in record.error for record in node.audit) == 1


def test_a_file_of_more_than_a_page_is_read_to_its_end(v2: Node) -> None:
    lines = "".join(f"{n}:0 rbps={n} wbps=max riops=max wiops=max\n" for n in range(300, 600))
    v2.tree.put("cgroup/be/io.max", lines)
    v2.kernel.devices.add("599:0")
    v2.apply(want("be/599:0", RBPS, 5000))
    assert v2.held("be/599:0", RBPS).original == "599"
