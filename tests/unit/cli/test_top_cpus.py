"""`koordlet top --cpus`: who owns each CPU, as a map and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.cli import main
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Pod, PodSet
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.status import Snapshot
from koordlet.report.cpumap import cpus_json
from tests.unit.cli.conftest import open_door
from tests.unit.decide.build import T16
from tests.unit.report.samples import SNAPSHOT, VIEW, pod

CLASSES = {"lse": Qos.LSE, "lsr": Qos.LSR, "late": Qos.LSR, "be": Qos.BE, "done": Qos.LSE}
PINNED = {"lse": "2-3", "lsr": "4,12", "late": "12-13", "be": "5", "done": "6-7"}


def owner(name: str) -> Pod:
    kube = KubeQos.BESTEFFORT if name == "be" else KubeQos.GUARANTEED
    made = pod(name, name, kube, CLASSES[name], phase="Succeeded" if name == "done" else "Running")
    return replace(made, cpuset=CpuSet.parse(PINNED[name]))


def moment(*names: str, lent: str | None = "4-15", **node: Any) -> Snapshot:
    """A machine of 16 CPUs. lent: what best effort may use."""
    roots = (replace(VIEW.be_roots[0], cpuset=None if lent is None else CpuSet.parse(lent)),)
    info = replace(VIEW.node, topology=T16, **node)
    return replace(SNAPSHOT, view=replace(VIEW, node=info, pods=PodSet(tuple(map(owner, names)), 1), be_roots=roots))


FULL = moment(*PINNED, reserved_cpus=CpuSet((0,)), system_qos_cpus=CpuSet((1, 2)))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("run") / "agent.sock"
    door = open_door(path, FULL)
    yield str(path)
    door.close()


def test_json_names_the_owner_of_every_cpu(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--cpus", "--output", "json", "--socket", agent]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = [(row["name"], row["kind"], row["qos"], row["cpus"], row["count"]) for row in answer["owners"]]
    assert rows == [
        ("shop/late", "pod", "LSR", "12-13", 2),
        ("shop/lse", "pod", "LSE", "2-3", 2),
        ("shop/lsr", "pod", "LSR", "4", 1),
        ("reserved", "reserved", "", "0", 1),
        ("system", "system", "", "1", 1),
        ("shared", "shared", "", "5-11,14-15", 9),
    ]
    assert answer["conflicts"] == [{"name": "shop/lsr", "cpus": "12"}]
    assert answer["best_effort"] == "4-15"
    owners = {cpu["id"]: cpu["owner"] for cpu in answer["cpus"]}
    assert set(owners.values()) == {row[0] for row in rows}
    assert all(owners[cpu] == name for name, _, _, cpus, _ in rows for cpu in CpuSet.parse(cpus))
    seats = {cpu["id"]: (cpu["core"], cpu["socket"], cpu["node"], cpu["l3"]) for cpu in answer["cpus"]}
    assert seats == {cpu.id: (cpu.core, cpu.socket, cpu.node, cpu.l3) for cpu in T16.cpus}
    assert {cpu["id"] for cpu in answer["cpus"] if cpu["best_effort"]} == set(range(4, 16))


def test_the_map_has_a_cell_per_core_and_says_who_the_marks_are(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--cpus", "--socket", agent]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = [line.split() for line in out.splitlines()]
    assert lines[:4] == [
        ["socket", "0", "NUMA", "node", "0"],
        ["#.", "=.", "B.", "B."],
        ["socket", "1", "NUMA", "node", "1"],
        ["CA", ".A", "..", ".."],
    ]
    assert ["A", "shop/late", "2", "LSR", "12-13"] in lines
    assert ["=", "system", "1", "1"] in lines
    assert "best-effort work (underlined): 4-15" in out
    assert "claimed twice: shop/lsr 12" in out


def test_best_effort_that_nobody_confines_is_not_a_set_of_cpus() -> None:
    answer = cpus_json(moment("lse", lent=None))
    assert answer["best_effort"] is None
    assert all(cpu["best_effort"] for cpu in answer["cpus"])


def test_a_cpu_that_went_offline_is_nobodys_and_without_a_topology_there_is_no_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = replace(T16, cpus=tuple(cpu for cpu in T16.cpus if cpu.id != 3))
    answer = cpus_json(replace(FULL, view=replace(FULL.view, node=replace(FULL.view.node, topology=gone))))
    assert {row["name"]: row["cpus"] for row in answer["owners"]}["shop/lse"] == "2"
    assert 3 not in {cpu["id"] for cpu in answer["cpus"]}
    blind = replace(FULL, view=replace(FULL.view, node=replace(FULL.view.node, topology=None)))
    assert cpus_json(blind)["topology"] is False
    door = open_door(tmp_path / "k.sock", blind)
    try:
        assert main(["top", "--cpus", "--socket", str(tmp_path / "k.sock")]) == 0
    finally:
        door.close()
    assert "topology could not be read" in capsys.readouterr().out
