"""Whose tasks lie in the agent's groups, and groups of single pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordlet.act.resctrl_tree import ResctrlTree
from koordlet.model.qos import Qos
from koordlet.model.resctrl import PodResctrl, Range
from tests.hosts.cases import case_json
from tests.labs.resctrl.agent import BE_30_50, LS_FULL, Make, slo

pytestmark = pytest.mark.lab_resctrl


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
