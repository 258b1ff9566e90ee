"""Groups as the agent makes them on every machine of the lab: exact schemata, whose tasks, and back again."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.act.resctrl_tree import Refused, ResctrlTree
from koordlet.act.resctrl_undo import undo_resctrl
from koordlet.model.qos import Qos
from koordlet.model.resctrl import PodResctrl, Range
from koordlet.model.slo import ResctrlQos
from tests.hosts.cases import case_json, case_text
from tests.labs.resctrl.agent import BE_30_50, LS_FULL, Agent, picture, slo
from tests.labs.resctrl.lab import Lab

pytestmark = pytest.mark.lab_resctrl

Make = Callable[..., Agent]


@pytest.fixture
def agent(resctrl: Lab, tmp_path: Path) -> Make:
    def make(shape: str = "intel", era: str | None = None, tree: type[ResctrlTree] = ResctrlTree) -> Agent:
        resctrl.reset(shape, era)
        return Agent(resctrl, tmp_path, tree)

    return make


FOUR = "0={0};1={0};2={0};3={0}"
ROME = ";".join(f"{n}={{0}}" for n in (*range(8), *range(16, 24)))
SCHEMATA = {  # shape: what BE's group says with ways 0-30 % and bandwidth 50 %
    "intel": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
    "intel-cdp": {"L3CODE": "0=f;1=f", "L3DATA": "0=f;1=f", "MB": "0=50;1=50"},
    "intel-mbps": {"L3": "0=3f;1=3f", "MB": "0=4294967295;1=4294967295"},
    "intel-16": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
    "intel-sparse": {"L3": "0=1f;1=1f", "MB": "0=50;1=50"},
    "haswell": {"L3": "0=3f;1=3f"},
    "intel-l2": {"L2": FOUR.format("7")},
    "intel-l2cdp": {"L2CODE": FOUR.format("7"), "L2DATA": FOUR.format("7")},
    "intel-snc": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
    "amd-smba": {"L3": FOUR.format("1f"), "MB": FOUR.format("80"), "SMBA": FOUR.format("2048")},
    "amd-two-sockets": {"L3": ROME.format("1f"), "MB": ROME.format("80")},
    "few-rmids": {"L3": "0=f;1=f", "MB": "0=50;1=50"},
}


@pytest.mark.parametrize("shape", SCHEMATA)
def test_class_group_on_every_machine(agent: Make, shape: str) -> None:
    made = agent(shape)
    before = picture(made.lab.mount)
    made.pod("be-1")
    made.pod("ls-1", Qos.LS)
    before |= {"tasks": picture(made.lab.mount)["tasks"]}
    report = made.tick()
    assert report.errors == ()
    assert made.groups() == {"BE"}
    assert made.schemata("BE") == SCHEMATA[shape]
    assert made.members("BE") == made.tids("kubepods/podbe-1")
    made.applier.restore_all(made.now_s, "test")
    assert picture(made.lab.mount) == before


@pytest.mark.parametrize("era", ["6.18", "6.6", "4.19"])
def test_class_group_on_every_kernel(agent: Make, era: str) -> None:
    made = agent("amd-smba", era)
    made.pod("be-1", tasks=5)
    assert made.tick().errors == ()
    assert made.schemata("BE")["L3"] == FOUR.format("001f" if era != "6.18" else "1f") or era != "6.18"
    assert made.members("BE") == made.tids("kubepods/podbe-1")


def test_a_machine_that_only_monitors_gets_no_group(agent: Make) -> None:
    made = agent("monitor-only")
    made.pod("be-1")
    assert made.tick().errors == ()
    assert made.groups() == set()


def test_no_class_enabled_makes_no_group(agent: Make) -> None:
    made = agent()
    made.ask(slo=slo())
    made.pod("be-1")
    made.tick()
    assert made.groups() == set()


def test_three_classes_with_lse_in_lsr_and_system_nowhere(agent: Make) -> None:
    made = agent()
    made.ask(slo=slo(LS_FULL, LS_FULL, BE_30_50))
    for uid, qos in (("e", Qos.LSE), ("r", Qos.LSR), ("l", Qos.LS), ("b", Qos.BE), ("s", Qos.SYSTEM)):
        made.pod(uid, qos)
    made.tick()
    assert made.groups() == {"LSR", "LS", "BE"}
    assert made.members("LSR") == sorted(made.tids("kubepods/pode") + made.tids("kubepods/podr"))
    assert made.members("LS") == made.tids("kubepods/podl")
    assert made.members("BE") == made.tids("kubepods/podb")


def test_policy_changes_are_applied_and_disabling_removes(agent: Make) -> None:
    made = agent()
    made.pod("be-1")
    made.tick()
    made.ask(slo=slo(be=ResctrlQos(True, 50, 100, 20)))
    made.tick()
    assert made.schemata("BE") == {"L3": "0=7c0;1=7c0", "MB": "0=20;1=20"}
    made.ask(slo=slo())
    made.tick()
    assert made.groups() == set()
    assert made.members("") == made.tids("kubepods")


def test_drift_of_the_schemata_is_repaired(agent: Make) -> None:
    made = agent()
    made.pod("be-1")
    made.tick()
    (made.lab.mount / "BE/schemata").write_text("L3:0=7ff\n")
    for _ in range(8):
        made.tick(5)
    assert made.schemata("BE")["L3"] == "0=f;1=f"


def test_nothing_is_written_in_a_steady_state(agent: Make) -> None:
    made = agent()
    made.pod("be-1")
    for _ in range(10):
        made.tick()
    written = len(made.audit)
    for _ in range(100):
        report = made.tick()
        assert (report.done, report.errors) == (0, ())
    assert len(made.audit) == written


# tasks


def test_tasks_of_nested_cgroups_and_later_containers(agent: Make) -> None:
    made = agent()
    pod = made.pod("be-1")
    nested = made.tasks(f"{pod.cgroup}/main/vm/vcpu0", 3)
    made.tick()
    assert set(nested) <= set(made.members("BE"))
    late = made.tasks(f"{pod.cgroup}/second", 2)  # its status comes with the next answer
    second = replace(pod.containers[0], name="second", id="c://second")
    made.put(replace(pod, containers=(*pod.containers, second)))
    made.tick()
    assert set(late) <= set(made.members("BE"))


def test_tasks_that_came_unnoticed_are_found_in_turns(agent: Make) -> None:
    made = agent()
    pods = [made.pod(f"be-{n}") for n in range(13)]
    for _ in range(10):
        made.tick()
    late = [tid for pod in pods for tid in made.tasks(f"{pod.cgroup}/main", 1)]
    for _ in range(31):
        made.tick()
    assert set(late) <= set(made.members("BE"))


def test_threads_forked_while_being_moved(agent: Make) -> None:
    forked: list[int] = []

    class Forking(ResctrlTree):
        """While the first batch is moved, one of those not moved yet forks: the child is in the root group."""

        def move(self, name: str, tids: object) -> tuple[int, str]:
            if name == "BE" and not forked:
                forked.extend(made.tasks("kubepods/podbe-1/main", 1))
            return super().move(name, tids)  # type: ignore[arg-type]

    made = agent(tree=Forking)
    made.pod("be-1")
    made.tick()
    assert made.members("BE") == made.tids("kubepods/podbe-1")
    assert forked


def test_case_resctrl_dead_task(agent: Make) -> None:
    case, expected = case_json("resctrl-dead-task", "scenario.json"), case_json("resctrl-dead-task")
    attempted: list[int] = []

    class Watched(ResctrlTree):
        def move(self, name: str, tids: object) -> tuple[int, str]:
            attempted.extend(tids)  # type: ignore[call-overload]
            return super().move(name, tids)  # type: ignore[arg-type]

    made = agent(tree=Watched)
    made.next_tid += 101
    ids = {tid: made.next_tid - 101 + tid for tid in case["cgroup_tasks"]}
    pod = made.pod("be-1", tasks=0)
    for file in (made.work / "cgroup" / pod.cgroup).rglob("cgroup.threads"):
        file.write_text("")
    made.tick()
    (made.work / "cgroup" / pod.cgroup / "main/cgroup.threads").write_text("".join(f"{t}\n" for t in ids.values()))
    for tid in case["cgroup_tasks"]:
        made.lab.fork(ids[tid])
    for tid in case["group_tasks"]:
        (made.lab.mount / "BE/tasks").write_text(f"{ids[tid]}\n")
    for tid in case["dead"]:
        made.lab.exit(ids[tid])
    report = made.tick()
    assert attempted == [ids[tid] for tid in expected["attempted"]]
    assert made.members("BE") == [ids[tid] for tid in expected["group_after"]]
    assert len(report.errors) == expected["errors"]


def test_a_pod_that_leaves_its_class_leaves_the_group(agent: Make) -> None:
    made = agent()
    made.ask(slo=slo(ls=LS_FULL, be=BE_30_50))
    pod = made.pod("p")
    made.tick()
    made.put(replace(pod, qos=Qos.LS))
    made.tick()
    assert made.members("BE") == []
    assert made.members("LS") == made.tids(pod.cgroup)
    made.put(replace(pod, qos=Qos.SYSTEM))
    made.tick()
    assert made.members("LS") == []


# pod groups


def test_case_pod_resctrl_annotation_on_a_machine(agent: Make) -> None:
    from koordlet.sources.pod_resctrl import pod_resctrl

    made = agent("intel-16")
    expected = case_json("pod-resctrl-annotation")
    made.pod("u1", Qos.LS, resctrl=pod_resctrl(case_json("pod-resctrl-annotation", "annotation.json")))
    assert made.tick().errors == ()
    group = made.schemata("koordlet-u1")
    assert group["L3"] == ";".join(f"{n}={v}" for n, v in expected["L3"].items())
    assert group["MB"] == ";".join(f"{n}={v}" for n, v in expected["MB"].items())
    assert made.members("koordlet-u1") == made.tids("kubepods/podu1")


def test_annotation_changes_reach_the_group(agent: Make) -> None:
    made = agent()
    pod = made.pod("u1", resctrl=PodResctrl(llc=Range(0, 50), mb_percent=30))
    made.tick()
    assert made.schemata("koordlet-u1") == {"L3": "0=3f;1=3f", "MB": "0=30;1=30"}
    made.put(replace(pod, settings=replace(pod.settings, resctrl=PodResctrl(llc=Range(0, 20)))))
    made.tick()
    assert made.schemata("koordlet-u1") == {"L3": "0=7;1=7", "MB": "0=100;1=100"}
    made.put(replace(pod, settings=replace(pod.settings, resctrl=None)))
    made.tick()
    assert made.groups() == {"BE"}
    assert made.members("BE") == made.tids(pod.cgroup)


def test_the_group_goes_with_its_pod(agent: Make) -> None:
    made = agent()
    made.pod("u1", resctrl=PodResctrl(mb_percent=30))
    made.tick()
    made.drop("u1")
    made.tick()
    assert "koordlet-u1" not in made.groups()


def test_case_resctrl_foreign_groups(agent: Make) -> None:
    tree, expected = case_json("resctrl-foreign-groups", "tree.json"), case_json("resctrl-foreign-groups")
    made = agent("intel-16")
    made.ask(slo=slo(LS_FULL, LS_FULL, BE_30_50))
    for name in tree["dirs"]:
        (made.lab.mount / name).mkdir(exist_ok=True)
    (made.lab.mount / "COS1/schemata").write_text("L3:0=ff0\n")
    theirs = made.tasks("kubepods/podx/main", 2)
    for tid in theirs:
        (made.lab.mount / "COS1/tasks").write_text(f"{tid}\n")
    (uid,) = tree["pods"]
    made.pod(uid, resctrl=PodResctrl(llc=Range(0, 50)))
    made.pod("x")
    before = {name: picture(made.lab.mount / name) for name in ("COS1", "p0")}
    assert made.tick().errors == ()
    assert set(expected["managed"]) <= made.groups()
    assert not set(expected["removed"]) & made.groups()
    assert {name: picture(made.lab.mount / name) for name in ("COS1", "p0")} == before
    made.applier.restore_all(made.now_s, "test")
    assert {name: picture(made.lab.mount / name) for name in ("COS1", "p0")} == before


def test_groups_of_our_name_that_were_there_are_given_back(agent: Make) -> None:
    made = agent()
    (made.lab.mount / "BE").mkdir()
    (made.lab.mount / "BE/schemata").write_text("L3:0=1;1=3\nMB:0=70\n")
    pod = made.pod("be-1")
    old = made.tasks("elsewhere", 2)
    for tid in old:
        (made.lab.mount / "BE/tasks").write_text(f"{tid}\n")
    before = picture(made.lab.mount)
    made.tick()
    assert made.members("BE") == sorted(old + made.tids(pod.cgroup))
    made.ask(slo=slo())
    made.tick()
    assert picture(made.lab.mount) == before


# faults


def test_case_resctrl_last_cmd_status_no_class_left(agent: Make) -> None:
    """ENOSPC: the pod keeps its class's limits, one message, and no new try each round."""
    tried: list[str] = []

    class Watched(ResctrlTree):
        def make(self, name: str) -> None:
            tried.append(name)
            super().make(name)

    made = agent("haswell", tree=Watched)
    for name in ("a", "b"):
        (made.lab.mount / name).mkdir()
    pod = made.pod("u1", resctrl=PodResctrl(llc=Range(0, 50)))
    for _ in range(40):
        report = made.tick()
    assert made.groups() == {"a", "b", "BE"}
    assert made.members("BE") == made.tids(pod.cgroup)
    assert [error for error in report.errors if "Out of CLOSIDs" in error] == list(report.errors) != []
    assert tried.count("koordlet-u1") == 1
    (made.lab.mount / "a").rmdir()
    made.tick(5)
    assert made.members("koordlet-u1") == made.tids(pod.cgroup)
    assert made.tick().errors == ()


def test_case_resctrl_last_cmd_status_exclusive_group(agent: Make) -> None:
    """EINVAL on the cache line: the kernel's words, the other line in force, repaired once the cause is gone."""
    made = agent()
    theirs = made.lab.mount / "theirs"
    theirs.mkdir()
    (made.lab.mount / "schemata").write_text("L3:0=1f0;1=1f0\n")
    (theirs / "schemata").write_text("L3:0=f;1=f\n")
    (theirs / "mode").write_text("exclusive\n")
    made.pod("be-1")
    report = made.tick()
    assert len(report.errors) == 1
    assert "exclusive group" in report.errors[0]
    assert made.schemata("BE")["MB"] == "0=50;1=50"
    assert case_json("resctrl-last-cmd-status")[1]["other_lines_written"]
    theirs.rmdir()
    for _ in range(10):
        report = made.tick(5)
    assert report.errors == ()
    assert made.schemata("BE")["L3"] == "0=f;1=f"


def faulty(code: int, op: str, times: int) -> type[ResctrlTree]:
    """A tree whose first `times` calls of one kind the kernel refuses."""
    left = [times]

    class Faulty(ResctrlTree):
        def make(self, name: str) -> None:
            self.fail("make", name)
            super().make(name)

        def remove(self, name: str) -> None:
            self.fail("remove", name)
            super().remove(name)

        def write(self, name: str, line: str) -> None:
            self.fail("write", name)
            super().write(name, line)

        def fail(self, this: str, name: str) -> None:
            if this == op and left[0] > 0:
                left[0] -= 1
                raise Refused(f"{this} {name}", OSError(code, "injected"))

    return Faulty


@pytest.mark.parametrize("op", ["make", "write", "remove"])
@pytest.mark.parametrize("code", [errno.EBUSY, errno.EINVAL, errno.ENOSPC, errno.EIO])
def test_faults_leave_a_consistent_tree_and_one_message(agent: Make, code: int, op: str) -> None:
    made = agent(tree=faulty(code, op, 3))
    made.pod("be-1")
    before = picture(made.lab.mount)
    report = made.tick()
    if op != "remove":
        assert len(report.errors) == 1
        assert made.groups() == set() or made.members("BE") == made.tids("kubepods")
        assert len([row for row in made.audit if row.mode == "refused"]) == 1
    for _ in range(150):
        report = made.tick(5)
    assert report.errors == ()
    assert made.schemata("BE") == SCHEMATA["intel"]
    assert made.members("BE") == made.tids("kubepods")
    made.ask(slo=slo())
    for _ in range(10):
        made.tick(5)
    made.applier.restore_all(made.now_s, "test")
    assert picture(made.lab.mount) == before


def test_a_vanished_group_is_made_again(agent: Make) -> None:
    made = agent()
    made.pod("be-1")
    made.tick()
    (made.lab.mount / "BE").rmdir()
    made.tick(5)
    assert made.schemata("BE") == SCHEMATA["intel"]
    assert made.members("BE") == made.tids("kubepods")


def test_limbo_of_monitoring_ids_is_waited_for(agent: Make) -> None:
    made = agent("few-rmids")
    names = ("a", "b", "c")
    for name in names:
        (made.lab.mount / name).mkdir()
    for name in names[1:]:
        made.lab.counter(name, 0, "llc_occupancy", 20 << 20)
        (made.lab.mount / name).rmdir()
    made.pod("be-1")
    assert "busy" in made.tick().errors[0].lower()
    made.lab.drain()
    for _ in range(5):
        report = made.tick(5)
    assert report.errors == ()
    assert made.members("BE") == made.tids("kubepods")


class Crash(BaseException):
    pass


def crashing(stop_at: int) -> type[ResctrlTree]:
    """A tree whose owner dies before or after the n-th command."""
    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] > stop_at:
            raise Crash

    class Crashing(ResctrlTree):
        def make(self, name: str) -> None:
            step()
            super().make(name)
            step()

        def write(self, name: str, line: str) -> None:
            step()
            super().write(name, line)

        def move(self, name: str, tids: object) -> tuple[int, str]:
            step()
            return super().move(name, tids)  # type: ignore[arg-type]

    return Crashing


@pytest.mark.parametrize("stop_at", range(12))
def test_after_a_crash_anywhere_undo_gives_the_original(agent: Make, stop_at: int) -> None:
    made = agent()
    (made.lab.mount / "LS").mkdir()
    (made.lab.mount / "LS/schemata").write_text("L3:0=3\n")
    made.ask(slo=slo(ls=ResctrlQos(True, 0, 50, 40), be=BE_30_50))
    made.pod("be-1")
    made.pod("ls-1", Qos.LS)
    made.pod("own", resctrl=PodResctrl(llc=Range(0, 50)))
    before = picture(made.lab.mount)
    made.tree_type = crashing(stop_at)
    made.start()
    with contextlib.suppress(Crash):
        made.tick()
    made.tree_type = ResctrlTree
    made.start()
    _, errors = undo_resctrl(made.tree, made.record)
    assert errors == []
    assert picture(made.lab.mount) == before
    assert not (made.work / "resctrl.json").exists()


def test_a_full_disk_stops_the_first_write(agent: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = agent()
    made.pod("be-1")
    made.record.path = made.work / "missing/resctrl.json"
    report = made.tick()
    assert "could not be recorded" in report.errors[0]
    assert made.groups() == set()
    made.record.path = made.work / "resctrl.json"
    for _ in range(3):
        report = made.tick(5)
    assert report.errors == ()
    assert made.groups() == {"BE"}


def test_case_resctrl_mba_mbps(agent: Make) -> None:
    expected = case_json("resctrl-mba-mbps")
    made = agent("intel-mbps")
    made.ask(slo=slo(be=ResctrlQos(True, 0, 100, 50)))
    made.pod("be-1")
    made.tick()
    (group,) = [g for g in made.state.effects if g.target == "BE"]
    assert [line.rstrip(";") for line in group.schemata] == [expected["l3_line"]]
    assert made.schemata("BE")["MB"] == case_text("resctrl-mba-mbps", "schemata").split("MB:")[1].split()[0]
