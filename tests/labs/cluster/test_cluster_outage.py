"""Cluster lab: the API server is away for long. Protection goes on, nothing is evicted.

KOORDLET_OUTAGE_S=600 makes the outage as long as the issue asks; by default it is short.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.labs.cluster.agent import Agent
from tests.labs.cluster.api import MERGE_PATCH
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.manager import METRIC_PATH, SLO_PATH, node_metric, node_slo
from tests.labs.cluster.node import Node, pod
from tests.labs.runtime import guard

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

V2 = guard.CGROUPS in guard.hierarchies()
OUTAGE_S = float(os.environ.get("KOORDLET_OUTAGE_S", "6"))
INTERVAL_S = 30.0
LEAST_US = 2000
"""What best effort keeps whatever happens."""
EVICTIONS = "BEMemoryEvict=true,MemoryEvict=true,BECPUEvict=true,CPUEvict=true"
BURNER = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


@pytest.fixture
def objects(cluster: Cluster, cluster_node: Node) -> Iterator[list[dict[str, Any]]]:
    """What koord-manager makes, and an online and a best-effort pod."""
    section = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "memoryEvictThresholdPercent": 95}
    cluster.admin.create(node_slo(resourceUsedThresholdWithBE=section))
    cluster.admin.create(node_metric(int(INTERVAL_S)))
    made = [cluster_node.run(pod("web", {"cpu": "50m"}, {"cpu": "200m"})), cluster_node.run(pod("job"))]
    yield made
    for one in made:
        cluster_node.remove(one)
    for path in (SLO_PATH, METRIC_PATH):
        cluster.admin.delete(path)
    cluster_node.settle()


def be_quota_us(cluster: Cluster) -> int:
    """-1 is no limit."""
    group = f"{cluster.sandbox.name}/kubepods/besteffort"
    if V2:
        return int((guard.CGROUPS / group / "cpu.max").read_text().split()[0].replace("max", "-1"))
    return int((guard.CGROUPS / "cpu" / group / "cpu.cfs_quota_us").read_text())


def processes(node: Node, pods: list[dict[str, Any]]) -> list[str]:
    tree = guard.CGROUPS if V2 else guard.CGROUPS / "cpu"
    return [(tree / node.container_group(made) / "cgroup.procs").read_text() for made in pods]


def follows_load(cluster: Cluster, agent: Agent) -> float:
    """Seconds until best effort has less because the machine is busy; one that was busy before leaves it no more."""
    before = be_quota_us(cluster)
    burners = [subprocess.Popen(["python3", "-c", BURNER]) for _ in range(os.cpu_count() or 1)]
    try:
        return agent.until("best effort gives way", lambda: 0 < be_quota_us(cluster) < max(before, LEAST_US + 1), 15)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def reported_s(cluster: Cluster) -> float:
    """The last report's time; 0.0 without one."""
    found = cluster.admin.get(METRIC_PATH).get("status", {}).get("updateTime")
    return datetime.fromisoformat(found).timestamp() if found else 0.0


def test_a_long_outage_of_the_api_server(cluster: Cluster, cluster_node: Node, objects: list[dict[str, Any]]) -> None:
    agent = Agent(cluster, cluster_node, f"-feature-gates={EVICTIONS}", kubelet_root=cluster_node.root).start()
    try:
        agent.until("the policy is in force", lambda: be_quota_us(cluster) > 0, 20)
        agent.until("the pods are known", lambda: {"lab/job", "lab/web"} <= set(agent.pods()), 20)
        before = processes(cluster_node, objects)
        ticks, begun_s = agent.metric("ticks_total"), time.monotonic()
        cluster.stop_apiserver()
        try:
            while (left_s := begun_s + OUTAGE_S - time.monotonic()) > 0:
                time.sleep(min(5.0, left_s))
                assert agent.alive()
                assert be_quota_us(cluster) > 0
            gave_way_s = follows_load(cluster, agent)
            assert agent.metric("pod_eviction_total") == 0
            assert agent.metric("ticks_total") - ticks >= 0.9 * OUTAGE_S
            assert processes(cluster_node, objects) == before
        finally:
            cluster.start_apiserver()
        back_s = agent.until("the pods are fresh", lambda: agent.age_s() < 15, 60)
        off = {"spec": {"resourceUsedThresholdWithBE": {"enable": False}}}
        cluster.admin.must("PATCH", SLO_PATH, off, MERGE_PATCH)
        edit_s = agent.until("an edit is followed", lambda: be_quota_us(cluster) == -1, 60)
        agent.until("a report", lambda: time.time() - reported_s(cluster) < 30, 120)
        assert processes(cluster_node, objects) == before
        print(
            f"\noutage of {OUTAGE_S:g} s: load followed in {gave_way_s:.1f} s, nothing evicted; "
            f"pods fresh {back_s:.1f} s after the server's return, an edit followed in {edit_s:.1f} s"
        )
    finally:
        agent.stop()
