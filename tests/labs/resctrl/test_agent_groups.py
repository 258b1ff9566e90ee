"""Class groups as the agent makes them on every machine of the lab: exact schemata, and back again."""

from __future__ import annotations

import pytest

from koordlet.model.qos import Qos
from koordlet.model.slo import ResctrlQos
from tests.hosts.cases import case_json, case_text
from tests.labs.resctrl.agent import BE_30_50, FOUR, LS_FULL, SCHEMATA, Make, picture, slo

pytestmark = pytest.mark.lab_resctrl


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


def test_case_resctrl_mba_mbps(agent: Make) -> None:
    expected = case_json("resctrl-mba-mbps")
    made = agent("intel-mbps")
    made.ask(slo=slo(be=ResctrlQos(True, 0, 100, 50)))
    made.pod("be-1")
    made.tick()
    (group,) = [g for g in made.state.effects if g.target == "BE"]
    assert [line.rstrip(";") for line in group.schemata] == [expected["l3_line"]]
    assert made.schemata("BE")["MB"] == case_text("resctrl-mba-mbps", "schemata").split("MB:")[1].split()[0]
