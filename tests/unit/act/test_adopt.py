"""Values that a runtime wrote for us: given back as what the runtime had been asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordlet.act.undo import undo
from koordlet.doors.replies import Replies
from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Container, Pod
from koordlet.model.podevent import Hook, LinuxResources, PodEvent
from koordlet.model.qos import KubeQos
from koordlet.model.units import shares_to_weight_log
from tests.hosts.act_node import MakeNode, Node, want

POD, BOX = "be/pod", "be/pod/c"
ASKED = LinuxResources(cpu_shares=2)
GIVEN = LinuxResources(
    cpu_shares=512, cpu_quota_us=50_000, cpuset=CpuSet.parse("0-3"), memory_limit_bytes=64 << 20, oom_score_adj=900
)
WISHES = (
    want(BOX, Knob.CPU_SHARES, 512, "podrules"),
    want(BOX, Knob.CPU_QUOTA, 50_000, "podrules"),
    want(BOX, Knob.CPUSET, CpuSet.parse("0-3"), "podrules"),
    want(BOX, Knob.MEMORY_LIMIT, 64 << 20, "podrules"),
)
V1 = {
    "cpu.shares": "512\n",
    "cpu.cfs_quota_us": "50000\n",
    "cpuset.cpus": "0-3\n",
    "memory.limit_in_bytes": "67108864\n",
}
V2 = {"cpu.weight": "20\n", "cpu.max": "50000 100000\n", "cpuset.cpus": "0-3\n", "memory.max": "67108864\n"}


def pod(directory: str = BOX) -> Pod:
    return Pod(
        uid="u", namespace="n", name="p", cgroup=POD, kube_qos=KubeQos.BESTEFFORT,
        containers=(Container("c", "containerd://1", directory, running=True),),
    )  # fmt: skip


def event(hook: Hook, asked: LinuxResources) -> PodEvent:
    return PodEvent(hook, pod(""), Container("c"), asked=asked)


class Told:
    """A node whose runtime asks before it makes the container."""

    def __init__(self, node: Node, *, asked: LinuxResources = ASKED, given: LinuxResources = GIVEN) -> None:
        self.node = node
        self.pods: tuple[Pod, ...] = ()
        self.replies = node.replies = Replies(lambda: self.pods)
        node.stop()
        node.start()
        self.replies.note(event(Hook.PRE_CREATE_CONTAINER, asked), given)

    def made(self, files: dict[str, str]) -> None:
        """The runtime makes the container as the reply said, and a list names it."""
        self.node.tree.cgroup(BOX, files)
        self.pods = (pod(),)

    def undo(self) -> None:
        done = undo(self.node.tree.host, self.node.journal, self.node.audit.append, writer=self.node.kernel)
        assert done.failed == 0

    def files(self) -> list[str]:
        knobs = (Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.CPUSET, Knob.MEMORY_LIMIT)
        return [self.node.read(BOX, knob) for knob in knobs]


@pytest.fixture
def bare(make_node: MakeNode) -> Node:
    made = make_node()
    for target in ("be", POD):
        made.tree.cgroup(target, {"cpuset.cpus": "0-7\n"})
    return made


def test_what_was_asked_for_comes_back_on_v1(bare: Node) -> None:
    told = Told(bare)
    told.made(V1)
    bare.apply(*WISHES)
    assert bare.kernel.writes == []  # nothing was left to write
    assert told.files() == ["512", "50000", "0-3", "67108864"]
    told.undo()
    unlimited = str((2**63 - 1) // 4096 * 4096)
    assert told.files() == ["2", "-1", "0-7", unlimited]  # asked, and three that nobody asked for


@pytest.mark.parametrize(("weight", "back"), [("20", "39"), (str(shares_to_weight_log(512)), "100")])
def test_what_was_asked_for_comes_back_on_v2_by_either_rule(make_node: MakeNode, weight: str, back: str) -> None:
    node = make_node(CgroupVersion.V2)
    for target in ("be", POD):
        node.tree.cgroup(target)
    told = Told(node, asked=LinuxResources(cpu_shares=1024))
    told.made({**V2, "cpu.weight": weight + "\n"})
    node.apply(*WISHES)
    told.undo()
    assert told.files() == [back, "max 100000", "", "max"]


def test_shares_that_nobody_asked_for_are_a_new_groups_on_v2(make_node: MakeNode) -> None:
    node = make_node(CgroupVersion.V2)
    for target in ("be", POD):
        node.tree.cgroup(target)
    told = Told(node, asked=LinuxResources())
    told.made(V2)
    node.apply(*WISHES)
    told.undo()
    assert told.files()[0] == "100"


def test_a_memory_limit_that_swap_is_held_to_is_left(bare: Node) -> None:
    """NRI limits both to our value, and v1 refuses a memory limit above the other."""
    told = Told(bare)
    told.made({**V1, "memory.memsw.limit_in_bytes": "67108864\n"})
    bare.apply(*WISHES)
    told.undo()
    assert told.files() == ["2", "-1", "0-7", "67108864"]


def test_a_restart_after_a_crash_knows_it(bare: Node) -> None:
    told = Told(bare)
    told.made(V1)
    bare.apply(*WISHES)
    bare.stop()
    bare.replies = None
    bare.start()
    told.undo()
    assert told.files()[:2] == ["2", "-1"]


def test_a_wish_that_changed_meanwhile_is_written_over_the_right_original(bare: Node) -> None:
    told = Told(bare)
    told.made(V1)
    bare.apply(want(BOX, Knob.CPU_SHARES, 300, "podrules"))
    assert bare.read(BOX, Knob.CPU_SHARES) == "300"
    told.undo()
    assert bare.read(BOX, Knob.CPU_SHARES) == "2"


def test_another_value_is_somebody_elses_and_its_own_original(bare: Node) -> None:
    told = Told(bare)
    told.made({**V1, "cpu.shares": "777\n"})
    bare.apply(*WISHES)
    told.undo()
    assert bare.read(BOX, Knob.CPU_SHARES) == "777"


def test_a_narrowed_parents_own_cpus_are_the_childs_original(bare: Node) -> None:
    told = Told(bare)
    narrow = want("be", Knob.CPUSET, CpuSet.parse("0-3")), want(POD, Knob.CPUSET, CpuSet.parse("0-3"))
    bare.apply(*narrow)
    told.made(V1)
    bare.apply(*narrow, *WISHES)
    told.undo()
    assert [bare.read(target, Knob.CPUSET) for target in ("be", POD, BOX)] == ["0-7"] * 3


def test_the_release_of_a_wish_gives_it_back_too(bare: Node) -> None:
    told = Told(bare)
    told.made(V1)
    bare.apply(*WISHES)
    bare.apply(*WISHES[1:])
    assert bare.read(BOX, Knob.CPU_SHARES) == "2"


def test_a_resize_renews_the_original(bare: Node) -> None:
    told = Told(bare)
    told.made(V1)
    bare.apply(*WISHES)
    told.replies.note(event(Hook.PRE_UPDATE_CONTAINER, LinuxResources(cpu_shares=100)), LinuxResources(cpu_shares=700))
    bare.foreign(BOX, Knob.CPU_SHARES, "700")  # the runtime
    bare.apply(want(BOX, Knob.CPU_SHARES, 700, "podrules"), *WISHES[1:])
    assert len(bare.journal.live()) == 4
    told.undo()
    assert told.files()[:2] == ["100", "-1"]


def test_a_full_disk_adopts_it_later(bare: Node) -> None:
    told = Told(bare)
    told.made(V1)
    wishes = [Decision(d.target, d.knob, d.value, d.why, d.owner, hot=True) for d in WISHES]
    bare.journal.close()
    aside = bare.journal_path.with_name("journal.new")
    aside.mkdir()
    bare.apply(*wishes)
    assert bare.journal.live() == ()
    aside.rmdir()
    bare.apply(*wishes, after_s=100.0)
    assert {entry.original for entry in bare.journal.live()} >= {b"2\n", b"-1\n"}


def test_who_never_lived_is_forgotten() -> None:
    replies = Replies(tuple)
    for number in range(5000):
        asked = PodEvent(Hook.PRE_CREATE_CONTAINER, pod(""), Container(f"c{number}"), asked=ASKED)
        replies.note(asked, GIVEN)
    assert len(replies._told) == 4096


def test_the_two_rules_for_weights() -> None:
    case = json.loads((Path(__file__).parents[2] / "cases/cpu-weight-two-formulas/expected.json").read_text())
    assert {shares: shares_to_weight_log(int(shares)) for shares in case["logarithmic"]} == case["logarithmic"]


def test_scores_are_told_by_place() -> None:
    pods: list[tuple[Pod, ...]] = [()]
    replies = Replies(lambda: pods[0])
    replies.note(event(Hook.PRE_CREATE_CONTAINER, LinuxResources(oom_score_adj=1000)), GIVEN)
    assert replies.score(BOX) is None
    pods[0] = (pod(),)
    assert replies.score(BOX) == (1000, 900)
    replies.note(event(Hook.PRE_CREATE_CONTAINER, ASKED), LinuxResources())  # restarted, with nothing of ours
    assert replies.score(BOX) is None
