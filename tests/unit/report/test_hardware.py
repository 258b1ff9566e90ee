"""Metrics, the page and the command about caches, cycles and interference."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.cli import main
from koordlet.cli import report_interference as command
from koordlet.kernel.host import Host
from koordlet.model.hardware import Counts, Hardware, Online, Pair, Suspect
from koordlet.model.pod import Container, Pod, PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.resctrl import CacheReadings, DomainReading, GroupReading
from koordlet.model.status import ApplyReport, Snapshot, TickStats
from koordlet.model.view import NodeInfo, NodeView, Reading, WorkloadUsage
from koordlet.report.interference import interference_json
from koordlet.report.metrics import Metrics, Which
from koordlet.wiring.interference import Readings

POD = Pod(
    "u1", "shop", "web", "kubepods/podu1", KubeQos.GUARANTEED, qos=Qos.LS,
    containers=(Container("main", id="containerd://c1", cgroup="kubepods/podu1/c1", running=True),),
)  # fmt: skip
HARDWARE = Hardware(
    cache=CacheReadings(
        99.0,
        {"BE": GroupReading(99.0, {0: DomainReading(4096, 10, None, 2.5, None), 1: DomainReading()})},
        {"u1": GroupReading(99.0, {0: DomainReading(8192, 100, 90, 7.0, 6.0)}), "gone": GroupReading(99.0)},
    ),
    counts={
        "kubepods/podu1/c1": Counts(95.0, 10.0, cycles=9_000, instructions=8_000, llc_misses=5),
        "kubepods/other": Counts(95.0, 10.0, cycles=1, instructions=1),
    },
    online=(
        Online("shop/web", "cpi", 1.8, 99.0, 1.2, 0.5, 40, (Suspect("batch/s", 0.61), Suspect("batch/c", -0.2)), 8192),
        Online("shop/db", "psi_cpu", 0.01, 99.0),
    ),
    pairs=(
        Pair("shop/web", "batch/s", "cpi", 30, 20, 1.8, 1.2, 0.61),
        Pair("shop/web", "batch/c", "cpi", 12, 20, 1.21, 1.2, -0.2),
        Pair("shop/db", "batch/s", "psi_cpu", 2, 1, 0.01, 0.01, 0.0),
    ),
)


def snapshot(hardware: Hardware = HARDWARE) -> Snapshot:
    view = NodeView(now_s=100.0, node=NodeInfo(name="n1"), pods=PodSet((POD,), 1, 100.0), hardware=hardware)
    return Snapshot(view, {}, ApplyReport(), TickStats(), 0.0)


def exposition(hardware: Hardware = HARDWARE) -> list[str]:
    body, _ = Metrics(lambda: (snapshot(hardware), ()), process=False).exposition("", Which.EXTERNAL)
    return body.decode().splitlines()


LABELS = (
    'container_id="containerd://c1",container_name="main",node="n1",pod_name="web",pod_namespace="shop",pod_uid="u1"'
)
TOTAL = 'cache_id="0",mb_type="mbm_total_bytes",node="n1",qos="BE"'


@pytest.mark.parametrize(
    "row",
    [
        f'koordlet_container_cpi{{{LABELS},cpi_field="cycles"}} 9000.0',
        'koordlet_resctrl_llc_occupancy{cache_id="0",node="n1",qos="BE"} 4096.0',
        f"koordlet_resctrl_memory_bandwidth{{{TOTAL}}} 10.0",
        f"koordlet_resctrl_memory_bandwidth_bytes_per_second{{{TOTAL}}} 2.5",
        'koordlet_online_interference_excess{node="n1",signal="cpi",workload="shop/web"} 0.5',
    ],
)
def test_families(row: str) -> None:
    def parts(text: str) -> tuple[str, frozenset[str], str]:
        name, _, rest = text.partition("{")
        labels, _, value = rest.rpartition("} ")
        return name, frozenset(labels.split(",")), value

    assert parts(row) in [parts(line) for line in exposition() if not line.startswith("#")]


def test_what_was_not_counted_has_no_series() -> None:
    text = "\n".join(exposition())
    assert 'cache_id="1"' not in text
    assert "other" not in text
    assert "gone" not in text
    assert "koordlet_container_cpi" not in "\n".join(exposition(replace(HARDWARE, counts={})))
    old = replace(HARDWARE, cache=CacheReadings(-500.0, HARDWARE.cache.classes if HARDWARE.cache else {}))
    assert "resctrl_llc" not in "\n".join(exposition(old))


def test_a_declared_workload_is_its_own_only_container(tmp_path: Path) -> None:
    declared = replace(POD, cgroup="web.slice", tree=Tree.OURS, containers=(Container("web", running=True),))
    counts = {"web.slice": Counts(95.0, 10.0, cycles=9_000, instructions=4_500)}
    moment = snapshot(replace(HARDWARE, counts=counts))
    moment = replace(moment, view=replace(moment.view, pods=PodSet((declared,), 1, 100.0)))
    body, _ = Metrics(lambda: (moment, ()), process=False).exposition("", Which.EXTERNAL)
    line = next(line for line in body.decode().splitlines() if line.startswith("koordlet_container_cpi{"))
    assert 'container_name="web"' in line
    usage = WorkloadUsage("shop/web", "web.slice", declared, cpu_mcpu=Reading(800.0, 95.0))
    readings = Readings(Host.preset("host", cgroup_root=tmp_path), lambda: [usage])
    samples, _ = readings.round(95.0, moment.view.pods, counts, None)
    assert [(row.name, row.signal, row.value) for row in samples] == [("shop/web", "cpi", 2.0)]


def test_page() -> None:
    answer = interference_json(snapshot(), 101.0)
    assert [row["name"] for row in answer["online"]] == ["shop/web", "shop/db"]
    verdicts = {(row["online"], row["batch"]): row["verdict"] for row in answer["pairs"]}
    assert verdicts == {
        ("shop/web", "batch/s"): "suspected",
        ("shop/web", "batch/c"): "allowed",
        ("shop/db", "batch/s"): "unknown",
    }
    assert answer["pairs"][1]["change"] == 0.5
    assert interference_json(snapshot(Hardware()), 101.0)["reason"]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: dict[str, Any] = json.loads(json.dumps(interference_json(snapshot(), 101.0)))
    monkeypatch.setattr(command, "ask_ok", lambda socket, path: answer)


@pytest.mark.usefixtures("answered")
def test_command_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "interference"]) == 0
    text = capsys.readouterr().out
    assert "batch/s +0.61" in text
    assert "suspected" in text
    assert "+50%" in text


@pytest.mark.usefixtures("answered")
def test_command_as_csv_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "interference", "--output", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["online"], row["batch"], row["verdict"]) for row in rows][1] == ("shop/web", "batch/s", "suspected")
    assert main(["report", "interference", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["node"] == "n1"


@pytest.mark.usefixtures("answered")
def test_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "matrix.png"
    assert main(["report", "interference", "--picture", str(path)]) == 0
    with image.open(path) as drawn:
        assert drawn.size[0] > 400
    assert main(["report", "interference", "--picture", str(tmp_path / "no/dir.png")]) == 1
    assert "dir.png" in capsys.readouterr().err


def test_report_names_its_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--help"]) == 0
    assert "interference" in capsys.readouterr().out
    assert main(["report", "nothing"]) == 2
    assert main(["report", "interference", "--socket", "/nonexistent/koordlet.sock"]) == 1
