"""Wherever the agent dies, an undo brings back every file's first bytes; and a legal wish is never refused."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.act.undo import undo
from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from tests.hosts.act_node import Node, want
from tests.hosts.fake_kernel import Crash

TARGETS = ("be", "be/p0", "be/p0/c0", "be/p0/c1", "be/p1")
KNOBS = (Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.CPUSET)
Plan = tuple[Decision, ...]


@st.composite
def wishes(draw: st.DrawFn) -> Plan:
    """Legal within themselves: quotas and CPU sets of children are within their parents'."""
    found: list[Decision] = []
    limits: dict[str, int] = {}
    sets: dict[str, CpuSet] = {}
    whole = draw(st.booleans())  # CPU sets for the whole tree or for none of it, as the suppress loop does
    for target in TARGETS:
        parent = target.rpartition("/")[0]
        limit = limits.get(parent, 90_000)
        if limit >= 1000 and (draw(st.booleans()) or parent in limits):
            quota = draw(st.one_of(st.integers(1000, limit), st.just(-1)))
            found.append(want(target, Knob.CPU_QUOTA, quota))
            limits[target] = quota if quota > 0 else limit
        if whole:
            above = sets.get(parent, CpuSet(range(8)))
            sets[target] = CpuSet(draw(st.sets(st.sampled_from(sorted(above)), min_size=1)))
            found.append(want(target, Knob.CPUSET, sets[target]))
        if draw(st.booleans()):
            found.append(want(target, Knob.CPU_IDLE, 1, "identity"))
        if draw(st.booleans()):
            found.append(want(target, Knob.CPU_SHARES, draw(st.integers(2, 2000)), "podrules"))
    return tuple(found)


@contextmanager
def fresh_node(version: CgroupVersion) -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root), version)
        for n, target in enumerate(TARGETS):
            node.tree.cgroup(target, {"cpuset.cpus": "0-7\n"})
            node.foreign(target, Knob.CPU_SHARES, str(100 + n))
        node.foreign("be", Knob.CPU_QUOTA, "95000")
        node.foreign("be", Knob.CPU_BURST, "40000")
        try:
            yield node
        finally:
            node.stop()


def bytes_of(node: Node) -> dict[tuple[str, Knob], bytes]:
    return {(target, knob): node.path(target, knob).read_bytes() for target in TARGETS for knob in KNOBS}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CgroupVersion),
    st.lists(wishes(), min_size=1, max_size=3),
    st.integers(1, 60),
    st.booleans(),
    st.integers(1, 20),
)
def test_undo_after_a_crash_anywhere(
    version: CgroupVersion, plans: list[Plan], crash_at: int, after: bool, second_crash: int
) -> None:
    with fresh_node(version) as node:
        before = bytes_of(node)
        node.kernel.crash_at, node.kernel.crash_after = crash_at, after
        try:
            for plan in plans:
                node.apply(*plan)
        except Crash:
            pass
        assert node.kernel.refused == []
        for crash_in in (second_crash, None):
            node.stop()
            node.start()
            node.kernel.crash_at = node.kernel.calls + crash_in if crash_in else None
            try:
                undo(node.tree.host, node.journal, node.audit.append, writer=node.kernel)
            except Crash:
                continue
        assert bytes_of(node) == before
        assert node.journal.live() == ()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CgroupVersion), st.lists(wishes(), min_size=1, max_size=4))
def test_wishes_arrive_and_leave_no_trace(version: CgroupVersion, plans: list[Plan]) -> None:
    with fresh_node(version) as node:
        before = bytes_of(node)
        for plan in plans:
            report = node.apply(*plan)
            assert (report.failed, report.errors, node.kernel.refused) == (0, (), [])
            calls = node.kernel.calls
            assert node.apply(*plan).written == 0
            assert node.kernel.calls == calls
        node.apply()
        node.apply()
        assert node.executor.held() == ()
        assert bytes_of(node) == before
        assert node.journal.live() == ()
