"""A value that is only a lower bound: what somebody else sets above it stays, and is what is given back later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.act.executor import Executor
from koordlet.act.journal import Entry, Journal
from koordlet.act.undo import undo
from koordlet.model.knob import Decision
from koordlet.model.status import HeldState
from tests.hosts.act_node import QUOTA, SHARES, Node, want


def bound(us: int) -> Decision:
    return replace(want("be", QUOTA, us, "resize"), at_least=True)


def quota(node: Node) -> str:
    return node.read("be", QUOTA).split()[0]


@pytest.mark.parametrize("found", ["40000", "20000", "-1"])
def test_what_is_enough_is_held_and_not_written(node: Node, found: str) -> None:
    node.foreign("be", QUOTA, found)
    before = node.read("be", QUOTA)
    assert node.apply(bound(20_000)).written == 0
    assert (node.read("be", QUOTA), node.state("be", QUOTA)) == (before, HeldState.HELD)
    assert node.journal.live() == ()


def test_what_is_too_little_is_raised_and_given_back(node: Node) -> None:
    node.foreign("be", QUOTA, "10000")
    assert node.apply(bound(20_000)).written == 1
    assert quota(node) == "20000"
    node.apply()
    assert quota(node) == "10000"


def test_a_higher_value_set_meanwhile_stays_and_becomes_the_original(node: Node) -> None:
    node.foreign("be", QUOTA, "20000")
    node.apply(want("be", QUOTA, 16_667, "podrules"))
    node.apply(want("be", QUOTA, 16_667, "podrules"), bound(20_000))
    assert quota(node) == "20000"
    node.foreign("be", QUOTA, "40000")  # the kubelet, before it asks the runtime
    report = node.apply(want("be", QUOTA, 16_667, "podrules"), bound(20_000), after_s=120.0)
    assert (report.drifted, quota(node)) == (0, "40000")
    node.apply(want("be", QUOTA, 33_334, "podrules"))
    assert quota(node) == "33334"
    node.apply()
    assert quota(node) == "40000"


def test_a_bound_that_becomes_a_value_is_written(node: Node) -> None:
    node.foreign("be", QUOTA, "40000")
    node.apply(bound(20_000))
    node.apply(replace(bound(20_000), at_least=False))
    assert quota(node) == "20000"


class SlowDisk(Journal):
    """While originals are recorded the kubelet gets somewhere."""

    kubelet: Callable[[], None]

    def add(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        super().add(entries, durable=durable)
        if entries:
            self.kubelet()


def test_a_higher_value_set_between_the_look_and_the_write_stays(node: Node) -> None:
    node.foreign("be", QUOTA, "10000")
    node.stop()
    with closing(SlowDisk(node.journal_path, node.boot)) as journal:
        journal.kubelet = lambda: node.foreign("be", QUOTA, "40000")
        executor = Executor(node.tree.host, journal, node.audit.append, writer=node.kernel)
        wishes = {"resize": (bound(20_000),)}
        report = executor.apply(wishes, 1000.0)
        assert (report.written, report.failed, quota(node)) == (0, 0, "40000")
        assert executor.apply(wishes, 1001.0).written == 0
        assert [held.state for held in executor.held()] == [HeldState.HELD]
        executor.apply({}, 1002.0)
        assert (quota(node), journal.live()) == ("40000", ())


def test_no_older_limit_is_put_in_the_place_of_a_newer_one(node: Node) -> None:
    node.foreign("be", QUOTA, "20000")
    node.stop()
    with closing(SlowDisk(node.journal_path, node.boot)) as journal:
        journal.kubelet = lambda: None
        executor = Executor(node.tree.host, journal, node.audit.append, writer=node.kernel)
        executor.apply({"podrules": (want("be", QUOTA, 16_667, "podrules"),)}, 1000.0)
        journal.kubelet = lambda: node.foreign("be", QUOTA, "40000")
        wishes = {"podrules": (want("be/pod", SHARES, 512, "podrules"),)}
        executor.apply(wishes, 1001.0)
        assert quota(node) == "40000"
        assert executor.apply(wishes, 1002.0).failed == 0
        assert (quota(node), [entry.target for entry in journal.live()]) == ("40000", ["be/pod"])


def test_an_undo_keeps_what_was_set_while_it_was_at_work(node: Node) -> None:
    node.foreign("be", QUOTA, "20000")
    node.apply(want("be", QUOTA, 16_667))

    def writer(path: Path, data: bytes) -> None:
        raise AssertionError("nothing is to be written")

    class Kubelet(Journal):
        def intend(self, values: Iterable[tuple[Entry, bytes]]) -> None:
            super().intend(values)
            node.foreign("be", QUOTA, "40000")

    node.stop()
    with closing(Kubelet(node.journal_path, node.boot)) as journal:
        report = undo(node.tree.host, journal, node.audit.append, writer=writer)
    assert (report.kept, report.failed, quota(node)) == (1, 0, "40000")
