"""The engine on a copied node in virtual time: the rooms together, isolation of failures, nothing that grows."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordlet.act.executor import Executor
from koordlet.act.job import Job
from koordlet.act.journal import Journal
from koordlet.decide.strategies import STRATEGIES
from koordlet.kernel.write import write_file
from koordlet.loops import MAX_FAILED_TICKS, Engine, run
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.eviction import Evict
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Container, Pod, PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import NodeSlo, SuppressPolicy, Threshold
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy, Reading, SurgePlan
from koordlet.model.why import stages
from koordlet.parts import Parts
from koordlet.sense.betree import RootReader
from koordlet.sense.sampler import Sampler
from koordlet.sense.sentinel import Sentinel
from koordlet.store.rings import RingStore
from tests.hosts.tree import HostTree, v1_two_sockets_ht

BE = "kubepods/besteffort"
POLICY = Policy(
    slo=NodeSlo(threshold=Threshold(enable=True, cpu_suppress_policy=SuppressPolicy.CFS_QUOTA)),
    gates=frozenset({"BECPUSuppress"}),
)
SUPPORT = Support({k.value: Capability(k.value, Level.NATIVE, "test") for k in (Knob.CPU_IDLE, Knob.CPU_SHARES)})


class Pods:
    """A source whose pods come and go."""

    def __init__(self, tree: HostTree) -> None:
        self.tree, self.set = tree, PodSet((), 1, 0.0)

    def poll(self, now_s: float) -> PodSet:
        return self.set

    def put(self, numbers: range, now_s: float) -> None:
        pods = []
        for number in numbers:
            be = number % 2 == 1
            cgroup = f"kubepods/{'besteffort' if be else 'burstable'}/pod{number}"
            if not (self.tree.root / "cgroup/cpu" / cgroup).exists():
                self.tree.cgroup(cgroup)
                self.tree.cgroup(f"{cgroup}/c")
            pods.append(
                Pod(
                    uid=f"uid-{number}",
                    namespace="default",
                    name=f"pod-{number}",
                    cgroup=cgroup,
                    kube_qos=KubeQos.BESTEFFORT if be else KubeQos.BURSTABLE,
                    qos=Qos.BE if be else Qos.LS,
                    containers=(Container("c", id=f"containerd://{number}", cgroup=f"{cgroup}/c", running=True),),
                )
            )
        self.set = PodSet(tuple(pods), self.set.revision + 1, now_s)

    def burn(self, pod: str, cpu_ns: int) -> None:
        for target in (pod, f"{pod}/c"):
            path = self.tree.root / "cgroup/cpuacct" / target / "cpuacct.usage"
            path.write_text(f"{int(path.read_text()) + cpu_ns}\n")


class Be:
    """doubted: times at which what is known below the roots was to be looked at anew."""

    def __init__(self, tree: HostTree) -> None:
        self.reader = RootReader(tree.host)
        self.doubted: list[float] = []

    def roots(self, pods: PodSet, now_s: float) -> tuple[tuple[str, Tree], ...]:
        return ((BE, Tree.KUBELET),)

    def read(self, path: str, tree: Tree, pods: PodSet, now_s: float) -> BeRoot:
        return self.reader.read(path, tree, ((path,),))

    def refresh(self, now_s: float, *, anew: bool) -> None:
        if anew:
            self.doubted.append(now_s)


@dataclasses.dataclass
class Rig:
    tree: HostTree
    pods: Pods
    parts: Parts
    now_s: float = 1000.0
    busy_ticks: int = 0

    def node_burn(self, mcpu: int) -> None:
        """The whole node's usage over the next second, as /proc/stat has it (100 ticks a second)."""
        self.busy_ticks += mcpu // 10
        self.tree.put("proc/stat", f"cpu  {self.busy_ticks} 0 0 99999 0 0 0 0 0 0\n")

    @property
    def quota_us(self) -> int:
        return int(self.tree.read(f"cgroup/cpu/{BE}/cpu.cfs_quota_us"))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    tree = v1_two_sockets_ht(tmp_path / "node")
    for target in ("kubepods", "kubepods/burstable", BE):
        tree.cgroup(target)
    tree.put("proc/stat", "cpu  0 0 0 99999 0 0 0 0 0 0\n")
    pods = Pods(tree)
    sampler = Sampler(tree.host, RingStore(), nominal_time=True)
    journal = Journal(tmp_path / "journal", "boot")
    be = Be(tree)
    parts = Parts(
        sources=(pods,),
        sense=sampler,
        be=be,
        watch=None,
        act=Executor(tree.host, journal, lambda record: None),
        strategies=STRATEGIES,
        policy=lambda now_s: POLICY,
        node=lambda now_s: NodeInfo(name="n", capacity_mcpu=16_000),
        support=lambda now_s: SUPPORT,
        wall=lambda: 0.0,
    )
    yield Rig(tree, pods, parts)
    sampler.close()
    be.reader.close()
    journal.close()


def test_usage_becomes_a_quota_in_the_kernel(rig: Rig) -> None:
    engine = Engine(rig.parts)
    rig.pods.put(range(2), rig.now_s)
    for _ in range(4):
        rig.pods.burn("kubepods/burstable/pod0", 4_000_000_000)
        rig.node_burn(5_000)
        engine.tick(rig.now_s)
        rig.now_s += 1
    # 16 CPUs at 65 % less 4 of the pod and 1 of the system.
    assert rig.quota_us == 540_000


def test_a_failing_strategy_keeps_its_decisions_and_the_others_go_on(rig: Rig) -> None:
    class Broken:
        name = "broken"
        fail = False

        def initial(self) -> None:
            return None

        def decide(self, view: NodeView, policy: Policy, state: Any, now_s: float) -> Outcome[None]:
            if self.fail:
                raise RuntimeError("on purpose")
            return Outcome((), None)

    broken = Broken()
    rig.parts.strategies = (broken, *STRATEGIES)
    engine = Engine(rig.parts)
    rig.pods.put(range(2), rig.now_s)
    for tick in range(6):
        broken.fail = tick >= 2
        rig.pods.burn("kubepods/burstable/pod0", 1_000_000_000)
        rig.node_burn(1_000)
        snapshot = engine.tick(rig.now_s + tick)
    assert snapshot.stats.strategy_errors == {"broken": "RuntimeError: on purpose"}
    assert rig.quota_us > 0
    broken.fail = False
    assert engine.tick(rig.now_s + 6).stats.strategy_errors == {}


def test_a_sentinel_without_descriptors_does_not_end_the_loop(rig: Rig) -> None:
    """The ticks still see; only the looks between them are missing, and a line says so."""

    class Blind(Sentinel):
        def set_sources(self, be_roots: tuple[str, ...], ls_groups: tuple[str, ...]) -> list[str]:
            raise OSError(errno.EMFILE, "Too many open files")

    rig.parts.watch = blind = Blind(rig.tree.host)
    try:
        engine = Engine(rig.parts)
        rig.pods.put(range(2), rig.now_s)
        with capture_logs() as logs:
            for tick in range(4):
                rig.pods.burn("kubepods/burstable/pod0", 4_000_000_000)
                rig.node_burn(5_000)
                engine.tick(rig.now_s + tick)
    finally:
        blind.close()
    assert rig.quota_us == 540_000
    assert [line["what"] for line in logs if line["event"] == "note"] == ["sentinel: Too many open files"]


def test_a_refused_write_makes_us_doubt_what_is_below_the_roots(rig: Rig, tmp_path: Path) -> None:
    refusals = [errno.EINVAL]

    def write(path: Path, data: bytes) -> None:
        if path.name == "cpu.cfs_quota_us" and refusals:
            raise OSError(refusals.pop(), "a child has more")
        write_file(path, data)

    journal = Journal(tmp_path / "other", "boot")
    rig.parts.act = Executor(rig.tree.host, journal, lambda record: None, writer=write)
    rig.parts.policy = lambda now_s: dataclasses.replace(POLICY, identity=False)
    engine = Engine(rig.parts)
    rig.pods.put(range(2), rig.now_s)
    for tick in range(5):
        rig.node_burn(5_000)
        rig.pods.burn("kubepods/burstable/pod0", 4_000_000_000)
        engine.tick(rig.now_s + tick)
    assert isinstance(rig.parts.be, Be)
    assert len(rig.parts.be.doubted) == 1
    assert rig.quota_us == 540_000
    journal.close()


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


def test_the_loop_waits_for_a_node_without_complaint_and_works_once_it_is_there(rig: Rig) -> None:
    """Case node-object-not-ready: thirty rounds without a node, then one."""
    infos = [NodeInfo(name="n")] * 30 + [NodeInfo(name="n", capacity_mcpu=16_000)] * 30
    rig.parts.node = lambda now_s: infos[int(now_s) - 1000]
    engine = Engine(rig.parts)
    rig.pods.put(range(2), rig.now_s)
    for tick in range(60):
        rig.node_burn(1_000)
        snapshot = engine.tick(rig.now_s + tick)
        assert snapshot.stats.strategy_errors == {}
        if tick == 29:
            assert rig.quota_us == -1
    assert rig.quota_us > 0


class Names:
    """A strategy that notes which pods it was shown."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[str, ...]] = []

    def initial(self) -> None:
        return None

    def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
        self.seen.append(tuple(pod.name for pod in view.pods.pods))
        return Outcome((), None)


def test_pods_that_come_between_two_ticks_are_judged_at_once_by_those_that_want_it(rig: Rig) -> None:
    prompt, patient = Names("prompt"), Names("patient")
    rig.parts.strategies, rig.parts.on_pods = (prompt, patient), ("prompt",)
    engine = Engine(rig.parts)
    assert engine.arrivals(rig.now_s) is None  # before the first tick there is nothing to judge
    rig.pods.put(range(1), rig.now_s)
    engine.tick(rig.now_s)
    assert engine.arrivals(rig.now_s + 0.1) is None  # nothing new
    rig.pods.put(range(2), rig.now_s + 0.2)
    snapshot = engine.arrivals(rig.now_s + 0.3)
    assert snapshot is not None
    assert [pod.name for pod in snapshot.view.pods.pods] == ["pod-0", "pod-1"]
    assert (prompt.seen[-1], len(prompt.seen), len(patient.seen)) == (("pod-0", "pod-1"), 2, 1)
    engine.tick(rig.now_s + 1)
    assert patient.seen[-1] == ("pod-0", "pod-1")


@pytest.mark.timeout(600)
def test_nothing_grows_over_twenty_thousand_ticks_with_pods_coming_and_going(rig: Rig) -> None:
    engine = Engine(rig.parts)
    size: list[tuple[int, int]] = []
    for tick in range(20_000):
        now_s = rig.now_s + tick
        if tick % 4 == 0:
            first = tick // 4 % 20
            rig.pods.put(range(first, first + 12), now_s)
        if tick % 16 == 0:
            rig.node_burn(16_000 + tick % 7 * 100)
        engine.tick(now_s)
        if tick in (5_000, 19_999):
            size.append((len(os.listdir("/proc/self/fd")), _rss_kb()))
    (fds, rss_kb), (fds_end, rss_end_kb) = size
    assert fds_end <= fds + 2
    assert rss_end_kb <= rss_kb + 2_048


def _rss_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


class Faulty:
    """An engine some of whose ticks fail: True is a good one."""

    def __init__(self, rig: Rig, ticks: list[bool]) -> None:
        rig.parts.watch, rig.parts.inbox, rig.parts.interval_s = None, None, 0.001
        self.parts, self.ticks, self.done = rig.parts, ticks, 0

    def tick(self, now_s: float) -> None:
        self.done += 1
        if not self.ticks[self.done - 1]:
            raise OSError(24, "Too many open files")

    def late(self) -> None: ...

    def ended(self) -> bool:
        return self.done == len(self.ticks)


@pytest.mark.parametrize(("ticks", "ends"), [([True] + [False] * 4 + [True, False] * 3, True), ([False] * 12, False)])
def test_a_failing_tick_is_tried_again_but_not_for_ever(rig: Rig, ticks: list[bool], ends: bool) -> None:
    engine = Faulty(rig, ticks)
    read_fd, write_fd = os.pipe()
    good: list[float] = []
    try:
        if ends:
            run(engine, engine.ended, read_fd, good.append)  # type: ignore[arg-type]
            assert len(good) == sum(ticks)
        else:
            with pytest.raises(OSError, match="Too many open files"):
                run(engine, engine.ended, read_fd, good.append)  # type: ignore[arg-type]
            assert engine.done == MAX_FAILED_TICKS
    finally:
        os.close(read_fd)
        os.close(write_fd)
