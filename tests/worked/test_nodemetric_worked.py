"""A NodeMetric's status, number by number: rounding, windows, cold start, memory policies, the whole example.

Longer than other files: one per section of the specification, so that an example is found where its section is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from koordlet.config.errors import PolicyError
from koordlet.config.nodemetric import format_duration, read_metric_policy
from koordlet.model.device import GPU, POD_GPU, Gpu, pod_gpu
from koordlet.model.nodemetric import MemoryKind, MetricPolicy
from koordlet.model.pod import HostApp, Pod, PodSet
from koordlet.model.prediction import Amount, ProdPrediction
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.view import NodeView
from koordlet.report.nodemetric import NotReportable, as_patch, build_status, problem, resource_map
from koordlet.store.rings import RingStore
from tests.hosts.cases import case_json

GI = 2**30
NOW_S = 10_000.0
WALL_S = datetime(2026, 1, 1, 0, 2, tzinfo=UTC).timestamp()
EMPTY = {"avg": {}, "p50": {}, "p90": {}, "p95": {}, "p99": {}}
DEFAULT = MetricPolicy()


def usage(cpu: str, memory: str) -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": memory}}


class Measured:
    """Rings with a sample a second until NOW_S."""

    def __init__(self) -> None:
        self.rings = RingStore()

    def fill(self, kind: str, name: str, seconds: int, mcpu: float, size: float, *, until_s: float = NOW_S) -> None:
        self.series(kind, name, "cpu", seconds, mcpu, until_s)
        self.series(kind, name, "memory", seconds, size, until_s)

    def series(self, kind: str, name: str, metric: str, seconds: int, value: float, until_s: float = NOW_S) -> None:
        number = self.rings.open(kind, name, metric)
        for age_s in range(seconds, -1, -1):
            self.rings.push(number, until_s - age_s, value)

    def node(self, seconds: int = 120) -> Measured:
        self.fill("node", "", seconds, 3250.0, 12 * GI)
        self.fill("system", "", seconds, 250.0, 2 * GI)
        return self

    def status(
        self,
        *pods: Pod,
        policy: MetricPolicy = DEFAULT,
        prediction: ProdPrediction | None = None,
        host_apps: tuple[HostApp, ...] = (),
        numa: tuple[int, ...] = (),
        gpus: tuple[Gpu, ...] = (),
    ) -> dict[str, Any]:
        view = NodeView(now_s=NOW_S, pods=PodSet(pods, 1, NOW_S), host_apps=host_apps)
        return build_status(self.rings, view, policy, lambda listed: prediction, WALL_S, numa, gpus)

    def gpu(self, kind: str, name: str, core_percent: float, size: float) -> None:
        self.series(kind, name, "core", 60, core_percent)
        self.series(kind, name, "memory", 60, size)


def pod(namespace: str, name: str, qos: Qos | None = Qos.LS, priority: int | None = 9500, **more: Any) -> Pod:
    return Pod(name, namespace, name, f"kubepods/{name}", KubeQos.BURSTABLE, qos=qos, priority=priority, **more)


@pytest.mark.parametrize(
    ("mcpu", "size", "expected"),
    [
        (1234.5, 4294967296.7, usage("1234m", "4Gi")),
        (999.9, 123456789.0, usage("999m", "123456789")),
        (2500.0, 1073741824.0, usage("2500m", "1Gi")),
        (0.49, 1536.0, usage("0", "1536")),
        (2000.0, 2048.0, usage("2", "2Ki")),
        (12_000.0, 1000.0, usage("12", "1k")),
        (1_000_000.0, 26148864000.0, usage("1k", "25536000Ki")),
    ],
    ids=["W-30-a", "W-30-b", "W-30-c", "W-30-d", "V-01-V-02-a", "V-01-V-02-b", "V-01-V-08"],
)
def test_quantities(mcpu: float, size: float, expected: dict[str, Any]) -> None:
    assert resource_map(mcpu, size) == expected


def test_w45_two_minutes_after_the_start() -> None:
    lab = Measured().node()
    lab.fill("pod", "web-0", 100, 3000.0, 10 * GI)
    empty = [{"usage": EMPTY, "duration": text} for text in ("5m0s", "10m0s", "30m0s")]
    assert lab.status(pod("shop", "web-0")) == {
        "updateTime": "2026-01-01T00:02:00Z",
        "nodeMetric": {
            "nodeUsage": usage("3250m", "12Gi"),
            "aggregatedNodeUsages": empty,
            "systemUsage": usage("250m", "2Gi"),
            "aggregatedSystemUsages": empty,
        },
        "podsMetric": [
            {
                "name": "web-0",
                "namespace": "shop",
                "podUsage": usage("3", "10Gi"),
                "priority": "koord-prod",
                "qos": "LS",
            }
        ],
        "prodReclaimableMetric": {"resource": {}},
    }


def test_what_was_predicted_is_in_the_report() -> None:
    """V-10."""
    found = ProdPrediction(
        (Amount(2900, 5046586573), Amount(3100, 7838315315)), (Amount(3800, 4617089844), Amount(2200, 8267812044))
    )
    status = Measured().node().status(prediction=found)
    assert status["prodReclaimableMetric"] == {"resource": usage("2900m", "4617089844")}
    assert status["prodPeakMetric"] == {"resource": usage("3100m", "8267812044")}


@pytest.mark.parametrize(
    ("span_s", "reported"),
    [(149, []), (150, ["5m0s"]), (299, ["5m0s"]), (300, ["5m0s", "10m0s"]), (899, ["5m0s", "10m0s"]),
     (900, ["5m0s", "10m0s", "30m0s"])],
    ids=["V-07-a", "V-07-b", "W-31-a", "W-31-b", "W-31-c", "W-31-d"],
)  # fmt: skip
def test_cold_start(span_s: int, reported: list[str]) -> None:
    status = Measured().node(span_s).status()["nodeMetric"]
    for name in ("aggregatedNodeUsages", "aggregatedSystemUsages"):
        assert [found["duration"] for found in status[name]] == ["5m0s", "10m0s", "30m0s"]
        assert [found["duration"] for found in status[name] if found["usage"] != EMPTY] == reported


def test_v06_percentiles_of_a_window() -> None:
    lab = Measured()
    lab.fill("system", "", 300, 0.0, 0.0)
    cpu, memory = (lab.rings.open("node", "", metric) for metric in ("cpu", "memory"))
    for number in range(1, 301):
        lab.rings.push(cpu, NOW_S - 300 + number, number * 1000.0)
        lab.rings.push(memory, NOW_S - 300 + number, number * 1024.0)
    (found, *_) = lab.status()["nodeMetric"]["aggregatedNodeUsages"]
    assert {name: value["resources"]["cpu"] for name, value in found["usage"].items()} == {
        "avg": "150500m", "p50": "150", "p90": "270", "p95": "285", "p99": "297",
    }  # fmt: skip


def test_case_aggregated_usage_avg_and_percentiles() -> None:
    case = case_json("aggregated-usage-avg-and-percentiles", "samples.json")
    lab = Measured()
    lab.fill("system", "", 300, 0.0, 0.0)
    cpu, memory = (lab.rings.open("node", "", metric) for metric in ("cpu", "memory"))
    count, step_s = len(case["values"]), case["interval_seconds"]
    for index, cores in enumerate(case["values"]):
        at_s = NOW_S - (count - 1 - index) * step_s
        lab.rings.push(cpu, at_s, cores * 1000.0)
        lab.rings.push(memory, at_s, GI)
    (found, *_) = lab.status()["nodeMetric"]["aggregatedNodeUsages"]
    expected = case_json("aggregated-usage-avg-and-percentiles")
    assert found["usage"] == {name: resource_map(cores * 1000, GI) for name, cores in expected.items()}


def test_pods_are_sorted_and_those_without_figures_left_out() -> None:
    lab = Measured().node()
    lab.fill("pod", "spark-1", 300, 3210.0, 8 * GI)
    lab.fill("pod", "api-0", 30, 4120.0, 12 * GI)  # young: its own samples' average, not diluted
    lab.series("pod", "half", "cpu", 30, 1.0)  # memory was not read yet
    found = lab.status(
        pod("online", "half"),
        pod("online", "new"),
        pod("online", "api-0", Qos.LSR),
        pod("batch", "spark-1", Qos.BE, 5500),
    )
    assert found["podsMetric"] == [
        {"namespace": "batch", "name": "spark-1", "priority": "koord-batch", "qos": "BE",
         "podUsage": usage("3210m", "8Gi")},
        {"namespace": "online", "name": "api-0", "priority": "koord-prod", "qos": "LSR",
         "podUsage": usage("4120m", "12Gi")},
    ]  # fmt: skip


def test_of_two_pods_of_one_name_the_newer_comes_last() -> None:
    lab = Measured().node()
    for uid in ("old", "new"):
        lab.fill("pod", uid, 30, 1000.0 if uid == "old" else 2000.0, GI)
    twins = [replace(pod("a", "x"), uid=uid, created_at_s=at_s) for uid, at_s in (("new", 2.0), ("old", 1.0))]
    assert [row["podUsage"]["resources"]["cpu"] for row in lab.status(*twins)["podsMetric"]] == ["1", "2"]


def test_host_applications_by_name_with_the_classes_of_the_policy() -> None:
    lab = Measured().node()
    for name in ("b", "edge-proxy"):
        lab.fill("host", name, 30, 734.0, 512 * 2**20)
    apps = (
        HostApp("edge-proxy", "infra/edge-proxy", Qos.LS, "koord-prod"),
        HostApp("b", "b"),
        HostApp("gone", "gone", Qos.LS),
    )
    assert lab.status(host_apps=apps)["hostApplicationMetric"] == [
        {"name": "b", "usage": usage("734m", "512Mi")},
        {"name": "edge-proxy", "priority": "koord-prod", "qos": "LS", "usage": usage("734m", "512Mi")},
    ]


def test_numa_nodes_with_what_is_known_of_each() -> None:
    lab = Measured().node()
    lab.fill("numa", "1", 60, 3376.0, 17 * GI)
    lab.fill("numa", "0", 60, 6500.0, 22 * GI)
    lab.fill("system_numa", "0", 60, 534.0, 1600 * 2**20)
    lab.series("system_numa", "1", "cpu", 60, 277.0)
    assert lab.status(numa=(1, 0, 2))["nodeMetric"]["numaUsages"] == [
        {"numaNodeID": 0, "nodeUsage": usage("6500m", "22Gi"), "systemUsage": usage("534m", "1600Mi")},
        {"numaNodeID": 1, "nodeUsage": usage("3376m", "17Gi"), "systemUsage": {"resources": {"cpu": "277m"}}},
    ]


@pytest.mark.parametrize(
    ("kind", "metric"),
    [(MemoryKind.WITH_CACHE, "memory_cached"), (MemoryKind.WITH_HOT_CACHE, "memory_hot")],
    ids=["all", "hot"],
)
def test_memory_with_page_cache_is_one_definition_for_all(kind: MemoryKind, metric: str) -> None:
    """FAULT-16: the reference subtracts one kind from the other."""
    lab = Measured().node()
    lab.fill("pod", "a", 60, 1000.0, GI)
    for what, name, size in (("node", "", 40.0), ("system", "", 5.0), ("pod", "a", 30.0)):
        lab.series(what, name, metric, 60, size * GI)
    found = lab.status(pod("n", "a"), policy=replace(DEFAULT, memory=kind))
    assert found["nodeMetric"]["nodeUsage"]["resources"]["memory"] == "40Gi"
    assert found["nodeMetric"]["systemUsage"]["resources"]["memory"] == "5Gi"
    assert found["podsMetric"][0]["podUsage"]["resources"]["memory"] == "30Gi"


@pytest.mark.parametrize("kind", [MemoryKind.WITH_CACHE, MemoryKind.WITH_HOT_CACHE])
def test_without_such_figures_the_plain_kind_is_reported(kind: MemoryKind) -> None:
    """F-03: the reference then empties nodeUsage and drops all pods."""
    lab = Measured().node()
    lab.fill("pod", "a", 60, 1000.0, GI)
    policy = replace(DEFAULT, memory=kind)
    assert lab.status(pod("n", "a"), policy=policy) == lab.status(pod("n", "a"))


@pytest.mark.parametrize("kind", ["node", "system"])
@pytest.mark.parametrize("metric", ["cpu", "memory"])
def test_f01_no_report_without_fresh_figures_of_the_node(kind: str, metric: str) -> None:
    lab = Measured()
    for each in ("node", "system"):
        for name in ("cpu", "memory"):
            if (each, name) != (kind, metric):
                lab.series(each, "", name, 60, 1.0)
    with pytest.raises(NotReportable, match=f"no {metric} usage of the {kind}"):
        lab.status()
    lab.series(kind, "", metric, 10, 1.0, until_s=NOW_S - 31)
    assert problem(lab.rings, DEFAULT, NOW_S) == f"{metric} usage of the {kind} is 31 s old"
    lab.series(kind, "", metric, 0, 1.0, until_s=NOW_S - 30)
    assert problem(lab.rings, DEFAULT, NOW_S) == ""
    assert lab.status()["updateTime"] == "2026-01-01T00:02:00Z"


def test_w32_gpus_of_the_node_and_of_a_pod() -> None:
    lab = Measured().node()
    lab.fill("pod", "a", 60, 1000.0, GI)
    lab.gpu(GPU, "0", 51.0, 6.0 * GI)
    lab.series(GPU, "1", "memory", 60, 0.0)  # the driver does not tell its use
    lab.gpu(POD_GPU, pod_gpu("a", 0), 17.5, 3.0 * GI)
    gpus = (Gpu(0, "GPU-a", 80 * GI), Gpu(1, "GPU-b", 80 * GI, healthy=False), Gpu(2, "GPU-c", 80 * GI))
    status = lab.status(pod("n", "a"), gpus=gpus)

    def row(minor: int, health: bool, **resources: str) -> dict[str, Any]:
        found = {f"koordinator.sh/{key.replace('_', '-')}": text for key, text in resources.items()}
        return {"type": "gpu", "id": f"GPU-{'abc'[minor]}", "minor": minor, "health": health, "resources": found}

    assert status["nodeMetric"]["nodeUsage"]["devices"] == [
        row(0, True, gpu_core="51", gpu_memory="6Gi", gpu_memory_ratio="7"),
        row(1, False, gpu_memory="0", gpu_memory_ratio="0"),
    ]
    assert status["podsMetric"][0]["podUsage"]["devices"] == [
        row(0, True, gpu_core="17", gpu_memory="3Gi", gpu_memory_ratio="3")
    ]
    plain = lab.status(pod("n", "a"))
    assert "devices" not in plain["nodeMetric"]["nodeUsage"]
    assert merged({"status": status}, as_patch(plain)) == {"status": plain}


def merged(into: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    base = into if isinstance(into, dict) else {}
    out = {key: value for key, value in base.items() if key not in patch}
    return out | {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}


def test_a_patch_leaves_nothing_of_the_report_before() -> None:
    full = Measured().node(1800)
    full.fill("pod", "a", 60, 1.0, 1.0)
    full.fill("host", "h", 60, 1.0, 1.0)
    full.fill("numa", "0", 60, 1.0, 1.0)
    amounts = (Amount(1, 1), Amount(1, 1))
    before = full.status(
        pod("n", "a"), prediction=ProdPrediction(amounts, amounts), host_apps=(HostApp("h", "h"),), numa=(0,)
    )
    after = Measured().node().status()
    assert set(before) == {*after, "podsMetric", "hostApplicationMetric", "prodPeakMetric"}
    assert merged({"status": before}, as_patch(after)) == {"status": after}
    assert merged({"spec": 1}, as_patch(before)) == {"spec": 1, "status": before}


EXAMPLE = """
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeMetric
metadata: {name: node-a, generation: 1}
spec:
  metricCollectPolicy:
    aggregateDurationSeconds: 300
    reportIntervalSeconds: 60
    nodeAggregatePolicy: {durations: [5m0s, 10m0s, 30m0s]}
    nodeMemoryCollectPolicy: usageWithoutPageCache
status:
  nodeMetric:
    nodeUsage:
      resources: {cpu: 9876m, memory: 40268132Ki}
      devices:
      - {type: gpu, id: GPU-fd971b33, minor: 0, health: false, resources: {koordinator.sh/gpu-core: "37", koordinator.sh/gpu-memory: 6Gi, koordinator.sh/gpu-memory-ratio: "40"}}
    systemUsage: {resources: {cpu: 812m, memory: 3Gi}}
    numaUsages:
    - {numaNodeID: 0, nodeUsage: {resources: {cpu: 6500m, memory: 22Gi}}, systemUsage: {resources: {cpu: 534m, memory: 1600Mi}}}
    - {numaNodeID: 1, nodeUsage: {resources: {cpu: 3376m, memory: 17Gi}}, systemUsage: {resources: {cpu: 277m, memory: 1400Mi}}}
  podsMetric:
  - {namespace: batch, name: spark-1, priority: koord-batch, qos: BE, podUsage: {resources: {cpu: 3210m, memory: 8Gi}}}
  - {namespace: online, name: api-0, priority: koord-prod, qos: LSR, podUsage: {resources: {cpu: 4120m, memory: 12Gi}}}
  hostApplicationMetric:
  - {name: edge-proxy, priority: koord-prod, qos: LS, usage: {resources: {cpu: 734m, memory: 512Mi}}}
  prodReclaimableMetric: {resource: {resources: {cpu: 2900m, memory: "4617089844"}}}
  prodPeakMetric: {resource: {resources: {cpu: 3100m, memory: "8267812044"}}}
"""  # noqa: E501


def test_the_whole_example_comes_out_of_its_own_numbers() -> None:
    """spec/api 5.2: the same figures measured give the same object."""
    example = yaml.safe_load(EXAMPLE)
    assert read_metric_policy(example["spec"]) == DEFAULT
    lab = Measured()
    for kind, name, mcpu, size in (
        ("node", "", 9876.0, 40268132.0 * 1024),
        ("system", "", 812.0, 3.0 * GI),
        ("numa", "0", 6500.0, 22.0 * GI),
        ("numa", "1", 3376.0, 17.0 * GI),
        ("system_numa", "0", 534.0, 1600.0 * 2**20),
        ("system_numa", "1", 277.0, 1400.0 * 2**20),
        ("pod", "spark-1", 3210.0, 8.0 * GI),
        ("pod", "api-0", 4120.0, 12.0 * GI),
        ("host", "edge-proxy", 734.0, 512.0 * 2**20),
    ):
        lab.fill(kind, name, 300, mcpu, size)
    lab.gpu(GPU, "0", 37.9, 6.0 * GI)
    prediction = ProdPrediction(
        (Amount(2900, 5046586573), Amount(3100, 7838315315)), (Amount(3800, 4617089844), Amount(2200, 8267812044))
    )
    status = lab.status(
        pod("online", "api-0", Qos.LSR),
        pod("batch", "spark-1", Qos.BE, 5500),
        prediction=prediction,
        host_apps=(HostApp("edge-proxy", "infra/edge-proxy", Qos.LS, "koord-prod"),),
        numa=(0, 1),
        gpus=(Gpu(0, "GPU-fd971b33", 15 * GI, healthy=False),),
    )
    node = status["nodeMetric"]
    assert node.pop("aggregatedNodeUsages")[0]["usage"]["p95"] == usage("9876m", "40268132Ki")
    assert node.pop("aggregatedSystemUsages")[2]["usage"] == EMPTY
    assert status.pop("updateTime")
    assert status == example["status"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"reportIntervalSeconds": 10}, {"interval_s": 30.0}, id="V-48-a"),
        pytest.param({"reportIntervalSeconds": 120}, {"interval_s": 120.0}, id="V-48-b"),
        pytest.param({}, {"interval_s": 60.0, "window_s": 300.0}, id="V-48-c"),
        pytest.param({"aggregateDurationSeconds": 30}, {"window_s": 60.0}, id="V-49"),
        pytest.param({"aggregateDurationSeconds": -(2**63)}, {"window_s": 60.0}, id="negative"),
        pytest.param({"aggregateDurationSeconds": 2**63 - 1}, {"window_s": 86400.0}, id="centuries"),
        pytest.param({"nodeAggregatePolicy": {"durations": ["300s", "1h30m"]}},
                     {"durations": ((300.0, "5m0s"), (5400.0, "1h30m0s"))}, id="durations"),
        pytest.param({"nodeAggregatePolicy": {"durations": []}}, {"durations": ()}, id="no-durations"),
        pytest.param({"nodeMemoryCollectPolicy": "usageWithPageCache"}, {"memory": MemoryKind.WITH_CACHE}, id="cache"),
        pytest.param({"nodeMemoryCollectPolicy": "later"}, {"memory": MemoryKind.WITHOUT_CACHE}, id="unknown-memory"),
        pytest.param({"newKey": [1]}, {}, id="newer-control-plane"),
    ],
)  # fmt: skip
def test_spec(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read_metric_policy({"metricCollectPolicy": given, "later": True}) == replace(DEFAULT, **expected)


def test_no_spec_is_the_default() -> None:
    assert read_metric_policy(None) == read_metric_policy({}) == DEFAULT


@pytest.mark.parametrize(
    "given",
    [{"reportIntervalSeconds": "60"}, {"aggregateDurationSeconds": 1.5}, {"nodeAggregatePolicy": {"durations": ["5x"]}},
     {"nodeAggregatePolicy": {"durations": ["0s"]}}, {"nodeAggregatePolicy": {"durations": ["1s"] * 17}}],
)  # fmt: skip
def test_a_malformed_spec_is_refused_as_a_whole(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="metricCollectPolicy"):
        read_metric_policy({"metricCollectPolicy": given})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(300, "5m0s"), (5400, "1h30m0s"), (59, "59s"), (90.5, "1m30.5s"), (0.25, "250ms"), (86400, "24h0m0s")],
)
def test_durations_as_go_prints_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_case_nodemetric_query_window() -> None:
    for given, expected in zip(
        case_json("nodemetric-query-window", "input.json"), case_json("nodemetric-query-window"), strict=True
    ):
        asked = {"aggregateDurationSeconds": given["aggregateDurationSeconds"]}
        policy = read_metric_policy({"metricCollectPolicy": asked})
        lab = Measured()
        for at_s, value in ((expected["start"] - 1, 9.0), (expected["start"], 1.0), (expected["end"], 2.0)):
            for kind in ("node", "system"):
                for metric in ("cpu", "memory"):
                    lab.rings.push(lab.rings.open(kind, "", metric), at_s, value * 1000)
        view = NodeView(now_s=float(given["now"]), pods=PodSet(at_s=float(given["now"])))
        status = build_status(lab.rings, view, policy, lambda pods: None, WALL_S)
        assert status["nodeMetric"]["nodeUsage"]["resources"]["cpu"] == "1500m"  # both ends are inside
