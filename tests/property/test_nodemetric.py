"""Whatever was measured or asked for: a report is whole and within what was measured, its patch complete."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordlet.config.errors import PolicyError
from koordlet.config.nodemetric import MIN_INTERVAL_S, MIN_WINDOW_S, read_metric_policy
from koordlet.model.nodemetric import MetricPolicy
from koordlet.model.pod import Pod, PodSet
from koordlet.model.qos import KubeQos
from koordlet.model.quantity import parse_mcpu, parse_units
from koordlet.model.view import NodeView
from koordlet.report.nodemetric import STALE_S, NotReportable, as_patch, build_status
from koordlet.store.rings import RingStore

NOW_S = 10_000.0
SAMPLES = st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 1e12)), max_size=12)
PODS = st.dictionaries(st.sampled_from("abcd"), st.tuples(SAMPLES, SAMPLES))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("aggregateDurationSeconds", "reportIntervalSeconds", "nodeAggregatePolicy", "nodeMemoryCollectPolicy")
"""Of spec.metricCollectPolicy."""


def fill(rings: RingStore, kind: str, name: str, metric: str, samples: list[tuple[int, float]]) -> None:
    for age_s, value in sorted(samples, reverse=True):
        rings.push(rings.open(kind, name, metric), NOW_S - age_s, value)


@given(SAMPLES, SAMPLES, SAMPLES, SAMPLES, PODS)
def test_a_report_is_whole_or_there_is_none(
    node_cpu: list[Any], node_memory: list[Any], cpu: list[Any], memory: list[Any], pods: dict[str, Any]
) -> None:
    rings = RingStore()
    for kind, metric, samples in (
        ("node", "cpu", node_cpu),
        ("node", "memory", node_memory),
        ("system", "cpu", cpu),
        ("system", "memory", memory),
    ):
        fill(rings, kind, "", metric, samples)
    for name, (pod_cpu, pod_memory) in pods.items():
        fill(rings, "pod", name, "cpu", pod_cpu)
        fill(rings, "pod", name, "memory", pod_memory)
    known = tuple(Pod(name, "ns", name, name, KubeQos.BURSTABLE) for name in pods)
    view = NodeView(now_s=NOW_S, pods=PodSet(known, 1, NOW_S))
    fresh = all(any(age_s <= STALE_S for age_s, _ in each) for each in (node_cpu, node_memory, cpu, memory))
    try:
        status = build_status(rings, view, MetricPolicy(), lambda listed: None, 0.0)
    except NotReportable:
        assert not fresh
        return
    assert fresh
    usage = status["nodeMetric"]["nodeUsage"]["resources"]
    inside = [value for age_s, value in node_cpu if age_s <= 300]
    assert int(min(inside)) - 1 <= parse_mcpu(usage["cpu"]) <= max(inside) + 1
    assert parse_units(usage["memory"]) >= 0
    for name in ("aggregatedNodeUsages", "aggregatedSystemUsages"):
        for entry in status["nodeMetric"][name]:
            shapes = Counter(bool(found) for found in entry["usage"].values())
            assert len(shapes) == 1  # all of a window's aggregates or none
    listed = {row["name"] for row in status.get("podsMetric", ())}
    both = {n for n, (c, m) in pods.items() if any(a <= 300 for a, _ in c) and any(a <= 300 for a, _ in m)}
    assert listed == both
    assert set(as_patch(status)["status"]) >= {"podsMetric", "hostApplicationMetric", "prodPeakMetric", *status}


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), JSON, max_size=4) | JSON)
def test_any_spec_is_read_or_refused(policy: Any) -> None:
    try:
        found = read_metric_policy({"metricCollectPolicy": policy})
    except PolicyError:
        return
    assert MIN_WINDOW_S <= found.window_s <= 86_400
    assert MIN_INTERVAL_S <= found.interval_s <= 86_400
    assert all(0 < seconds <= 86_400 for seconds, _ in found.durations)
