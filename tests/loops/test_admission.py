"""What a runtime's door brings reaches the kernel between two ticks, and is nobody's for good."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from koordlet.doors.admission import HOLD_S, Inbox
from koordlet.loops import Engine
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.knob import RESTORE, Decision, Knob
from koordlet.model.pod import NO_CLAIM, PodSet
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.sources.runtime import RuntimeSource
from koordlet.sources.sandbox import Sandbox
from tests.loops.engine_rig import Rig

POD = "kubepods/besteffort/podnew"


class Reconciler:
    """Stands for the pod rules: shares for every pod that it sees."""

    name = "podrules"

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []
        self.effects: tuple[Effect, ...] = ()

    def initial(self) -> None:
        return None

    def decide(self, view: NodeView, policy: Policy, state: Any, now_s: float) -> Outcome[None]:
        self.seen.append(tuple(pod.uid for pod in view.pods.pods))
        wanted = tuple(Decision(p.cgroup, Knob.CPU_SHARES, 3000, (), self.name) for p in view.pods.pods)
        return Outcome(wanted, None, effects=self.effects)


class Applied:
    kind = ""

    def __init__(self) -> None:
        self.rounds: list[tuple[Effect, ...]] = []

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        self.rounds.append(effects)
        return EffectReport()

    def restore_all(self, now_s: float, why: str) -> None: ...


@pytest.fixture
def engine(rig: Rig) -> Engine:
    rig.parts.inbox = Inbox()
    rig.parts.strategies = ()
    return Engine(rig.parts)


def shares(rig: Rig) -> str:
    return rig.tree.read(f"cgroup/cpu/{POD}/cpu.shares").strip()


def wish(value: int = 2000) -> tuple[Decision, ...]:
    return (Decision(POD, Knob.CPU_SHARES, value, (), "podrules"),)


def test_a_wish_is_written_at_once_held_and_given_back(rig: Rig, engine: Engine) -> None:
    rig.tree.cgroup(POD)
    before = shares(rig)
    engine.tick(1000.0)
    assert rig.parts.inbox is not None
    rig.parts.inbox.put(wish())
    engine.admit(1000.2)
    assert shares(rig) == "2000"
    engine.tick(1001.0)
    assert shares(rig) == "2000"
    engine.tick(1001.0 + HOLD_S)  # nobody else wants it
    assert shares(rig) == before


def test_what_goes_ahead_of_a_strategy_is_given_back_and_then_wanted_again(rig: Rig) -> None:
    """A resize: the burst of the pod is out of the way while the kubelet writes, whatever a strategy wants."""
    rig.tree.cgroup(POD)
    before = shares(rig)
    rig.parts.inbox = Inbox()
    rig.parts.strategies = (Reconciler(),)
    rig.parts.sources = (source := RuntimeSource(complete=False),)
    source.sandbox(Sandbox("u1", "shop", "new", "sb", f"/{POD}"))
    engine = Engine(rig.parts)
    engine.tick(1000.0)
    assert shares(rig) == "3000"
    rig.parts.inbox.put((Decision(POD, Knob.CPU_SHARES, RESTORE, (), "resize"),))
    engine.admit(1000.2)
    assert shares(rig) == before
    engine.tick(1001.0)
    assert shares(rig) == before
    engine.tick(1001.0 + HOLD_S)
    assert shares(rig) == "3000"


def test_before_the_first_tick_a_wish_waits(rig: Rig, engine: Engine) -> None:
    rig.tree.cgroup(POD)
    assert rig.parts.inbox is not None
    rig.parts.inbox.put(wish())
    assert engine.admit(999.0) is None
    engine.tick(1000.0)
    assert shares(rig) == "2000"


def test_a_new_pod_is_judged_at_once_and_the_strategys_wish_wins(rig: Rig, engine: Engine) -> None:
    rig.tree.cgroup(POD)
    source, rules = RuntimeSource(complete=False), Reconciler()
    rig.parts.sources = (rig.pods, source)
    rig.parts.strategies = (rules,)
    engine = Engine(rig.parts)
    engine.tick(1000.0)
    assert rig.parts.inbox is not None
    source.sandbox(Sandbox("u1", "shop", "new", "sb", f"/{POD}"))
    rig.parts.inbox.put(wish(), news=True)
    snapshot = engine.admit(1000.2)
    assert rules.seen == [(), ("u1",)]
    assert snapshot is not None
    assert [pod.uid for pod in snapshot.view.pods.pods] == ["u1"]
    assert shares(rig) == "3000"
    engine.tick(1001.0 + HOLD_S)
    assert shares(rig) == "3000"  # the reconciler's now


def test_news_of_nothing_new_judges_nothing(rig: Rig, engine: Engine) -> None:
    rules = Reconciler()
    rig.parts.strategies = (rules,)
    engine = Engine(rig.parts)
    engine.tick(1000.0)
    assert rig.parts.inbox is not None
    rig.parts.inbox.put(news=True)
    engine.admit(1000.1)
    assert len(rules.seen) == 1


def test_an_effect_is_carried_out_once_for_both_who_want_it(rig: Rig, engine: Engine) -> None:
    rules, applied = Reconciler(), Applied()
    rig.parts.strategies, rig.parts.appliers = (rules,), (applied,)
    engine = Engine(rig.parts)
    engine.tick(1000.0)
    assert rig.parts.inbox is not None
    ours, its = Effect("pod-1", (("from", "door"),), "podrules"), Effect("pod-1", (), "podrules")
    rig.parts.inbox.put((), (ours,))
    engine.admit(1000.2)
    rules.effects = (its,)
    engine.tick(1001.0)
    rules.effects = ()
    engine.tick(1001.0 + HOLD_S)
    assert applied.rounds == [(), (ours,), (its,), ()]


@pytest.mark.parametrize(
    ("ages", "expected"),
    [((5.0, NO_CLAIM), 5.0), ((None, NO_CLAIM), None), ((NO_CLAIM,), 1000.0), ((5.0, 3.0), 3.0), ((5.0,), 5.0)],
)
def test_a_source_that_claims_nothing_does_not_make_others_younger(
    rig: Rig, ages: tuple[float | None, ...], expected: float | None
) -> None:
    """case kubelet-unreachable-keeps-pods: a runtime that answers says nothing about a kubelet that does not."""

    @dataclasses.dataclass
    class Aged:
        at_s: float | None

        def poll(self, now_s: float) -> PodSet:
            return PodSet((), 1, self.at_s)

    rig.parts.sources = tuple(Aged(at_s) for at_s in ages)
    assert Engine(rig.parts).tick(1000.0).view.pods.at_s == expected
