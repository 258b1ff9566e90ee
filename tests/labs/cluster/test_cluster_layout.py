"""Cluster lab: what koordlet believes of a kubelet, held against the real one: pod list, cgroup layout, CPU state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from koordlet.kernel.host import Host
from koordlet.kernel.kubelet_state import read_cpu_manager_state
from koordlet.kernel.kubepods import Driver, Kubepods, detect_driver
from koordlet.model.cpuset import CpuSet
from koordlet.sources.podlist import decode_pods
from tests.labs.cluster import served
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, Cluster
from tests.labs.cluster.node import Node, pod
from tests.labs.cluster.standin import StandIn

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

MANIFESTS = [  # of two CPUs one is reserved, so the first leaves none to ask for
    pod("layout-guaranteed", {}, {"cpu": "1", "memory": "16Mi"}, labels={"koordinator.sh/qosClass": "LSR"}),
    pod("layout-burstable", {"memory": "16Mi"}, labels={"koordinator.sh/qosClass": "LS"}, priority=9100),
    pod("layout-besteffort", labels={"koordinator.sh/qosClass": "BE"}, priority=5500),
]


@pytest.fixture(scope="module")
def made(cluster_node: Node) -> Iterator[list[dict[str, Any]]]:
    cluster_node.settle()
    pods = [cluster_node.run(m) for m in MANIFESTS]
    yield pods
    for one in pods:
        cluster_node.remove(one)


@pytest.fixture(scope="module")
def host(cluster_node: Node) -> Host:
    return Host.preset("host", kubelet_root=cluster_node.root)


def test_driver_is_found_below_the_kubelets_root(cluster: Cluster, cluster_node: Node, host: Host) -> None:
    assert detect_driver(host, f"/{cluster.sandbox.name}") is Driver.CGROUPFS


def test_decoded_pods_have_the_cgroups_that_are_there(
    cluster: Cluster, cluster_node: Node, host: Host, made: list[dict[str, Any]]
) -> None:
    kubelet = cluster_node.client(cluster.token(AGENT_NAMESPACE, AGENT))
    kubepods = Kubepods(Driver.CGROUPFS, f"/{cluster.sandbox.name}")
    decoded = decode_pods(kubelet.request("GET", "/pods/").body, kubepods)
    assert decoded.errors == ()
    ours = {p.name: p for p in decoded.pods if p.name.startswith("layout-")}
    assert len(ours) == len(made)
    for one in made:
        found = ours[one["metadata"]["name"]]
        assert found.cgroup == cluster_node.group(one)
        (container,) = found.containers
        assert (host.dir("cpu", container.cgroup) / "cgroup.procs").read_text().strip()


def test_kubelets_cpus_are_read(host: Host, made: list[dict[str, Any]]) -> None:
    cpus = read_cpu_manager_state(host, CpuSet.parse(f"0-{(os.cpu_count() or 1) - 1}"))
    assert cpus is not None
    assert cpus.policy == "static"
    assert len(cpus.pods[made[0]["metadata"]["uid"]]) == 1
    assert not cpus.exclusive & cpus.shared


def test_pods_of_the_stand_in_are_decoded(cluster: Cluster, stand_in: StandIn) -> None:
    stand_in.serve(served.mixture(500))
    answer = stand_in.client(cluster.token(AGENT_NAMESPACE, AGENT)).request("GET", "/pods")
    decoded = decode_pods(answer.body, Kubepods(Driver.CGROUPFS))
    assert decoded.errors == ()
    assert len(decoded.pods) == 500
