"""Defragmentation over the loop: asked from outside, done by one tick, in the kernel's order, journaled, remembered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.act.executor import Executor
from koordlet.act.journal import Journal
from koordlet.act.undo import undo
from koordlet.decide.pinning.assign import assign
from koordlet.decide.strategies import STRATEGIES
from koordlet.kernel.host import CgroupVersion
from koordlet.loops import Engine
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Pod, PodSet, Tree
from koordlet.model.qos import Qos
from koordlet.model.slo import NodeSlo
from koordlet.model.support import Support
from koordlet.model.view import BeRoot, NodeInfo, Policy
from koordlet.parts import Parts
from koordlet.sense.sampler import Sampler
from koordlet.store.pins import PinFile
from koordlet.store.rings import RingStore
from koordlet.wiring.pinning import PinnedSource
from tests.hosts.fake_kernel import FakeKernel
from tests.hosts.tree import HostTree
from tests.unit.decide.pinning.test_assign import NODE, workload

ALL = CpuSet(range(16))
POLICY = Policy(slo=NodeSlo(), gates=frozenset({"CPUSetAllocator"}))


class Declared:
    def __init__(self) -> None:
        self.set = PodSet((), 1, 0.0)

    def poll(self, now_s: float) -> PodSet:
        return self.set

    def put(self, *pods: Pod) -> None:
        self.set = PodSet(tuple(sorted(pods, key=lambda pod: pod.name)), self.set.revision + 1, 0.0)


class NoRoots:
    def roots(self, pods: PodSet, now_s: float) -> tuple[tuple[str, Tree], ...]:
        return ()

    def read(self, path: str, tree: Tree, pods: PodSet, now_s: float) -> BeRoot:
        raise AssertionError

    def refresh(self, now_s: float, *, anew: bool) -> None: ...


@dataclass
class Rig:
    tree: HostTree
    kernel: FakeKernel
    journal: Journal
    declared: Declared
    pinned: PinnedSource
    file: Path
    engine: Engine
    node: NodeInfo = NODE
    now_s: float = 1000.0

    def tick(self) -> None:
        self.now_s += 1
        self.engine.tick(self.now_s)

    def cpus(self, name: str) -> CpuSet:
        return CpuSet.parse(self.tree.read(f"cgroup/cpuset/{name}.slice/cpuset.cpus").strip())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    tree = HostTree(tmp_path / "host", CgroupVersion.V1)
    tree.put("proc/stat", "cpu  0 0 0 99999 0 0 0 0 0 0\n")
    for name in ("big", "ls", *"abcdefgh"):
        tree.cgroup(f"{name}.slice", {"cpuset.cpus": "0-15\n"})
    kernel = FakeKernel(tree, online=ALL)
    journal = Journal(tmp_path / "journal", "boot")
    sampler = Sampler(tree.host, RingStore(), nominal_time=True)
    declared, file = Declared(), tmp_path / "pins.json"
    made: dict[str, Any] = {}
    pinned = PinnedSource(declared, lambda now_s: made["rig"].node, PinFile(file))
    engine = Engine(
        Parts(
            sources=(pinned,),
            sense=sampler,
            be=NoRoots(),
            watch=None,
            act=Executor(tree.host, journal, lambda record: None, writer=kernel),
            strategies=STRATEGIES,
            policy=lambda now_s: POLICY,
            node=lambda now_s: made["rig"].node,
            support=lambda now_s: Support(),
            wall=lambda: 0.0,
        )
    )
    made["rig"] = Rig(tree, kernel, journal, declared, pinned, file, engine)
    yield made["rig"]
    sampler.close()
    journal.close()


def running(name: str, cpus: int, **more: Any) -> Pod:
    made = workload(name, cpus, **more)
    return replace(made, containers=tuple(replace(container, running=True) for container in made.containers))


def scattered(rig: Rig) -> list[Pod]:
    """Four small workloads that are left of eight, an LS one on the rest, and one on both nodes."""
    pods = [running(name, 2) for name in "abcdefgh"]
    rig.declared.put(*pods)
    rig.tick()
    left = [*pods[4:], running("ls", 0, qos=Qos.LS), running("big", 6)]
    rig.declared.put(*left)
    rig.tick()
    return left


def test_one_tick_moves_everybody_and_undo_still_knows_the_way_back(rig: Rig) -> None:
    left = scattered(rig)
    plan = rig.pinned.plan()
    assert plan is not None
    before = {pod.name: rig.cpus(pod.name) for pod in left}
    assert {move.name for move in plan.moves} >= {"local/big"}
    rig.tick()
    assert {pod.name: rig.cpus(pod.name) for pod in left} == before  # nobody asked
    refused = len(rig.kernel.refused)
    assert rig.pinned.ask(plan.id) == ""
    rig.tick()
    after = {pod.name: rig.cpus(pod.name) for pod in left}
    moved = {move.name.removeprefix("local/"): move.after for move in plan.moves}
    assert {name: after[name] for name in moved} == moved
    assert {name for name in after if after[name] != before[name]} - {"ls"} == moved.keys()
    own = [cpu for name, cpus in after.items() if name != "ls" for cpu in cpus]
    assert len(own) == len(set(own))
    assert after["ls"] == ALL - CpuSet(own)
    assert len(rig.kernel.refused) == refused  # every step was one that the kernel takes
    assert PinFile(rig.file).load() == plan.held  # a restart moves nobody
    assert assign(left, PinFile(rig.file).load(), NODE).held == plan.held
    assert rig.pinned.answered == ("", "")
    rig.tick()
    assert rig.pinned.answered == (plan.id, "")  # told when it is in the kernel
    again = rig.pinned.plan()
    assert again is not None
    assert again.moves == ()
    report = undo(rig.tree.host, rig.journal, lambda record: None, writer=rig.kernel)
    assert report.failed == 0
    assert all(rig.cpus(pod.name) == ALL for pod in left)


def test_a_plan_that_is_out_of_date_moves_nobody(rig: Rig) -> None:
    left = scattered(rig)
    plan = rig.pinned.plan()
    assert plan is not None
    assert rig.pinned.ask(plan.id) == ""
    rig.declared.put(*left[1:])  # one left between the request and the tick
    rig.tick()
    assert rig.pinned.answered[0] == plan.id
    assert "have changed" in rig.pinned.answered[1]
    assert str(rig.cpus("big")) == str(next(move.before for move in plan.moves if move.uid == "big"))
    assert "have changed" in rig.pinned.ask(plan.id)


def test_a_file_that_cannot_be_written_moves_nobody(rig: Rig) -> None:
    left = scattered(rig)
    before = {pod.name: rig.cpus(pod.name) for pod in left}
    plan = rig.pinned.plan()
    assert plan is not None
    rig.file.with_suffix(".new").mkdir()
    rig.pinned.ask(plan.id)
    rig.tick()
    assert "pins.json" in rig.pinned.answered[1]
    assert {pod.name: rig.cpus(pod.name) for pod in left} == before


def test_an_agent_that_observes_only_plans(rig: Rig) -> None:
    source = PinnedSource(rig.declared, lambda now_s: NODE, None)
    assert source.plan() is None
    scattered(rig)
    source.poll(0.0)
    plan = source.plan()
    assert plan is not None
    assert "only observes" in source.ask(plan.id)
