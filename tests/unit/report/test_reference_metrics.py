"""Every metric of the reference is there, in its registry, with its type and labels, on a node that has all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse_text

from koordlet.decide.burst_plan import _labels as burst_labels
from koordlet.model.device import Gpu, GpuUse
from koordlet.model.effect import EffectReport
from koordlet.model.eviction import Evict
from koordlet.model.hardware import Counts, Hardware
from koordlet.model.podeffects import CoreCookie, OomScore
from koordlet.model.psi import Pressures, Psi, PsiLine
from koordlet.model.resctrl import CacheReadings, DomainReading, GroupReading
from koordlet.model.resources import Resources
from koordlet.model.view import Outcome
from koordlet.report.families import Families
from koordlet.report.families_attributes import attribute_families
from koordlet.report.families_node import (
    allocatable_families,
    gpu_families,
    pool_families,
    prediction_families,
    reclaimable_families,
    status_families,
)
from koordlet.report.metrics import Metrics, Which
from tests.unit.report.samples import NOW_S, SNAPSHOT, VIEW, WEB, WORKLOADS
from tests.unit.report.test_families_node import EXAMPLES, V10

TABLE = Path(__file__).parents[2] / "golden" / "reference_metrics.txt"
ROWS = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
TYPES = {"G": "gauge", "C": "counter", "H": "histogram"}
MAIN = WEB.containers[0]
PSI = Psi(PsiLine(1.0, 1.0, 1.0, 1), PsiLine(1.0, 1.0, 1.0, 1), full_supported=True)
FULL = replace(
    SNAPSHOT,
    view=replace(
        VIEW,
        node=replace(VIEW.node, allocatable=Resources(batch_cpu_mcpu=1000)),
        hardware=Hardware(
            cache=CacheReadings(NOW_S, {"BE": GroupReading(NOW_S, {0: DomainReading(1, 2, 3, 4.0, 5.0)})}),
            counts={MAIN.cgroup: Counts(NOW_S, 10.0, cycles=1, instructions=1)},
        ),
    ),
    outcomes={
        **SNAPSHOT.outcomes,
        "burst": Outcome(
            (),
            None,
            gauges=tuple((f"container_scaled_cfs_{x}_us", burst_labels(WEB, MAIN), 1.0) for x in ("burst", "quota")),
        ),
        "podrules": Outcome(
            (), None, effects=(OomScore(MAIN.cgroup, (), "p", 1), CoreCookie(MAIN.cgroup, (), "p", "g"))
        ),
    },
    effects={
        "oom_score_adj": EffectReport(state={MAIN.cgroup: "1 for 1 process"}),
        "core_sched": EffectReport(state={MAIN.cgroup: "group g cookie 0x1"}),
    },
    pressures=Pressures(NOW_S, {"cpu": PSI}, {WEB.cgroup: {"cpu": PSI}, MAIN.cgroup: {"cpu": PSI}}),
)  # fmt: skip


def full() -> Metrics:
    metrics = Metrics(lambda: (FULL, WORKLOADS), start_time_s=1.0, process=False, node="node-a")
    status = next(one["status"] for one in yaml.safe_load_all(EXAMPLES.read_text()) if one["kind"] == "NodeMetric")
    metrics.include(lambda families, snapshot: pool_families(families, snapshot, per_cpu=True))
    metrics.include(attribute_families)
    metrics.include(lambda families, snapshot: prediction_families(families, V10))
    metrics.include(lambda families, snapshot: status_families(families, status))
    metrics.include(allocatable_families, Which.EXTERNAL)
    metrics.include(lambda families, snapshot: reclaimable_families(families, V10), Which.EXTERNAL)
    for subject in ("cpu_info", "numa_info", "local_storage_info"):
        metrics.count_collect(subject, ok=True)
    metrics.count_eviction(Evict("u3", (), "memory_evict", namespace="batch", name="spark"), "evicted")
    metrics.count_cookies("g", ok=True)
    metrics.observe_update(1.0)
    metrics.observe_kubelet("get", "/pods/", 200, 0.1)
    metrics.observe_hook("PreRunPodSandbox", "succeeded", 1.0)
    metrics.observe_reconcile("pod", "cpu.shares", 1.0, ok=True)
    return metrics


@pytest.fixture(scope="module")
def emitted() -> dict[str, dict[str, tuple[str, frozenset[str]]]]:
    """Registry -> name -> type and labels."""
    metrics = full()
    found: dict[str, dict[str, tuple[str, frozenset[str]]]] = {}
    for which in (Which.INTERNAL, Which.EXTERNAL):
        rows = found[which.value] = {}
        for family in parse_text(metrics.exposition("", which)[0].decode()):
            labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
            assert len(labels) <= 1, f"{family.name}: series of one family have different labels"
            if labels:
                rows[family.name.removeprefix("koordlet_")] = (family.type, labels.pop())
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[2]))
def test_as_the_reference_has_it(row: list[str], emitted: dict[str, dict[str, tuple[str, frozenset[str]]]]) -> None:
    registry, kind, name, labels = row
    assert name in emitted[registry], f"{name} is not in the {registry} registry"
    assert emitted[registry][name] == (TYPES[kind], frozenset(labels.split(",")))


def test_no_metric_of_the_reference_has_another_meaning_in_the_other_registry(
    emitted: dict[str, dict[str, tuple[str, frozenset[str]]]],
) -> None:
    assert not emitted["internal"].keys() & emitted["external"].keys()


class Gpus:
    def __init__(self) -> None:
        self.at_s: float | None = NOW_S - 10
        self.gpus = (Gpu(0, "GPU-a", 80 << 30),)
        self.node = {0: GpuUse(42.0, 7 << 30)}
        self.pods = {("u1", 0): GpuUse(None, 6 << 30), ("gone", 0): GpuUse(1.0, 1)}


def test_gpus_of_node_and_live_pods_while_they_are_fresh() -> None:
    families, gpus = Families("node-a"), Gpus()
    gpu_families(families, SNAPSHOT, gpus)
    rows = {sample.name: (sample.labels, sample.value) for family in families for sample in family.samples}
    device = {"gpu_minor": "0", "gpu_device_uuid": "GPU-a", "node": "node-a"}
    pod = {"pod_uid": "u1", "pod_name": "web-0", "pod_namespace": "shop"}
    assert rows == {
        "koordlet_node_gpu_core_usage": (device, 42.0),
        "koordlet_node_gpu_memory_usage": (device, 7 << 30),
        "koordlet_pod_gpu_memory_usage": ({**device, **pod}, 6 << 30),
    }
    for at_s in (None, NOW_S - 61):
        gpus.at_s = at_s
        stale = Families("node-a")
        gpu_families(stale, SNAPSHOT, gpus)
        assert not list(stale)
