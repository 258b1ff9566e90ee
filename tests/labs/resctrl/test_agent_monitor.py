"""Monitoring as the agent reads it: classes and pods, SNC, words instead of numbers, ids that run short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.act.resctrl_undo import undo_resctrl
from koordlet.kernel.resctrl import read_resctrl
from koordlet.model.qos import Qos
from koordlet.model.resctrl import PodResctrl, Resctrl
from koordlet.model.resctrl import Range as Part
from koordlet.sense.cache import CacheMeter
from tests.labs.resctrl.agent import BE_30_50, Agent, Make, picture, slo
from tests.labs.resctrl.lab import Lab

pytestmark = pytest.mark.lab_resctrl

MIB = 1 << 20


@pytest.fixture
def agent(resctrl: Lab, tmp_path: Path) -> Make:
    def make(shape: str = "intel") -> Agent:
        resctrl.reset(shape)
        made = Agent(resctrl, tmp_path)
        made.ask(resctrl_monitor=True)
        return made

    return make


def info(made: Agent) -> Resctrl:
    found = read_resctrl(made.host)
    assert found is not None
    return found


def test_pods_get_monitoring_groups_inside_their_class(agent: Make) -> None:
    made = agent()
    made.pod("b1")
    made.pod("l1", Qos.LS)
    own = made.pod("o1", resctrl=PodResctrl(llc=Part(0, 50)))
    before = picture(made.lab.mount)
    report = made.tick()
    assert report.errors == ()
    assert made.members("BE/mon_groups/koordlet-b1") == made.tids("kubepods/podb1")
    assert made.members("mon_groups/koordlet-l1") == made.tids("kubepods/podl1")
    assert made.members("koordlet-o1") == made.tids(own.cgroup)
    assert made.members("BE") == made.tids("kubepods/podb1")
    made.ask(resctrl_monitor=False)
    made.tick()
    assert not (made.lab.mount / "BE/mon_groups/koordlet-b1").exists()
    made.ask(resctrl_monitor=True)
    made.tick()
    made.applier.restore_all(made.now_s, "test")
    assert picture(made.lab.mount) == before


def test_readings_of_classes_and_pods_with_rates(agent: Make) -> None:
    made = agent()
    made.pod("b1")
    made.pod("l1", Qos.LS)
    made.tick()
    meter = CacheMeter(made.lab.mount, 10)
    for group, start in (("BE/mon_groups/koordlet-b1", 100 * MIB), ("mon_groups/koordlet-l1", 5 * MIB)):
        made.lab.counter(group, 0, "mbm_total_bytes", start)
        made.lab.counter(group, 0, "llc_occupancy", 3 * MIB)
    first = meter.collect(0.0)
    assert first is not None
    assert first.pods["b1"].domains[0].total_rate is None
    made.lab.counter("BE/mon_groups/koordlet-b1", 0, "mbm_total_bytes", 50 * MIB, add=True)
    assert meter.collect(5.0) is first
    second = meter.collect(10.0)
    assert second is not None
    pod = second.pods["b1"]
    assert pod.llc_bytes == 3 * MIB
    assert pod.domains[0].total_rate == 5 * MIB
    assert second.classes["BE"].domains[0].total_bytes == 150 * MIB
    assert second.classes["BE"].domains[0].total_rate == 5 * MIB
    assert second.classes["root"].domains[0].total_bytes == 5 * MIB


@pytest.mark.parametrize("word", ["Unavailable", "Error", "Unassigned"])
def test_a_word_is_no_reading_and_the_rest_counts(agent: Make, word: str) -> None:
    made = agent()
    made.pod("b1")
    made.tick()
    meter = CacheMeter(made.lab.mount, 10)
    path = "BE/mon_groups/koordlet-b1"
    made.lab.counter(path, 0, "mbm_total_bytes", 7)
    made.lab.counter(path, 1, "mbm_total_bytes", 9)
    meter.collect(0.0)
    made.lab.counter(path, 0, "mbm_total_bytes", word)
    made.lab.counter(path, 1, "mbm_total_bytes", 19)
    second = meter.collect(10.0)
    assert second is not None
    assert second.pods["b1"].domains[0].total_bytes is None
    assert second.pods["b1"].domains[0].total_rate is None
    assert second.pods["b1"].total_rate == 1.0


def test_a_group_made_anew_starts_a_new_count(agent: Make) -> None:
    made = agent()
    (made.lab.mount / "BE").mkdir()
    made.lab.counter("BE", 0, "mbm_total_bytes", 10 * MIB)
    meter = CacheMeter(made.lab.mount, 10)
    meter.collect(0.0)
    (made.lab.mount / "BE").rmdir()
    (made.lab.mount / "BE").mkdir()
    made.lab.counter("BE", 0, "mbm_total_bytes", 4)
    second = meter.collect(10.0)
    assert second is not None
    assert second.classes["BE"].domains[0].total_rate is None


def test_snc_nodes_and_their_sum(agent: Make) -> None:
    made = agent("intel-snc")
    made.pod("b1")
    made.tick()
    path = "BE/mon_groups/koordlet-b1"
    for node in range(4):
        made.lab.counter(path, node, "llc_occupancy", (node + 1) * MIB)
    made.lab.counter(path, 3, "mbm_total_bytes", "Unavailable")
    found = CacheMeter(made.lab.mount, 10).collect(0.0)
    assert found is not None
    pod = found.pods["b1"]
    assert {cache: row.llc_bytes for cache, row in pod.domains.items()} == {0: 3 * MIB, 1: 7 * MIB}
    assert {node: row.llc_bytes for node, row in pod.nodes.items()} == {n: (n + 1) * MIB for n in range(4)}
    assert pod.nodes[3].total_bytes is None


def test_few_ids_go_round(agent: Make) -> None:
    """Four ids: the root, BE, and two for five pods."""
    made = agent("few-rmids")
    pods = [made.pod(f"b{n}") for n in range(5)]
    seen: set[str] = set()
    for _ in range(18):
        report = made.tick(20)
        assert report.errors == ()
        now = {p.name for p in (made.lab.mount / "BE/mon_groups").iterdir()}
        assert len(now) <= 2
        seen |= now
    assert seen == {f"koordlet-{pod.uid}" for pod in pods}


def test_others_take_the_ids_meanwhile(agent: Make) -> None:
    made = agent("few-rmids")
    made.pod("b1")
    made.pod("b2")
    for name in ("x", "y"):
        (made.lab.mount / "mon_groups" / name).mkdir()
    for _ in range(3):
        made.tick()
    assert made.members("BE") == made.tids("kubepods")  # the class works without ids for pods
    made.info = info(made)
    assert made.info.foreign_rmids == 2
    made.tick(60)
    assert {p.name for p in (made.lab.mount / "mon_groups").iterdir()} == {"x", "y"}


def test_a_machine_that_only_monitors(agent: Make) -> None:
    made = agent("monitor-only")
    made.ask(slo=slo(be=BE_30_50))
    pod = made.pod("b1")
    assert made.tick().errors == ()
    made.lab.counter("mon_groups/koordlet-b1", 1, "llc_occupancy", 2 * MIB)
    found = CacheMeter(made.lab.mount, 10).collect(0.0)
    assert found is not None
    assert found.pods["b1"].llc_bytes == 2 * MIB
    made.put(replace(pod, phase="Succeeded"))
    made.tick()
    assert list((made.lab.mount / "mon_groups").iterdir()) == []


def test_after_a_crash_monitoring_groups_are_undone_too(agent: Make) -> None:
    made = agent("monitor-only")
    made.pod("b1")
    before = picture(made.lab.mount)
    made.tick()
    made.start()
    assert made.record.record.changes() == ("(monitoring of pods)",)
    assert undo_resctrl(made.tree, made.record)[1] == []
    assert picture(made.lab.mount) == before
    assert not (made.work / "resctrl.json").exists()


def test_a_machine_without_bandwidth_counters(agent: Make) -> None:
    made = agent("haswell")
    made.pod("b1")
    made.tick()
    made.lab.counter("BE/mon_groups/koordlet-b1", 0, "llc_occupancy", MIB)
    found = CacheMeter(made.lab.mount, 10).collect(0.0)
    assert found is not None
    assert found.pods["b1"].domains[0].llc_bytes == MIB
    assert found.pods["b1"].domains[0].total_bytes is None
