"""Cluster lab: pods created through the API really run under the kubelet's cgroups on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.labs.cluster.api import Client, path_of
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, Cluster
from tests.labs.cluster.node import NAME, Node, pod
from tests.labs.runtime import guard

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

V2 = guard.CGROUPS in guard.hierarchies()
KUBELET_STEP_S = 30


@pytest.fixture(scope="module")
def agent(cluster: Cluster, cluster_node: Node) -> Client:
    return cluster_node.client(cluster.token(AGENT_NAMESPACE, AGENT))


def read(group: str, v1: str, v2: str) -> str:
    """A file of whichever cgroup version is here: "cpu.shares" of v1 lies in the hierarchy cpu."""
    path = guard.CGROUPS / group / v2 if V2 else guard.CGROUPS / v1.split(".")[0] / group / v1
    return path.read_text().strip()


def test_node_is_ready_at_its_own_address(cluster: Cluster, cluster_node: Node) -> None:
    node = cluster.admin.get(f"/api/v1/nodes/{NAME}")
    assert cluster_node.ready()
    assert {"type": "InternalIP", "address": cluster_node.address} in node["status"]["addresses"]
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == cluster_node.client().port
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{cluster.versions['kubelet']}"


def command_of(processes: Path) -> bytes:
    """The command line of a group's only process; for a moment after the start that is still the runtime's."""
    (pid,) = processes.read_text().split()
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("qos", "requests", "limits", "shares", "quota_us", "limit_bytes"),
    [
        ("Guaranteed", {}, {"cpu": "100m", "memory": "64Mi"}, "102", "10000", str(64 << 20)),
        ("Burstable", {"cpu": "50m", "memory": "32Mi"}, {"cpu": "200m"}, "51", "20000", None),
        ("BestEffort", {}, {}, "2", "-1", None),
    ],
)
def test_pod_runs_under_its_qos_class(
    cluster_node: Node,
    pods: list[dict[str, Any]],
    qos: str,
    requests: dict[str, str],
    limits: dict[str, str],
    shares: str,
    quota_us: str,
    limit_bytes: str | None,
) -> None:
    made = cluster_node.run(pod(qos.lower(), requests, limits, "exec sleep 2147483647"))
    pods.append(made)
    assert made["status"]["qosClass"] == qos
    group = cluster_node.container_group(made)
    processes = guard.CGROUPS / ("" if V2 else "cpu") / group / "cgroup.procs"
    cluster_node.sandbox.wait(f"sleep in {processes}", lambda: b"sleep" in command_of(processes), 30)
    if V2:
        return
    for of in (group, cluster_node.group(made)):
        assert read(of, "cpu.shares", "cpu.weight") == shares
        assert read(of, "cpu.cfs_quota_us", "cpu.max") == quota_us
        if limit_bytes:
            assert read(of, "memory.limit_in_bytes", "memory.max") == limit_bytes


def test_removed_pod_leaves_no_cgroup(cluster_node: Node) -> None:
    made = cluster_node.run(pod("short"))
    group = f"pod{made['metadata']['uid']}"
    assert group in cluster_node.pod_groups()
    cluster_node.remove(made)
    cluster_node.settle()
    assert group not in cluster_node.pod_groups()


def test_integer_guaranteed_pod_gets_cpus_of_its_own(cluster_node: Node, pods: list[dict[str, Any]]) -> None:
    cluster_node.settle()
    made = cluster_node.run(pod("pinned", {}, {"cpu": "1", "memory": "32Mi"}))
    pods.append(made)
    pinned = read(cluster_node.container_group(made), "cpuset.cpus", "cpuset.cpus")
    assert pinned.isdigit()
    assert pinned != "0"
    state = json.loads((cluster_node.root / "cpu_manager_state").read_text())
    assert state["policyName"] == "static"
    assert state["entries"][made["metadata"]["uid"]] == {"main": pinned}
    # Only the container is pinned, its pod keeps all CPUs; the others lose that CPU.
    assert read(cluster_node.group(made), "cpuset.cpus", "cpuset.cpus") != pinned
    other = cluster_node.run(pod("other"))
    pods.append(other)
    rest = read(cluster_node.container_group(other), "cpuset.cpus", "cpuset.cpus")
    assert pinned not in _cpus(rest)


def _cpus(text: str) -> set[str]:
    spans = [part.split("-") for part in text.split(",")]
    return {str(n) for first, *last in spans for n in range(int(first), int((last or [first])[0]) + 1)}


def test_agent_reads_pods_of_the_kubelet(cluster_node: Node, agent: Client, pods: list[dict[str, Any]]) -> None:
    made = cluster_node.run(pod("listed", labels={"koordinator.sh/qosClass": "LS"}, priority=9500))
    pods.append(made)
    answer = agent.request("GET", "/pods/")
    assert answer.status == 200, answer.text
    (one,) = [p for p in answer.json()["items"] if p["metadata"]["uid"] == made["metadata"]["uid"]]
    assert one["metadata"]["annotations"]["kubernetes.io/config.source"] == "api"
    assert one["metadata"]["labels"] == {"koordinator.sh/qosClass": "LS"}
    assert one["spec"]["priority"] == 9500


def test_agent_reads_the_kubelets_configuration(cluster: Cluster, agent: Client) -> None:
    answer = agent.request("GET", "/configz")
    assert answer.status == 200, answer.text
    config = answer.json()["kubeletconfig"]
    assert config["cpuManagerPolicy"] == "static"
    assert config["reservedSystemCPUs"] == "0"
    assert config["cgroupRoot"] == f"/{cluster.sandbox.name}"


@pytest.mark.parametrize("path", ["/pods", "/configz"])
def test_kubelet_refuses_strangers(cluster: Cluster, cluster_node: Node, path: str) -> None:
    assert cluster_node.client().status("GET", path) == 401
    assert cluster_node.client(cluster.token(AGENT_NAMESPACE, AGENT, -1)).status("GET", path) == 401
    assert cluster_node.client(cluster.token("lab", "default")).status("GET", path) == 403


def test_kubelet_evicts_a_pod_over_its_volume(cluster: Cluster, cluster_node: Node, pods: list[dict[str, Any]]) -> None:
    """Its own eviction, by the one signal that does not need the machine to run short of something."""
    volume = {"name": "scratch", "emptyDir": {"sizeLimit": "64Ki"}}
    manifest = pod("greedy", command="dd if=/dev/zero of=/s/x bs=64k count=16; exec sleep 2147483647", volumes=[volume])
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/s"}]
    made = cluster_node.run(manifest)
    pods.append(made)

    def evicted() -> bool:
        status = cluster.admin.get(path_of(made))["status"]
        return bool(status["phase"] == "Failed" and status.get("reason") == "Evicted")

    cluster.sandbox.wait("eviction", evicted, 90, "kubelet")


def test_kubelet_restarts_over_running_pods(cluster: Cluster, cluster_node: Node, pods: list[dict[str, Any]]) -> None:
    made = cluster_node.run(pod("survivor"))
    pods.append(made)
    cluster_node.stop_kubelet()
    assert not cluster_node.ready()
    cluster_node.start_kubelet()
    after = cluster.admin.get(path_of(made))["status"]["containerStatuses"][0]
    assert after["containerID"] == made["status"]["containerStatuses"][0]["containerID"]
