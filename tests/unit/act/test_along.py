"""Groups of a workload's own below one that is given other CPUs (cgroup v1): they come along and go back with it."""

from __future__ import annotations

import pytest

from koordlet.act.undo import undo
from koordlet.model.status import HeldState
from tests.hosts.act_node import CPUSET, MakeNode, Node, cpus, want

BELOW = {"app/a": "0-7", "app/a/deep": "4-7", "app/b": "2-3"}


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """app, a declared service that has groups of its own."""
    made = make_node()
    for target, text in {"app": "0-7", **BELOW}.items():
        made.tree.cgroup(target, {"cpuset.cpus": f"{text}\n"})
    return made


def sets(node: Node) -> tuple[str, ...]:
    return tuple(node.read(target, CPUSET) for target in ("app", *BELOW))


FIRST = ("0-7", "0-7", "4-7", "2-3")


def give(node: Node, text: str) -> None:
    assert node.apply(want("app", CPUSET, cpus(text))).failed == 0


def test_they_get_what_they_had_of_it_or_all_of_it_and_follow(node: Node) -> None:
    give(node, "3-4")
    assert sets(node) == ("3-4", "3-4", "4", "3")
    give(node, "6-7")  # sideways
    assert sets(node) == ("6-7", "6-7", "6-7", "6-7")
    give(node, "2-7")  # wider again
    assert sets(node) == ("2-7", "2-7", "4-7", "2-3")
    assert node.kernel.refused == []
    told = [(record.target, record.after) for record in node.audit if record.owner == "along"]
    assert ("app/b", "3") in told
    node.apply()
    assert sets(node) == FIRST
    assert node.journal.live() == ()


def test_undo_gives_everything_back(node: Node) -> None:
    give(node, "3-4")
    report = undo(node.tree.host, node.journal, node.audit.append, writer=node.kernel)
    assert (report.restored, report.failed) == (4, 0)
    assert sets(node) == FIRST


def test_what_fits_is_left_alone_and_so_is_what_the_workload_chose_meanwhile(node: Node) -> None:
    give(node, "2-7")
    assert node.journal.find("app/b", CPUSET, node.path("app/b", CPUSET).stat().st_ino) is None
    node.foreign("app/a/deep", CPUSET, "5")
    give(node, "3-7")
    assert sets(node) == ("3-7", "3-7", "5", "3")
    node.apply()
    assert sets(node) == ("0-7", "0-7", "5", "2-3")


def test_who_has_a_wish_of_his_own_goes_his_own_way(node: Node) -> None:
    wish = want("app/a", CPUSET, cpus("4"))
    node.apply(wish, want("app", CPUSET, cpus("3-4")))
    assert sets(node) == ("3-4", "4", "4", "3")
    node.apply(wish, want("app", CPUSET, cpus("2-4")))
    assert sets(node) == ("2-4", "4", "4", "2-3")
    node.apply()
    assert sets(node) == FIRST


def test_after_a_crash_they_stay_with_a_group_that_stays_and_go_back_with_it(node: Node) -> None:
    give(node, "3-4")
    node.stop()
    node.start()
    give(node, "3-4")
    node.executor.give_back_left()
    assert sets(node) == ("3-4", "3-4", "4", "3")
    assert node.state("app", CPUSET) is HeldState.HELD
    assert not [record for record in node.audit if record.mode == "refused"]
    node.apply()
    assert sets(node) == FIRST


def test_after_a_crash_they_go_back_with_a_group_that_nobody_wants_any_more(node: Node) -> None:
    give(node, "3-4")
    node.stop()
    node.start()
    node.apply()
    node.executor.give_back_left()
    assert sets(node) == FIRST
