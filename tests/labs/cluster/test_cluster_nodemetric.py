"""Cluster lab: the NodeMetric that koord-manager makes gets a whole status within its interval, again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from koordlet.model.quantity import parse_mcpu, parse_units
from tests.labs.cluster.agent import Agent
from tests.labs.cluster.api import MERGE_PATCH
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.manager import METRIC_PATH, node_metric
from tests.labs.cluster.node import Node, pod

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(900)]

INTERVAL_S = 30.0
"""The shortest that is allowed."""
SLACK_S = 10.0
DURATIONS = ["5m0s", "10m0s"]


def metric() -> dict[str, Any]:
    """As koord-manager makes it."""
    made = node_metric(
        int(INTERVAL_S),
        aggregateDurationSeconds=60,
        nodeAggregatePolicy={"durations": DURATIONS},
        nodeMemoryCollectPolicy="usageWithoutPageCache",
    )
    made["spec"]["aLaterVersionsKey"] = {"x": 1}
    return made


@pytest.fixture(scope="module")
def agent(cluster: Cluster, cluster_node: Node) -> Iterator[Agent]:
    cluster.admin.create(metric())
    cluster.admin.create(pod("web", {"cpu": "50m", "memory": "32Mi"}, {"cpu": "200m"}))
    cluster.sandbox.wait("the pod runs", lambda: phase(cluster, "web") == "Running", 60)
    made = Agent(cluster, cluster_node, kubelet_root=cluster_node.root).start()
    yield made
    made.stop()
    cluster.admin.delete(METRIC_PATH)
    cluster.admin.delete("/api/v1/namespaces/lab/pods/web")


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.admin.get(f"/api/v1/namespaces/lab/pods/{name}")["status"]["phase"])


def status(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.admin.get(METRIC_PATH).get("status", {})
    return found


def time_of(found: dict[str, Any]) -> float:
    return datetime.fromisoformat(found["updateTime"]).timestamp() if "updateTime" in found else 0.0


def next_report(cluster: Cluster, agent: Agent, seconds: float = INTERVAL_S + SLACK_S) -> dict[str, Any]:
    before = time_of(status(cluster))
    agent.until("a new report", lambda: time_of(status(cluster)) > before, seconds)
    return status(cluster)


def cpu(usage: dict[str, Any]) -> int:
    return parse_mcpu(usage["resources"]["cpu"])


def memory(usage: dict[str, Any]) -> int:
    return parse_units(usage["resources"]["memory"])


def test_a_whole_status_within_the_interval(cluster: Cluster, agent: Agent) -> None:
    found = next_report(cluster, agent)
    assert abs(time.time() - time_of(found)) < SLACK_S
    node = found["nodeMetric"]
    for name in ("aggregatedNodeUsages", "aggregatedSystemUsages"):
        assert [one["duration"] for one in node[name]] == DURATIONS
        assert set(node[name][0]["usage"]) == {"avg", "p50", "p90", "p95", "p99"}
    assert cpu(node["nodeUsage"]) > 0
    assert memory(node["nodeUsage"]) > 64 << 20
    # Averages of their own samples: the system has none of the first seconds, when no pod had a rate yet.
    assert 0 <= cpu(node["systemUsage"]) <= 1.1 * cpu(node["nodeUsage"])
    assert 0 < memory(node["systemUsage"]) < memory(node["nodeUsage"]) * 1.1  # it begins some seconds later
    (web,) = [row for row in found["podsMetric"] if row["name"] == "web"]
    assert (web["namespace"], web["priority"], web["qos"]) == ("lab", "koord-prod", "LS")
    assert 0 < memory(web["podUsage"]) < 64 << 20
    assert [row["numaNodeID"] for row in node["numaUsages"]] == list(range(len(node["numaUsages"])))
    assert sum(memory(row["nodeUsage"]) for row in node["numaUsages"]) > 64 << 20
    # The pods are young: nothing is taken from them yet, and their requests count as their peak.
    assert found["prodReclaimableMetric"]["resource"]["resources"] == {"cpu": "0", "memory": "0"}
    assert cpu(found["prodPeakMetric"]["resource"]) >= 50
    print(json.dumps(found)[:1500])


def test_one_write_each_interval_in_which_nothing_of_another_writer_stays(cluster: Cluster, agent: Agent) -> None:
    first = status(cluster) if time_of(status(cluster)) else next_report(cluster, agent)
    written = agent.metric("publications_total", publication="nodemetric", result="written")
    foreign = {
        "podsMetric": [{"name": "ghost", "namespace": "x", "podUsage": {}}],
        "hostApplicationMetric": [{}],
        "nodeMetric": {"nodeUsage": {"resources": {"cpu": "0"}}},
    }
    cluster.admin.must("PATCH", f"{METRIC_PATH}/status", {"status": foreign}, MERGE_PATCH)
    second = next_report(cluster, agent)
    assert INTERVAL_S - 1 <= time_of(second) - time_of(first) <= INTERVAL_S + SLACK_S
    assert agent.metric("publications_total", publication="nodemetric", result="written") == written + 1
    assert "not reported" not in json.dumps(agent.ask("/v1/status")["degraded"])
    assert "ghost" not in json.dumps(second)
    assert "hostApplicationMetric" not in second
    assert cpu(second["nodeMetric"]["nodeUsage"]) > 0
    assert cluster.admin.get(METRIC_PATH)["spec"]["metricCollectPolicy"]["reportIntervalSeconds"] == INTERVAL_S


def test_a_deleted_object_is_filled_again_when_it_is_back(cluster: Cluster, agent: Agent) -> None:
    cluster.admin.delete(METRIC_PATH)
    ticks = agent.metric("ticks_total")
    agent.until("it ticks on", lambda: agent.metric("ticks_total") >= ticks + 3, 10)
    cluster.admin.create(metric())
    found = next_report(cluster, agent)
    assert {row["name"] for row in found["podsMetric"]} >= {"web"}


def test_models_are_kept_over_a_restart(cluster: Cluster, agent: Agent) -> None:
    uid = cluster.admin.get("/api/v1/namespaces/lab/pods/web")["metadata"]["uid"]
    agent.stop()
    saved = json.loads((agent.folder / "prediction" / uid).read_text())
    assert saved["UID"] == uid
    assert saved["CPU"]["totalWeight"] > 0
    assert (agent.folder / "prediction" / "__node-sys__").exists()
    agent.start()
    agent.until("models are restored", lambda: "prediction.restored" in agent.text(), 30)
    next_report(cluster, agent, INTERVAL_S + 3 * SLACK_S)
