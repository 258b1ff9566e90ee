"""Whom the engine asks and when: strategies whose answer holds, appliers, what may not wait for a pass of writes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from koordlet.act.executor import Executor
from koordlet.act.job import Job
from koordlet.act.journal import Journal
from koordlet.kernel.write import write_file
from koordlet.loops import Engine
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.eviction import Evict
from koordlet.model.knob import Decision, Knob
from koordlet.model.view import NodeInfo, NodeView, Outcome, Policy, Reading, SurgePlan
from koordlet.model.why import stages
from koordlet.sense.sentinel import Sentinel
from tests.loops.engine_rig import BE, POLICY, Names, Rig


class Counting:
    """Asked how often; its answer holds until `until_s`."""

    def __init__(self, until_s: float) -> None:
        self.name, self.until_s, self.asked, self.fail = "counting", until_s, 0, False

    def initial(self) -> None:
        return None

    def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
        self.asked += 1
        if self.fail:
            raise RuntimeError("on purpose")
        return Outcome((), None, until_s=self.until_s)


def test_a_strategy_whose_answer_holds_is_asked_again_when_facts_change(rig: Rig) -> None:
    one = Counting(math.inf)
    rig.parts.strategies = (one,)
    engine = Engine(rig.parts)
    rig.pods.put(range(2), rig.now_s)

    def ticks(count: int) -> int:
        before = one.asked
        for _ in range(count):
            rig.now_s += 1
            rig.node_burn(3_000)
            engine.tick(rig.now_s)
        return one.asked - before

    assert ticks(5) == 1
    rig.pods.put(range(3), rig.now_s)
    assert ticks(5) == 1
    rig.parts.policy = lambda now_s: dataclasses.replace(POLICY, identity=False)
    assert ticks(5) == 1
    rig.parts.node = lambda now_s: NodeInfo(name="n", capacity_mcpu=8_000)
    assert ticks(5) == 1
    (rig.tree.root / f"cgroup/cpu/{BE}/cpu.shares").write_text("7\n")
    assert ticks(5) == 1


def test_it_is_asked_again_in_time_and_after_a_fault(rig: Rig) -> None:
    one = Counting(rig.now_s + 4.5)
    rig.parts.strategies = (one,)
    engine = Engine(rig.parts)
    for second in range(4):
        engine.tick(rig.now_s + second)
    assert one.asked == 1
    one.until_s, one.fail = math.inf, True
    for second in range(5, 8):
        engine.tick(rig.now_s + second)
    assert one.asked == 4  # a fault is no answer
    one.fail = False
    for second in range(8, 12):
        engine.tick(rig.now_s + second)
    assert one.asked == 5


def test_an_applier_with_nothing_to_do_is_left_alone_until_something_is_wanted(rig: Rig) -> None:
    calls: list[int] = []
    wish = Evict(target="uid-1", why=stages(rule="test"), owner="suppress")

    class Wanting(Names):
        effects: tuple[Effect, ...] = ()

        def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
            return Outcome((), None, effects=self.effects)

    class Resting:
        kind = Evict.kind
        until_s = math.inf

        def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
            calls.append(len(effects))
            if self.until_s == 0:
                raise OSError("on purpose")
            return EffectReport(until_s=self.until_s)

        def restore_all(self, now_s: float, why: str) -> None: ...

    strategy, applier = Wanting("suppress"), Resting()
    rig.parts.strategies, rig.parts.appliers = (strategy,), (applier,)
    engine = Engine(rig.parts)
    for second in range(3):
        engine.tick(rig.now_s + second)
    assert calls == [0]
    strategy.effects = (wish,)
    for second in range(3, 6):
        engine.tick(rig.now_s + second)
    assert calls == [0, 1]
    strategy.effects, applier.until_s = (), 0
    for second in range(6, 9):
        engine.tick(rig.now_s + second)
    assert calls == [0, 1, 0, 0, 0]  # what failed is tried again


class Ending:
    """An applier of evictions that notes them."""

    kind = Evict.kind

    def __init__(self, done: list[str]) -> None:
        self.done = done

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        self.done.extend(effect.target for effect in effects)
        return EffectReport()

    def restore_all(self, now_s: float, why: str) -> None: ...


def test_an_eviction_does_not_wait_for_the_writes(rig: Rig, tmp_path: Path) -> None:
    done: list[str] = []

    class Wanting(Names):
        def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
            why = stages(rule="test")
            wish = Evict(target="uid-1", why=why, owner=self.name)
            return Outcome((Decision(BE, Knob.CPU_SHARES, 7, why, self.name),), None, effects=(wish,))

    def write(path: Path, data: bytes) -> None:
        done.append(path.name)
        write_file(path, data)

    journal = Journal(tmp_path / "other", "boot")
    rig.parts.act = Executor(rig.tree.host, journal, lambda record: None, writer=write)
    rig.parts.strategies, rig.parts.appliers = (Wanting("suppress"),), (Ending(done),)
    Engine(rig.parts).tick(rig.now_s)
    journal.close()
    assert done == ["uid-1", "cpu.shares"]


def test_memory_that_runs_out_amid_the_writes_is_not_kept_waiting_by_them(rig: Rig, tmp_path: Path) -> None:
    """A tick with many writes took 0.8 s in the kernel lab, and the online side had taken the rest meanwhile."""
    line, done = 900, list[str]()

    class Alarm(Sentinel):
        """It fires once, amid the writes; a look says that 950 bytes are in use."""

        due = 0

        def take(self) -> bool:
            self.due += 1
            return self.due == 1

        def memory(self) -> tuple[Reading | None, Reading | None]:
            return (Reading(950.0, rig.now_s + 0.5) if self.due else None), None

    class Watching(Names):
        def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
            used, why = view.usage.node_memory_bytes, stages(rule="test")
            over = used is not None and line < used.value < 1000
            wishes = tuple(Decision(BE, knob, 7000, why, self.name) for knob in (Knob.CPU_SHARES, Knob.CPU_QUOTA))
            effects = (Evict(target="uid-1", why=why, owner=self.name),) if over else ()
            return Outcome(wishes, None, effects=effects, plan=SurgePlan(memory_used_bytes=line))

    def write(path: Path, data: bytes) -> None:
        done.append(path.name)
        write_file(path, data)

    def observed(job: Job, ms: float, ok: bool) -> None:
        engine.between_writes(rig.now_s + 0.5)

    journal = Journal(tmp_path / "other", "boot")
    rig.parts.act = Executor(rig.tree.host, journal, lambda record: None, writer=write, observed=observed)
    rig.parts.strategies, rig.parts.appliers = (Watching("memory"),), (Ending(done),)
    rig.parts.watch = alarm = Alarm(rig.tree.host)
    engine = Engine(rig.parts)
    engine.tick(rig.now_s)
    alarm.close()
    journal.close()
    assert done == ["cpu.cfs_quota_us", "uid-1", "cpu.shares"]
