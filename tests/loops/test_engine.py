"""The engine on a copied node in virtual time: the rooms together, isolation of failures, nothing that grows."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordlet.act.executor import Executor
from koordlet.act.journal import Journal
from koordlet.decide.strategies import STRATEGIES
from koordlet.kernel.write import write_file
from koordlet.loops import MAX_FAILED_TICKS, Engine, run
from koordlet.model.view import NodeInfo, NodeView, Outcome, Policy
from koordlet.sense.sentinel import Sentinel
from tests.loops.engine_rig import POLICY, Be, Names, Rig


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
