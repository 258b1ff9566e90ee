"""Cluster lab: the agent with the shipped ServiceAccount and RBAC, a real kubelet and a real API server.

It sees pods of every QoS class come and go, follows its NodeSLO, and protects on through whatever happens to the API
server, its watches, its token and the kubelet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.cluster.agent import Agent
from tests.labs.cluster.api import MERGE_PATCH
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.manager import SLO_PATH, node_slo
from tests.labs.cluster.node import NAME, Node, pod
from tests.labs.runtime import guard

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

V2 = guard.CGROUPS in guard.hierarchies()
TOPOLOGY_PATH = f"/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/{NAME}"
WOKEN_S = 0.5
"""From a pod's cgroup until we know the pod."""
SEEN_S = 1.0
FOLLOWED_S = 2.0
CLASSES = {
    "LSE": ({}, {"cpu": "100m", "memory": "64Mi"}),
    "LSR": ({}, {"cpu": "100m", "memory": "64Mi"}),
    "LS": ({"cpu": "50m", "memory": "32Mi"}, {"cpu": "200m"}),
    "SYSTEM": ({"cpu": "50m", "memory": "32Mi"}, {}),
    "BE": ({}, {}),
}
"""Of each class of Koordinator one that is of the class of Kubernetes that goes with it."""


@pytest.fixture(scope="module")
def agent(cluster: Cluster, cluster_node: Node) -> Iterator[Agent]:
    cluster.admin.create(slo(enable=False))
    made = Agent(cluster, cluster_node, kubelet_root=cluster_node.root).start()
    yield made
    made.stop()
    for path in (SLO_PATH, TOPOLOGY_PATH):
        cluster.admin.delete(path)


def slo(**threshold: Any) -> dict[str, Any]:
    return node_slo(resourceUsedThresholdWithBE={"cpuSuppressPolicy": "cfsQuota", **threshold})


def set_slo(cluster: Cluster, **threshold: Any) -> None:
    cluster.admin.must("PATCH", SLO_PATH, {"spec": slo(**threshold)["spec"]}, MERGE_PATCH)


def be_quota(cluster: Cluster) -> str:
    """What the kernel holds for the best-effort root: "-1" (v1) or "max" is no limit."""
    group = f"{cluster.sandbox.name}/kubepods/besteffort"
    if V2:
        return (guard.CGROUPS / group / "cpu.max").read_text().split()[0].replace("max", "-1")
    return (guard.CGROUPS / "cpu" / group / "cpu.cfs_quota_us").read_text().strip()


def group_there(cluster: Cluster, node: Node, made: dict[str, Any]) -> bool:
    path = guard.CGROUPS / node.group(made) if V2 else guard.CGROUPS / "cpu" / node.group(made)
    return path.is_dir()


@pytest.mark.parametrize("qos", CLASSES)
def test_a_pod_is_seen_within_a_second_of_its_start_and_end(
    cluster: Cluster, cluster_node: Node, agent: Agent, qos: str
) -> None:
    requests, limits = CLASSES[qos]
    name = f"seen-{qos.lower()}"
    made = cluster.admin.create(pod(name, requests, limits, labels={"koordinator.sh/qosClass": qos}))
    agent.until("the pod's cgroup", lambda: group_there(cluster, cluster_node, cluster.admin.get(path(name))), 30)
    took_s = agent.until("the agent knows the pod", lambda: f"lab/{name}" in agent.pods(), 5)
    cluster.sandbox.wait("the pod runs", lambda: running(cluster, name), 30)
    agent.until("its container", lambda: container_known(agent, name), 5)
    assert [row["qos"] for row in agent.ask("/v1/top")["pods"] if row["name"] == name] == [qos]
    cluster.admin.delete(path(name))
    agent.until("its cgroup is gone", lambda: not group_there(cluster, cluster_node, made), 30)
    gone_s = agent.until("the agent knows", lambda: f"lab/{name}" not in agent.pods(), 5)
    print(f"{qos}: seen {took_s:.2f} s after its cgroup, gone {gone_s:.2f} s after it")
    assert took_s < WOKEN_S
    assert gone_s < SEEN_S


def path(name: str) -> str:
    return f"/api/v1/namespaces/lab/pods/{name}"


def running(cluster: Cluster, name: str) -> bool:
    return bool(cluster.admin.get(path(name))["status"]["phase"] == "Running")


def container_known(agent: Agent, name: str) -> bool:
    found = agent.ask("/v1/explain", workload=f"lab/{name}")
    return any(row.get("container") for row in found.get("usage", [])) or "containers" in json.dumps(found)


def test_an_edit_of_the_node_slo_is_followed(cluster: Cluster, agent: Agent) -> None:
    set_slo(cluster, enable=True, cpuSuppressThresholdPercent=60)
    took_s = agent.until("the best-effort root has a quota", lambda: be_quota(cluster) != "-1", 10)
    set_slo(cluster, enable=False)
    undone_s = agent.until("it has none again", lambda: be_quota(cluster) == "-1", 10)
    print(f"NodeSLO followed in {took_s:.2f} s and {undone_s:.2f} s")
    assert max(took_s, undone_s) < FOLLOWED_S


def test_a_malformed_node_slo_keeps_the_previous(cluster: Cluster, agent: Agent) -> None:
    set_slo(cluster, enable=True)
    agent.until("the best-effort root has a quota", lambda: be_quota(cluster) != "-1", 10)
    before = agent.metric("policy_reload_failed_total")
    set_slo(cluster, enable=True, cpuSuppressThresholdPercent=1000)
    agent.until("it is refused", lambda: agent.metric("policy_reload_failed_total") > before, 10)
    assert be_quota(cluster) != "-1"
    set_slo(cluster, enable=False, cpuSuppressThresholdPercent=65)
    agent.until("it has none again", lambda: be_quota(cluster) == "-1", 10)


@pytest.fixture
def protecting(cluster: Cluster, agent: Agent) -> Iterator[Agent]:
    """With a policy in force, which is on the kernel."""
    set_slo(cluster, enable=True)
    agent.until("the best-effort root has a quota", lambda: be_quota(cluster) != "-1", 10)
    yield agent
    set_slo(cluster, enable=False)
    agent.until("it has none again", lambda: be_quota(cluster) == "-1", 30)


def test_protection_goes_on_while_the_api_server_is_away(cluster: Cluster, protecting: Agent) -> None:
    errors = protecting.metric("source_errors_total", source="nodeslo")
    cluster.stop_apiserver()
    try:
        protecting.until(
            "it is noticed", lambda: protecting.metric("source_errors_total", source="nodeslo") > errors, 60
        )
        ticks = protecting.metric("ticks_total")
        protecting.until("it ticks on", lambda: protecting.metric("ticks_total") >= ticks + 10, 30)
        assert be_quota(cluster) != "-1"
        assert protecting.metric("pod_eviction_total") == 0
        assert protecting.alive()
    finally:
        cluster.start_apiserver()
    set_slo(cluster, enable=False)
    took_s = protecting.until("an edit is followed again", lambda: be_quota(cluster) == "-1", 60)
    print(f"followed {took_s:.1f} s after the server's return")


def test_a_start_while_the_api_server_is_away_goes_on_with_what_was_known(cluster: Cluster, protecting: Agent) -> None:
    protecting.stop()
    cluster.sandbox.wait("the stop restores", lambda: be_quota(cluster) == "-1", 10)
    token = cluster.token("koordinator-system", "koordlet")
    cluster.stop_apiserver()
    try:
        protecting.start(token=token)
        protecting.until("the remembered policy is in force", lambda: be_quota(cluster) != "-1", 20)
    finally:
        cluster.start_apiserver()
    protecting.until("the pods are known", lambda: protecting.age_s() < 15, 60)


def test_an_expired_watch_is_listed_anew(cluster: Cluster, protecting: Agent) -> None:
    cluster.compact()
    cluster.stop_apiserver()
    cluster.start_apiserver()
    cluster.compact()
    set_slo(cluster, enable=False)
    protecting.until("the edit is followed", lambda: be_quota(cluster) == "-1", 60)


def test_a_rotated_token_is_taken_up(cluster: Cluster, cluster_node: Node, agent: Agent) -> None:
    """The old one runs out while we watch; what is refused is asked again with the new one at once."""
    agent.stop()
    agent.start(seconds=15)
    agent.until("pods are known", lambda: agent.age_s() < 15, 30)
    agent.rotate()
    end = time.monotonic() + 45  # 15 s, and 10 s for which servers remember, and the kubelet's interval
    while time.monotonic() < end:
        assert agent.age_s() < 25, agent.text()[-3000:]
        time.sleep(1)
    set_slo(cluster, enable=True)
    agent.until("an edit is followed", lambda: be_quota(cluster) != "-1", 30)
    set_slo(cluster, enable=False)
    agent.until("and back", lambda: be_quota(cluster) == "-1", 30)


def test_a_node_that_is_deleted_and_made_anew(cluster: Cluster, protecting: Agent) -> None:
    path = f"/api/v1/nodes/{NAME}"
    old = cluster.admin.get(path)
    cluster.admin.delete(path)
    ticks = protecting.metric("ticks_total")
    protecting.until("it ticks on", lambda: protecting.metric("ticks_total") >= ticks + 3, 30)
    assert be_quota(cluster) != "-1"
    metadata = {"name": NAME, "annotations": {"node.koordinator.sh/reservation": '{"resources": {"cpu": "300m"}}'}}
    cluster.admin.create({"kind": "Node", "metadata": metadata})
    cluster.admin.must("PATCH", f"{path}/status", {"status": old["status"]}, "application/strategic-merge-patch+json")
    protecting.until("the new Node's facts", lambda: protecting.ask("/v1/status")["node"]["reserved_mcpu"] >= 300, 30)
    assert be_quota(cluster) != "-1"


def test_a_kubelet_with_a_new_certificate(cluster: Cluster, cluster_node: Node, agent: Agent) -> None:
    names = f"IP:{cluster_node.address},IP:127.0.0.1,DNS:{NAME}"
    cluster_node.stop_kubelet()
    agent.until("the pods grow old", lambda: agent.age_s() > 12, 60)
    cluster_node.serving = cluster.authority.issue("kubelet-new", f"/CN={NAME}", names)
    cluster_node.start_kubelet()
    agent.until("they are fresh again", lambda: agent.age_s() < 5, 60)


def test_a_kubelet_that_is_not_verified_is_not_believed(
    cluster: Cluster, cluster_node: Node, agent: Agent, tmp_path: Path
) -> None:
    agent.stop()
    stranger = tmp_path / "stranger.crt"
    stranger.write_bytes(cluster.serving.certificate.read_bytes())
    wary = Agent(cluster, cluster_node, f"--kubelet-certificate-authority={stranger}", kubelet_root=cluster_node.root)
    wary.folder = agent.folder
    wary.start()
    wary.until("it says how to go on", lambda: "--kubelet-insecure-skip-verify" in wary.text(), 30)
    assert wary.age_s() == float("inf")
    wary.stop()
    careless = Agent(
        cluster,
        cluster_node,
        f"--kubelet-certificate-authority={stranger}",
        "--kubelet-insecure-skip-verify",
        kubelet_root=cluster_node.root,
    )
    careless.start()
    careless.until("pods are known", lambda: careless.age_s() < 15, 30)
    careless.stop()
    agent.start()


def test_the_topology_is_written_and_survives_another_writer(cluster: Cluster, agent: Agent) -> None:
    agent.until("the object", lambda: cluster.admin.status("GET", TOPOLOGY_PATH) == 200, 30)
    before = cluster.admin.get(TOPOLOGY_PATH)
    json.loads(before["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"])
    assert before["metadata"]["ownerReferences"][0]["name"] == NAME
    patch = {"metadata": {"annotations": {"node.koordinator.sh/cpu-topology": "", "stranger.example/key": "kept"}}}
    cluster.admin.must("PATCH", TOPOLOGY_PATH, patch, MERGE_PATCH)

    def repaired() -> bool:
        annotations = cluster.admin.get(TOPOLOGY_PATH)["metadata"]["annotations"]
        return bool(annotations["node.koordinator.sh/cpu-topology"])

    agent.until("its annotation is whole again", repaired, 90)
    after = cluster.admin.get(TOPOLOGY_PATH)
    assert after["metadata"]["annotations"]["stranger.example/key"] == "kept"
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
