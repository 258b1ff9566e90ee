"""Metrics of share pools, allocatable, prediction and the NodeMetric report: names, labels, units (spec/api 4.4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse_text

from koordlet.model.effect import EffectReport
from koordlet.model.podeffects import CoreCookie, OomScore
from koordlet.model.prediction import Amount, ProdPrediction
from koordlet.model.resources import Resources
from koordlet.model.view import Outcome
from koordlet.model.why import stages
from koordlet.report.families import Families
from koordlet.report.families_attributes import attribute_families
from koordlet.report.families_node import (
    allocatable_families,
    pool_families,
    prediction_families,
    reclaimable_families,
    status_families,
)
from koordlet.report.metrics import Collect, Metrics, Which
from tests.unit.report.samples import SNAPSHOT, VIEW, WEB

EXAMPLES = Path(__file__).parents[2] / "labs/cluster/examples.yaml"
V10 = ProdPrediction(
    (Amount(2900, 5046586573), Amount(3100, 7838315315)), (Amount(3800, 4617089844), Amount(2200, 8267812044))
)


def scrape(collect: Collect, which: Which = Which.INTERNAL, node: str = "node-a", **info: Any) -> dict[str, float]:
    """`name{labels}` -> value of what one collector adds."""
    snapshot = replace(SNAPSHOT, view=replace(VIEW, node=replace(VIEW.node, name=node, **info)))
    found: list[set[str]] = []
    texts: dict[str, float] = {}
    for with_it in (False, True):
        metrics = Metrics(lambda: (snapshot, ()), process=False)
        if with_it:
            metrics.include(collect, which)
        rows = {}
        for family in parse_text(metrics.exposition("", which)[0].decode()):
            for sample in family.samples:
                labels = ",".join(f"{key}={text}" for key, text in sorted(sample.labels.items()))
                rows[f"{sample.name.removeprefix('koordlet_')}{{{labels}}}"] = sample.value
        found.append(set(rows))
        texts = rows
    return {key: texts[key] for key in found[1] - found[0]}


def test_oom_scores_and_cookies_that_were_set() -> None:
    target = WEB.containers[0].cgroup
    why = stages(score=-500)
    effects = (OomScore(target, why, "podrules", -500), CoreCookie(target, why, "podrules", "tenant-a"))
    done = {
        "oom_score_adj": EffectReport(state={target: "-500 for 2 processes"}),
        "core_sched": EffectReport(state={target: "group tenant-a cookie 0x1f"}),
    }
    snapshot = replace(SNAPSHOT, outcomes={"podrules": Outcome((), None, effects=effects)}, effects=done)
    families = Families("node-a")
    attribute_families(families, snapshot)
    rows = {sample.name: sample for family in families for sample in family.samples}
    score, cookie = rows["koordlet_container_oom_score_adj"], rows["koordlet_container_core_sched_cookie"]
    assert (score.value, score.labels["container_name"], score.labels["pod_name"]) == (-500, "main", "web-0")
    assert (cookie.value, cookie.labels["core_sched_group"], cookie.labels["core_sched_cookie"]) == (
        1,
        "tenant-a",
        "0x1f",
    )
    refused = Families("node-a")
    attribute_families(refused, replace(snapshot, effects={}))
    assert not list(refused)


def test_pools_by_count_and_by_cpu() -> None:
    counts = scrape(lambda families, snapshot: pool_families(families, snapshot, per_cpu=False))
    assert counts == {"cpuset_share_pool_cpu_cores{node=node-a}": 8, "cpuset_be_share_pool_cpu_cores{node=node-a}": 8}
    each = scrape(lambda families, snapshot: pool_families(families, snapshot, per_cpu=True))
    assert each["cpuset_share_pool_info{cpu=7,node=node-a}"] == 1
    assert len(each) == 18
    assert scrape(lambda families, snapshot: pool_families(families, snapshot, per_cpu=True), topology=None) == {}


def test_allocatable_batch_and_mid() -> None:
    offered = Resources(batch_cpu_mcpu=15_000, batch_memory_bytes=64 << 30, mid_cpu_mcpu=0)
    assert scrape(allocatable_families, Which.EXTERNAL, allocatable=offered) == {
        "node_resource_allocatable{node=node-a,resource=kubernetes.io/batch-cpu,unit=integer}": 15_000,
        "node_resource_allocatable{node=node-a,resource=kubernetes.io/batch-memory,unit=byte}": 64 << 30,
        "node_resource_allocatable{node=node-a,resource=kubernetes.io/mid-cpu,unit=integer}": 0,
    }
    assert scrape(allocatable_families, Which.EXTERNAL, node="", allocatable=offered) == {}


def test_v10_predictions() -> None:
    found = scrape(lambda families, snapshot: prediction_families(families, V10))
    assert len(found) == 12
    row = "node_predicted_resource_reclaimable{{node=node-a,predictor={},resource=cpu,unit=core}}"
    names = ("podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor")
    assert [found[row.format(name)] for name in names] == [2.9, 3.8, 2.9]
    assert (
        found["node_predicted_resource_peak{node=node-a,predictor=minPredictor,resource=memory,unit=byte}"]
        == 8267812044
    )
    assert scrape(lambda families, snapshot: prediction_families(families, None)) == {}


@pytest.mark.parametrize(("prediction", "cores", "status"), [(V10, 2.9, 0), (None, 0, 1)], ids=["ok", "failed"])
def test_reclaimable_is_0_on_failure_and_says_so(prediction: ProdPrediction | None, cores: float, status: int) -> None:
    found = scrape(lambda families, snapshot: reclaimable_families(families, prediction), Which.EXTERNAL)
    row = "node_priority_resource_reclaimable{node=node-a,priority=koord-prod,resource=cpu,unit=core}"
    assert found[row] == cores
    assert found["node_resource_priority_reclaimable_status{node=node-a,priority=koord-prod}"] == status


def test_example_5_2_as_metrics() -> None:
    documents = yaml.safe_load_all(EXAMPLES.read_text())
    status = next(found["status"] for found in documents if found["kind"] == "NodeMetric")
    found = scrape(lambda families, snapshot: status_families(families, status))
    assert found["node_metric_node_usage{node=node-a,resource=cpu,unit=core}"] == 9.876
    assert found["node_metric_system_usage{node=node-a,resource=memory,unit=byte}"] == 3 << 30
    row = "node_metric_numa_system_usage{node=node-a,numa_node_id=1,resource=cpu,unit=core}"
    assert found[row] == 0.277
    assert len(found) == 4 + 8
    assert scrape(lambda families, snapshot: status_families(families, {})) == {}
