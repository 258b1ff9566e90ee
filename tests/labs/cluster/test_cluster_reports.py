"""Cluster lab: what the agent writes to a real API server about topology and devices, and the shipped manifests."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs.cluster.agent import Agent
from tests.labs.cluster.api import MERGE_PATCH, path_of
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.node import NAME, Node, pod
from tests.labs.cluster.sandbox import ROOT

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(1200)]

NRT = f"/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/{NAME}"
DEVICE = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NAME}"
GATES = "Accelerators=true,PodResourcesProxy=true,AuditEvents=true,AuditEventsHTTPHandler=true"


@pytest.fixture(scope="module")
def agent(cluster: Cluster, cluster_node: Node) -> Iterator[Agent]:
    devices = cluster.sandbox.work / "xpu"
    devices.mkdir(exist_ok=True)
    named = {
        "vendor": "huawei",
        "model": "Ascend-910B",
        "uuid": "u0",
        "minor": "0",
        "resources": {"gpu-memory": "64Gi"},
    }
    rows = [{**named, "status": {"healthy": False, "errCode": "E1", "errMessage": "too hot"}}]
    (devices / "a.json").write_text(json.dumps(rows))
    proxy = cluster.sandbox.work / "proxy"
    made = Agent(
        cluster,
        cluster_node,
        f"-feature-gates={GATES}",
        f"-xpu-device-infos-dir={devices}",
        f"-pod-resources-proxy-path={proxy}",
        "-node-topology-sync-interval=1s",
        kubelet_root=cluster_node.root,
    ).start()
    yield made
    made.stop()
    cluster.admin.delete(NRT)
    cluster.admin.delete(DEVICE)


def texts(cluster: Cluster) -> dict[str, Any]:
    found = cluster.admin.get(NRT)["metadata"]["annotations"]
    return {key.rpartition("/")[2]: json.loads(text) for key, text in found.items()}


def there(cluster: Cluster, path: str) -> bool:
    return cluster.admin.status("GET", path) == 200


def test_the_topology_comes_first_and_whole(cluster: Cluster, agent: Agent) -> None:
    took_s = agent.until("the topology object", lambda: there(cluster, NRT), 20)
    found = cluster.admin.get(NRT)
    node = cluster.admin.get(f"/api/v1/nodes/{NAME}")
    told = texts(cluster)
    print(f"topology written {took_s:.2f} s after ready")
    assert found["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    assert found["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "Koordinator"}
    assert len(told["cpu-topology"]["detail"]) == int(node["status"]["capacity"]["cpu"])
    assert told["cpu-manager-policy"] == {"policy": "static", "reservedCPUs": "0"}
    assert told["pod-cpu-allocs"] is None
    assert found["topologyPolicies"] == ["None"]
    assert {row["name"] for row in found["zones"][0]["resources"]} == {
        "cpu",
        "memory",
        "hugepages-1Gi",
        "hugepages-2Mi",
    }


def test_exclusive_cpus_of_the_kubelet_leave_the_pools(cluster: Cluster, cluster_node: Node, agent: Agent) -> None:
    agent.until("the topology object", lambda: there(cluster, NRT), 20)
    made = cluster_node.run(pod("own-cpu", {}, {"cpu": "1", "memory": "64Mi"}))
    try:
        took_s = agent.until("its CPUs are told", lambda: texts(cluster)["pod-cpu-allocs"], 30)
        (alloc,) = texts(cluster)["pod-cpu-allocs"]
        print(f"allocation told after {took_s:.2f} s: {alloc}")
        assert (alloc["uid"], alloc["managedByKubelet"]) == (made["metadata"]["uid"], True)
        agent.until("with its name", lambda: texts(cluster)["pod-cpu-allocs"][0].get("name") == "own-cpu", 15)
        taken = int(alloc["cpuset"])
        for key in ("cpu-shared-pools", "be-cpu-shared-pools"):
            lists = [pool.get("cpuset", "") for pool in texts(cluster)[key]]
            assert str(taken) not in ",".join(lists).replace("-", ",").split(",")
    finally:
        cluster_node.remove(made)
    agent.until("they are given back", lambda: texts(cluster)["pod-cpu-allocs"] is None, 60)


def test_what_the_manager_adds_stays_and_nothing_is_written_at_rest(cluster: Cluster, agent: Agent) -> None:
    agent.until("the topology object", lambda: there(cluster, NRT), 20)
    zones = cluster.admin.get(NRT)["zones"]
    batch = {"name": "kubernetes.io/batch-cpu", "capacity": "1k", "allocatable": "1k", "available": "1k"}
    zones[0]["resources"].append(batch)
    cluster.admin.must("PATCH", NRT, {"zones": zones, "metadata": {"annotations": {"theirs": "1"}}}, MERGE_PATCH)
    version = cluster.admin.get(NRT)["metadata"]["resourceVersion"]
    time.sleep(8)  # several looks of the agent, with a kubelet's answers in between
    found = cluster.admin.get(NRT)
    assert found["metadata"]["resourceVersion"] == version
    assert batch in found["zones"][0]["resources"]


def test_an_unhealthy_device_is_accepted_and_written_once(cluster: Cluster, agent: Agent) -> None:
    agent.until("the device object", lambda: there(cluster, DEVICE), 20)
    found = cluster.admin.get(DEVICE)
    (device,) = found["spec"]["devices"]
    assert (device["id"], device["health"], device["resources"]["koordinator.sh/gpu-memory"]) == ("u0", False, "64Gi")
    assert device["conditions"][0]["reason"] == "E1"
    time.sleep(5)
    assert cluster.admin.get(DEVICE)["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]


def test_the_pod_resources_of_a_real_kubelet_pass_through(cluster: Cluster, cluster_node: Node, agent: Agent) -> None:
    grpc = pytest.importorskip("grpc")
    from koordlet.wire.podresources_pb2 import ListPodResourcesResponse

    allocated = {"gpu": [{"minor": 0, "id": "GPU-x", "resources": {"koordinator.sh/gpu-core": "50"}}]}
    note = {"scheduling.koordinator.sh/device-allocated": json.dumps(allocated)}
    made = cluster_node.run(pod("with-gpu", {"cpu": "50m"}, {}, annotations=note))
    channel = grpc.insecure_channel(f"unix:{cluster.sandbox.work}/proxy/kubelet.sock")
    call = channel.unary_unary("/v1.PodResourcesLister/List")

    def devices() -> list[tuple[str, list[str]]]:
        answer = ListPodResourcesResponse.FromString(call(b"", timeout=10))
        rows = [row for row in answer.pod_resources if row.name == "with-gpu"]
        return [(d.resource_name, list(d.device_ids)) for row in rows for c in row.containers for d in c.devices]

    try:
        agent.until("the device is told", lambda: devices() == [("nvidia.com/gpu", ["GPU-x"])], 15)
    finally:
        channel.close()
        cluster_node.remove(made)


@pytest.mark.parametrize("preset", ["base", "host-mode", "old-kubelets"])
def test_the_api_server_takes_the_shipped_manifests(cluster: Cluster, preset: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    words = ["kubectl", "kustomize", str(ROOT / "deploy" / preset)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    query = "dryRun=All&fieldManager=test&fieldValidation=Strict&force=true"

    def apply(manifest: dict[str, Any]) -> None:
        path = f"{path_of(manifest, 'koordinator-system')}?{query}"
        cluster.admin.must("PATCH", path, manifest, "application/apply-patch+yaml")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(apply, yaml.safe_load_all(done.stdout)))


def test_audit_pages_are_there_behind_their_gate(agent: Agent) -> None:
    from koordlet.cli.client import ask
    from koordlet.model.places import SOCKET_FILE

    status, answer = ask(str(Path(agent.folder) / "run" / SOCKET_FILE), "/events", size="1")
    assert status == 200
    assert "createdAt" in str(answer) or str(answer) == ""
