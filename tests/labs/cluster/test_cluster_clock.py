"""Cluster lab: the wall clock is stepped by an hour under the running agent: forth, back, and back from the true time.

Only the agent's clock (clock.py); the kubelet and the API server beside it keep the true time. By default one report is
waited for, over a window with all three steps in it; KOORDLET_CLOCK_REPORTS=1: one after each step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.model.quantity import parse_mcpu, parse_units
from tests.labs.cluster import clock
from tests.labs.cluster.agent import Agent
from tests.labs.cluster.api import MERGE_PATCH
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.manager import METRIC_PATH, SLO_PATH
from tests.labs.cluster.node import Node, pod
from tests.labs.cluster.test_cluster_outage import (
    EVICTIONS,
    INTERVAL_S,
    V2,
    be_quota_us,
    objects,
    processes,
    reported_s,
)
from tests.labs.runtime import guard

__all__ = ["objects"]
pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

HOUR_S = 3600
STEPS_S = (HOUR_S, 0, -HOUR_S)
EACH = os.environ.get("KOORDLET_CLOCK_REPORTS") == "1"
SLACK_S = 10.0
OFF = "behind the API server's, whose time is reported"


@pytest.fixture
def stepped(cluster: Cluster) -> clock.Clock:
    if reason := clock.missing():
        pytest.skip(f"cluster lab: {reason}")
    return clock.Clock(cluster.sandbox.work)


@pytest.fixture
def agent(cluster: Cluster, cluster_node: Node, stepped: clock.Clock, objects: list[dict[str, Any]]) -> Iterator[Agent]:
    made = Agent(cluster, cluster_node, f"-feature-gates={EVICTIONS}", kubelet_root=cluster_node.root)
    made.environment = stepped.environment
    made.start()
    made.until("the policy is in force", lambda: be_quota_us(cluster) > 0, 20)
    made.until("the pods are known", lambda: {"lab/job", "lab/web"} <= set(made.pods()), 20)
    yield made
    made.stop()


def lift(cluster: Cluster) -> None:
    """Somebody takes the limit of best effort away."""
    group = f"{cluster.sandbox.name}/kubepods/besteffort"
    path = guard.CGROUPS / group / "cpu.max" if V2 else guard.CGROUPS / "cpu" / group / "cpu.cfs_quota_us"
    path.write_text("max" if V2 else "-1")


def protects(cluster: Cluster, agent: Agent) -> None:
    """Its loop holds the limit, its watch follows an edit, the kubelet answers."""
    lift(cluster)
    agent.until("the limit is there again", lambda: be_quota_us(cluster) > 0, 5)
    for enable in (False, True):
        section = {"spec": {"resourceUsedThresholdWithBE": {"enable": enable}}}
        cluster.admin.must("PATCH", SLO_PATH, section, MERGE_PATCH)
        agent.until(f"enable={enable}", lambda wanted=enable: (be_quota_us(cluster) > 0) is wanted, 10)  # type: ignore[misc]
    assert agent.age_s() < 15


def told(agent: Agent) -> str:
    return str(agent.ask("/v1/status")["degraded"])


def used_s(agent: Agent) -> float:
    """CPU time of its process."""
    pid = agent.sandbox.processes["koordlet"].pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def report(cluster: Cluster, agent: Agent) -> None:
    """The next one: of the true time, whole, and neither of an empty window nor of one counted twice."""
    before = reported_s(cluster)
    agent.until("a report", lambda: reported_s(cluster) != before, INTERVAL_S + SLACK_S)
    assert abs(time.time() - reported_s(cluster)) < SLACK_S
    status = cluster.admin.get(METRIC_PATH)["status"]
    usage = status["nodeMetric"]["nodeUsage"]["resources"]
    assert 0 < parse_mcpu(usage["cpu"]) <= 1000 * (os.cpu_count() or 1)
    assert parse_units(usage["memory"]) == pytest.approx(agent.metric("node_used_memory_bytes"), rel=0.5)
    assert {row["name"] for row in status["podsMetric"]} >= {"web", "job"}


def test_the_clock_is_stepped(
    cluster: Cluster, cluster_node: Node, stepped: clock.Clock, agent: Agent, objects: list[dict[str, Any]]
) -> None:
    before = processes(cluster_node, objects)
    for off_s in STEPS_S:
        begun_s, ticks, used = time.monotonic(), agent.metric("ticks_total"), used_s(agent)
        stepped.step(off_s)
        agent.until("it ticks on", lambda least=ticks + 3: agent.metric("ticks_total") >= least, 10)  # type: ignore[misc]
        assert abs(agent.ask("/v1/status")["wall_s"] - time.time() - off_s) < SLACK_S  # it has seen the step
        protects(cluster, agent)
        if EACH or off_s == STEPS_S[-1]:
            late = cluster_node.run(pod("late"))  # made in the future, when the clock is slow
            agent.until("a new pod", lambda: "lab/late" in agent.pods(), 5)
            cluster_node.remove(late)
            report(cluster, agent)
            agent.until("it says so", lambda off_s=off_s: (OFF in told(agent)) is (off_s < 0), 10)  # type: ignore[misc]
        passed_s = time.monotonic() - begun_s
        assert agent.metric("ticks_total") - ticks <= 2 * passed_s + 10  # no round is made up for
        assert used_s(agent) - used < 0.5 * passed_s + 1
        assert agent.metric("pod_eviction_total") == 0
        assert processes(cluster_node, objects) == before
    stepped.step(0)
    protects(cluster, agent)
    assert agent.alive()
    assert "Traceback" not in agent.text(), agent.text()
