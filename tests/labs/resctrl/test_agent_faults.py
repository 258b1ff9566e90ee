"""Groups of others, a kernel that refuses, a crash at any point: what is left, and back again."""

from __future__ import annotations

import contextlib
import errno

import pytest

from koordlet.act.resctrl_tree import Refused, ResctrlTree
from koordlet.act.resctrl_undo import undo_resctrl
from koordlet.model.qos import Qos
from koordlet.model.resctrl import PodResctrl, Range
from koordlet.model.slo import ResctrlQos
from tests.hosts.cases import case_json
from tests.labs.resctrl.agent import BE_30_50, LS_FULL, SCHEMATA, Make, picture, slo

pytestmark = pytest.mark.lab_resctrl


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
