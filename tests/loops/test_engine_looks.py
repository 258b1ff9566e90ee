"""When the engine asks for all of its inputs, and when only for what is used."""

from __future__ import annotations

import dataclasses

import pytest

from koordlet.loops import LOOK_EVERY_S, Engine
from koordlet.model.pod import PodSet
from koordlet.model.view import NodeInfo, NodeView, Outcome, Policy
from tests.loops.engine_rig import BE, POLICY, Names, Rig

# Weights of the copied node's files do not read back as written.
QUIET = dataclasses.replace(POLICY, identity=False)


class Quiet:
    """An engine in whose rig nothing changes unless it is said; counts how often its source is asked."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.asked, self.changed = rig, 0, False
        self.source, rig.pods = rig.pods, rig.pods
        rig.parts.sources = (self,)
        rig.parts.changed, rig.parts.policy = self._told, lambda now_s: QUIET
        self.source.put(range(4), rig.now_s)
        self.engine = Engine(rig.parts)

    def poll(self, now_s: float) -> PodSet:
        self.asked += 1
        return self.source.poll(now_s)

    def _told(self, now_s: float) -> bool:
        told, self.changed = self.changed, False
        return told

    def ticks(self, count: int, node_mcpu: int = 2_000) -> list[int]:
        """How often the source was asked in each."""
        asked = []
        for _ in range(count):
            before = self.asked
            self.rig.now_s += 1
            self.rig.node_burn(node_mcpu)
            self.engine.tick(self.rig.now_s)
            asked.append(self.asked - before)
        return asked


def _fail(now_s: float) -> NodeInfo:
    raise OSError("on purpose")


@pytest.fixture
def quiet(rig: Rig) -> Quiet:
    made = Quiet(rig)
    made.ticks(12)  # settled: the quota is written
    while made.ticks(1) == [0]:
        pass
    return made


def test_while_nothing_changes_inputs_are_asked_for_every_five_seconds(quiet: Quiet) -> None:
    assert LOOK_EVERY_S == 5
    assert quiet.ticks(12) == [0, 0, 0, 0, 1] * 2 + [0, 0]


def test_usage_is_taken_and_judged_in_every_tick(quiet: Quiet) -> None:
    before_us = quiet.rig.quota_us
    assert quiet.ticks(2) == [0, 0]
    quiet.rig.pods.burn("kubepods/burstable/pod0", 6_000_000_000)
    asked = quiet.ticks(1, 6_000)
    snapshot = quiet.engine.snapshot
    assert asked == [0]
    assert snapshot is not None
    assert snapshot.view.now_s == quiet.rig.now_s
    node = snapshot.view.usage.node_mcpu
    assert node is not None
    assert (node.value, node.at_s) == (6_000, quiet.rig.now_s)
    found = snapshot.view.workloads["kubepods/burstable/pod0"].cpu_mcpu
    assert found is not None
    assert found.value == pytest.approx(6_000)
    assert quiet.rig.quota_us < before_us


def test_a_change_is_taken_up_in_the_same_tick(quiet: Quiet) -> None:
    quiet.source.put(range(6), quiet.rig.now_s)
    quiet.rig.parts.policy = lambda now_s: dataclasses.replace(QUIET, floor_percent=20)
    quiet.changed = True
    assert quiet.ticks(2) == [1, 0]
    snapshot = quiet.engine.snapshot
    assert snapshot is not None
    assert len(snapshot.view.pods.pods) == 6


def test_what_nobody_told_of_is_seen_within_five_seconds(quiet: Quiet) -> None:
    facts = NodeInfo(name="n", capacity_mcpu=8_000)
    quiet.rig.parts.node = lambda now_s: facts
    seen = []
    for _ in range(5):
        quiet.ticks(1)
        assert quiet.engine.snapshot is not None
        seen.append(quiet.engine.snapshot.view.node is facts)
    assert seen == [False] * 4 + [True]


def test_after_a_refused_write_the_next_tick_looks(quiet: Quiet) -> None:
    quota = quiet.rig.tree.root / f"cgroup/cpu/{BE}/cpu.cfs_quota_us"
    quiet.ticks(1)
    quota.unlink()
    quota.mkdir()
    asked = quiet.ticks(2, 9_000)
    quota.rmdir()
    assert asked == [0, 1]


def test_news_between_two_ticks_make_the_next_one_look(quiet: Quiet) -> None:
    quiet.ticks(1)
    quiet.source.put(range(5), quiet.rig.now_s)
    assert quiet.engine.arrivals(quiet.rig.now_s + 0.5) is not None
    assert quiet.ticks(2) == [1, 0]


def test_a_look_that_fails_is_made_up_for_in_the_next_tick(quiet: Quiet) -> None:
    quiet.ticks(1)
    real, quiet.rig.parts.node = quiet.rig.parts.node, _fail
    quiet.source.put(range(6), quiet.rig.now_s)
    quiet.changed = True
    with pytest.raises(OSError, match="on purpose"):
        quiet.ticks(1)
    quiet.rig.parts.node = real
    assert quiet.ticks(2) == [1, 0]
    assert quiet.engine.snapshot is not None
    assert len(quiet.engine.snapshot.view.pods.pods) == 6


def test_looks_keep_their_pace_though_ticks_are_not_quite_on_time(quiet: Quiet) -> None:
    asked = []
    for number in range(15):
        quiet.rig.now_s += (-1) ** number * 0.002
        asked += quiet.ticks(1)
    assert sum(asked) == 3


def test_on_request_the_next_tick_looks(quiet: Quiet) -> None:
    quiet.ticks(1)
    quiet.engine.look_anew()
    assert quiet.ticks(2) == [1, 0]


def test_the_policy_is_an_input_too(quiet: Quiet) -> None:
    asked: list[float] = []

    def policy(now_s: float) -> Policy:
        asked.append(now_s)
        return QUIET

    quiet.rig.parts.policy = policy
    quiet.ticks(2)
    assert asked == []
    quiet.ticks(3)
    assert len(asked) == 1


def test_whoever_asks_amid_a_tick_gets_the_usage_of_the_rows(rig: Rig) -> None:
    """Deciding and writing come between a pass and its snapshot, and may take a while."""
    told: list[tuple[float, float]] = []

    class Asking(Names):
        def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
            snapshot, rows = engine.latest()
            pods = snapshot.view.usage.pods_mcpu if snapshot else None
            own = sum(row.cpu_mcpu.value for row in rows if row.cpu_mcpu and not row.container)
            told.append((pods.value if pods else -1, own))
            return Outcome((), None)

    rig.parts.strategies = (Asking("asking"),)
    rig.pods.put(range(2), rig.now_s)
    engine = Engine(rig.parts)
    for mcpu in (0, 0, 0, 1_000, 3_000, 500):
        rig.now_s += 1
        rig.pods.burn("kubepods/burstable/pod0", mcpu * 1_000_000)
        rig.node_burn(mcpu)
        engine.tick(rig.now_s)
    assert told == [(-1, 0), (0, 0), (0, 0), (1_000, 1_000), (3_000, 3_000), (500, 500)]
