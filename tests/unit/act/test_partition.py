"""cpuset partitions (cgroup v2): where the kernel cannot make one, the plain CPU list has to do, and that is told."""

from __future__ import annotations

import pytest

from koordlet.act.undo import undo
from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.status import HeldState
from tests.hosts.act_node import MakeNode, Node, want

PARTITION, CPUSET = Knob.CPUSET_PARTITION, Knob.CPUSET
WISH = (want("lse", CPUSET, CpuSet.parse("2-3")), want("lse", PARTITION, 2))


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """lse, and a group of somebody else's that names CPUs."""
    made = make_node(CgroupVersion.V2)
    for target, cpus in (("lse", ""), ("other", "")):
        made.tree.cgroup(target, {"cpuset.cpus": f"{cpus}\n"})
    return made


def later(node: Node, seconds: int) -> None:
    for _ in range(seconds):
        node.apply(*WISH)


def test_a_partition_is_made_after_its_cpus_are_named_and_given_back_before(node: Node) -> None:
    assert node.apply(*WISH).written == 2
    assert (node.read("lse", CPUSET), node.read("lse", PARTITION)) == ("2-3", "isolated")
    node.apply()
    assert (node.read("lse", CPUSET), node.read("lse", PARTITION)) == ("", "member")


def test_cpus_that_somebody_else_names_too_leave_the_plain_list_until_they_are_free(node: Node) -> None:
    node.foreign("other", CPUSET, "0-7")
    node.apply(*WISH)
    assert (node.read("lse", CPUSET), node.read("lse", PARTITION)) == ("2-3", "member")
    held = node.held("lse", PARTITION)
    assert (held.state, held.error) == (
        HeldState.FAILED,
        "reads back as 'isolated invalid (Cpu list in cpuset.cpus not exclusive)'",
    )
    assert node.held("lse", CPUSET).state is HeldState.HELD
    node.foreign("other", CPUSET, "0-1")
    later(node, 3)
    assert node.read("lse", PARTITION) == "isolated"
    assert node.held("lse", PARTITION).state is HeldState.HELD


def test_a_partition_that_breaks_is_noticed_and_made_again(node: Node) -> None:
    node.apply(*WISH)
    broken = node.path("lse", PARTITION)
    broken.write_text("isolated invalid (Cpu list in cpuset.cpus not exclusive)\n")
    later(node, 130)
    assert node.read("lse", PARTITION) == "isolated"
    assert node.held("lse", PARTITION).state is HeldState.HELD


def test_undo_of_a_broken_partition_makes_it_a_member_again(node: Node) -> None:
    node.apply(*WISH)
    node.path("lse", PARTITION).write_text("isolated invalid (Cpu list in cpuset.cpus not exclusive)\n")
    report = undo(node.tree.host, node.journal, node.audit.append, writer=node.kernel)
    assert (report.restored, report.failed, report.kept) == (2, 0, 0)
    assert (node.read("lse", CPUSET), node.read("lse", PARTITION)) == ("", "member")


def test_cgroup_v1_has_none_and_the_list_is_held(make_node: MakeNode) -> None:
    node = make_node(CgroupVersion.V1)
    node.tree.cgroup("lse", {"cpuset.cpus": "0-7\n"})
    node.apply(*WISH)
    assert node.read("lse", CPUSET) == "2-3"
    assert node.held("lse", PARTITION).state is HeldState.UNSUPPORTED
