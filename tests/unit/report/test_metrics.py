"""Exposition: golden text, the reference's names and labels, live series only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from koordlet.model.pod import PodSet
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.status import Snapshot, TickStats
from koordlet.model.view import NodeInfo, Outcome, WorkloadUsage
from koordlet.report.metrics import Metrics, Which
from tests.unit.report.samples import NOW_S, SNAPSHOT, VIEW, WORKLOADS, pod, reading, usage

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics.txt"
CASE = Path(__file__).parents[2] / "cases" / "psi-of-finished-pods"


def make(snapshot: Snapshot | None = SNAPSHOT, rows: tuple[WorkloadUsage, ...] = WORKLOADS) -> Metrics:
    return Metrics(
        lambda: (snapshot, rows),
        lambda: {
            "audit_write_errors_total": 1,
            "source_age_seconds{source=kubelet}": 4.5,
            "source_errors_total{source=kubelet}": 1,
        },
        start_time_s=1_789_999_000,
        version="0.1.0",
        process=False,
    )


def samples(metrics: Metrics, which: Which = Which.ALL) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse_text(metrics.exposition("", which)[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_golden_text() -> None:
    metrics = make()
    metrics.observe_update(0.02)
    metrics.observe_update(5.0, "cgroup", "failed")
    metrics.count_collect("cpu_info", ok=True)
    metrics.count_collect("numa_info", ok=False)
    metrics.observe_kubelet("get", "/pods/", 200, 0.02)
    metrics.count_publication("nodemetric", "written")
    body, content_type = metrics.exposition()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert body.decode() == GOLDEN.read_text()


def test_every_family_appears_once() -> None:
    text = make().exposition()[0].decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert all(name.startswith("koordlet_") for name in names)


def test_openmetrics_is_valid_when_asked_for() -> None:
    body, content_type = make().exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert list(parse_openmetrics(body.decode()))


def test_all_is_internal_then_external() -> None:
    metrics = make()
    parts = [metrics.exposition("", which)[0] for which in (Which.INTERNAL, Which.EXTERNAL)]
    assert metrics.exposition()[0] == b"".join(parts)


def test_batch_resources_keep_the_units_of_the_reference() -> None:
    rows = samples(make(), Which.EXTERNAL)["koordlet_container_resource_limits"]
    mine = {labels["resource"]: (labels["unit"], value) for labels, value in rows if labels["pod_uid"] == "u3"}
    assert mine == {"kubernetes.io/batch-cpu": ("byte", 4000), "kubernetes.io/batch-memory": ("byte", 8 << 30)}
    rows = samples(make(), Which.EXTERNAL)["koordlet_container_resource_requests"]
    assert {(labels["unit"], labels["container_id"]) for labels, _ in rows} == {
        ("integer", "containerd://u3c"),
        ("integer", "containerd://u4c"),
    }


def test_node_series_wait_for_the_node_name() -> None:
    nameless = replace(SNAPSHOT, view=replace(VIEW, node=NodeInfo()))
    found = samples(make(nameless))
    assert not [name for name, rows in found.items() if any("node" in labels for labels, _ in rows)]
    assert "koordlet_start_time" not in found
    assert "koordlet_ticks_total" in found


def test_before_the_first_tick_there_are_no_node_figures() -> None:
    found = samples(make(None))
    assert "koordlet_node_used_cpu_cores" not in found
    assert found["koordlet_build_info"] == [({"version": "0.1.0"}, 1.0)]


def test_an_old_reading_gives_no_sample() -> None:
    old = replace(SNAPSHOT, view=replace(VIEW, usage=replace(VIEW.usage, node_mcpu=reading(4700, age_s=11.0))))
    found = samples(make(old))
    assert "koordlet_node_used_cpu_cores" not in found
    assert "koordlet_node_used_memory_bytes" in found


def test_gauges_of_two_strategies_share_a_family() -> None:
    both = {name: Outcome((), None, gauges=(("parts", (("of", name),), 1.0),)) for name in ("a", "b")}
    found = samples(make(replace(SNAPSHOT, outcomes=both)))
    assert found["koordlet_parts"] == [({"of": "a"}, 1.0), ({"of": "b"}, 1.0)]


def test_best_effort_use_is_told_even_when_no_strategy_tells_it() -> None:
    rows = samples(make(replace(SNAPSHOT, outcomes={})))["koordlet_be_suppress_be_used_cpu_cores"]
    assert rows == [({"node": "node-a"}, 1.5)]


def test_a_failing_strategy_is_seen() -> None:
    failing = replace(SNAPSHOT, stats=TickStats(strategy_errors={"suppress": "ValueError: x"}))
    rows = samples(make(failing))["koordlet_strategy_failing"]
    assert rows == [({"strategy": "identity"}, 0.0), ({"strategy": "suppress"}, 1.0)]


def test_process_families_are_internal() -> None:
    metrics = Metrics(lambda: (None, ()))
    assert b"process_resident_memory_bytes" in metrics.exposition("", Which.INTERNAL)[0]
    assert b"process_" not in metrics.exposition("", Which.EXTERNAL)[0]


def test_label_text_of_strangers_is_escaped() -> None:
    odd = pod("u9", 'a"b\\c\nd', KubeQos.BESTEFFORT, Qos.BE)
    found = samples(make(replace(SNAPSHOT, view=replace(VIEW, pods=PodSet((odd,), 1, NOW_S)))), Which.EXTERNAL)
    assert found["koordlet_container_resource_limits"][0][0]["pod_name"] == 'a"b\\c\nd'


def test_case_psi_of_finished_pods() -> None:
    summary = json.loads((CASE / "pods_summary.json").read_text())
    scenario = json.loads((CASE / "scenario.json").read_text())
    expected = json.loads((CASE / "expected.json").read_text())
    phases = ["Running"] * summary["running"] + ["Failed"] * summary["failed"] + ["Succeeded"] * summary["succeeded"]
    pods = [pod(f"p{i}", f"job-{i}", KubeQos.BESTEFFORT, Qos.BE, phase=phase) for i, phase in enumerate(phases)]
    seen = []
    for round_number in range(1, scenario["rounds"] + 1):
        if round_number == scenario["finish_one_after_round"] + 1:
            pods[0] = replace(pods[0], phase="Succeeded")
        now = replace(SNAPSHOT, view=replace(VIEW, pods=PodSet(tuple(pods), round_number, NOW_S)))
        rows = tuple(usage(one, 100, 1 << 20) for one in pods)  # late rows of finished pods included
        text = make(now, rows).exposition("", Which.EXTERNAL)[0].decode()
        seen.append(len({labels["pod_uid"] for f in parse_text(text) for _, labels, *_ in f.samples}))
    assert seen == expected["series_pods"]


@pytest.mark.parametrize("status", ["success", "failed"])
def test_update_histogram_has_the_buckets_of_the_reference(status: str) -> None:
    metrics = make()
    metrics.observe_update(0.05, "cgroup", status)
    rows = samples(metrics, Which.INTERNAL)["koordlet_resource_update_duration_milliseconds_bucket"]
    assert [(labels["le"], value) for labels, value in rows] == [
        ("0.01", 0), ("0.04", 0), ("0.16", 1), ("0.64", 1), ("2.56", 1), ("10.24", 1), ("40.96", 1),
        ("163.84", 1), ("+Inf", 1),
    ]  # fmt: skip
    assert rows[0][0]["status"] == status
