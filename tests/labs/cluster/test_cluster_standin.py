"""Cluster lab: the stand-in kubelet answers as the real one does, and serves many pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs.cluster import served
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, Cluster
from tests.labs.cluster.node import Node, pod
from tests.labs.cluster.standin import NAME, StandIn

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

MANIFESTS = [
    pod(
        "same-guaranteed",
        {},
        {"cpu": "100m", "memory": "64Mi"},
        labels={"koordinator.sh/qosClass": "LSR"},
        priority=9500,
    ),
    pod(
        "same-burstable",
        {"cpu": "50m"},
        {"memory": "64Mi"},
        annotations={"koordinator.sh/cpuBurst": "{}"},
        priority=9100,
    ),
    pod("same-besteffort"),
]
OPEN = {"metadata/managedFields"}  # only its size matters


def shape(value: Any, at: str = "") -> set[tuple[str, str]]:
    """Each path with the type of what is there; elements of a list share one."""
    if at in OPEN:
        return set()
    if isinstance(value, dict):
        return {(at, "object")} | {s for k, v in value.items() for s in shape(v, f"{at}/{k}".lstrip("/"))}
    if isinstance(value, list):
        return {(at, "array")} | {s for v in value for s in shape(v, f"{at}/*")}
    return {(at, type(value).__name__)}


@pytest.fixture(scope="module")
def token(cluster: Cluster) -> str:
    return cluster.token(AGENT_NAMESPACE, AGENT)


@pytest.fixture(scope="module")
def both(cluster_node: Node, stand_in: StandIn, token: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Answers of the real and the pretended kubelet for the same manifests."""
    made = [cluster_node.run(m) for m in MANIFESTS]
    uids = {m["metadata"]["uid"] for m in made}
    stand_in.serve(MANIFESTS)
    real = cluster_node.client(token).get("/pods")
    real["items"] = [p for p in real["items"] if p["metadata"]["uid"] in uids]
    yield real, stand_in.client(token).get("/pods")
    for one in made:
        cluster_node.remove(one)


@pytest.mark.parametrize("name", [m["metadata"]["name"] for m in MANIFESTS])
def test_pod_has_the_shape_of_the_real_one(both: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    real, pretended = (next(p for p in side["items"] if p["metadata"]["name"] == name) for side in both)
    assert shape(pretended) == shape(real)
    for key in ("qosClass", "phase"):
        assert pretended["status"][key] == real["status"][key]
    assert pretended["spec"] == real["spec"] | {"nodeName": NAME}
    assert (
        pretended["status"]["containerStatuses"][0]["resources"] == real["status"]["containerStatuses"][0]["resources"]
    )


def test_answer_is_about_as_large_as_the_real_one(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    real, pretended = (len(json.dumps(side)) for side in both)
    assert pretended == pytest.approx(real, rel=0.1)


def test_list_has_the_shape_of_the_real_one(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    real, pretended = both
    assert {k: v for k, v in real.items() if k != "items"} == {k: v for k, v in pretended.items() if k != "items"}


def test_configuration_has_the_shape_of_the_real_one(cluster_node: Node, stand_in: StandIn, token: str) -> None:
    real, pretended = (c.get("/configz") for c in (cluster_node.client(token), stand_in.client(token)))
    assert shape(pretended) == shape(real), "record tests/labs/cluster/configz.json again (it is the real one's answer)"


@pytest.mark.parametrize("path", ["/pods", "/pods/", "/configz", "/nothing"])
@pytest.mark.parametrize("who", ["nobody", "garbage", "expired", "stranger", "agent"])
def test_refuses_whom_the_real_one_refuses(
    cluster: Cluster, cluster_node: Node, stand_in: StandIn, token: str, who: str, path: str
) -> None:
    used = {"nobody": "", "garbage": "not.a.token", "agent": token}.get(who)
    if used is None:
        expired = who == "expired"
        used = cluster.token(AGENT_NAMESPACE, AGENT, -1) if expired else cluster.token("lab", "default")
    real, pretended = (c.request("GET", path) for c in (cluster_node.client(used), stand_in.client(used)))
    assert pretended.status == real.status
    if real.status >= 300:
        assert pretended.body == real.body
    assert pretended.headers["Content-Type"] == real.headers["Content-Type"]


@pytest.mark.parametrize("count", [0, 110, 500])
def test_serves_many_pods(stand_in: StandIn, token: str, count: int) -> None:
    stand_in.serve(served.mixture(count))
    pods = stand_in.client(token).get("/pods")["items"] or []
    assert len({p["metadata"]["uid"] for p in pods}) == count
    assert len({s["containerID"] for p in pods for s in p["status"]["containerStatuses"]}) == count
    classes = [p["status"]["qosClass"] for p in pods]
    assert (classes.count("Guaranteed"), classes.count("BestEffort")) == (count // 10, count // 2)


def test_its_node_leads_to_it(cluster: Cluster, stand_in: StandIn) -> None:
    (node,) = cluster.agent().get(f"/api/v1/nodes?fieldSelector=metadata.name={NAME}")["items"]
    status = node["status"]
    assert {"type": "InternalIP", "address": stand_in.address} in status["addresses"]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == stand_in.client().port


def test_options_show_in_its_configuration(stand_in: StandIn, token: str) -> None:
    stand_in.configure({"topologyManagerPolicy": "restricted"})
    assert stand_in.client(token).get("/configz")["kubeletconfig"]["topologyManagerPolicy"] == "restricted"
    stand_in.configure({})
