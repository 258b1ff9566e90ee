"""Cluster lab: the shipped permissions are enough for each call of the agent, and each of them is needed.

A row is one call. It must succeed as deploy/ ships the role, and be refused with 403 once that one permission is gone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from koordlet.kube.access import Access
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.kube.kubelet import CONFIG, PODS
from koordlet.kube.lazy import load
from tests.labs.cluster.api import MERGE_PATCH, Client, path_of
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, API_PORT, Cluster, documents
from tests.labs.cluster.node import PORT, Node, pod
from tests.labs.cluster.sandbox import ROOT
from tests.labs.cluster.test_cluster_api import example

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

ROLE = next(d for d in documents(ROOT / "deploy/base/rbac.yaml") if d["kind"] == "ClusterRole")
ROLE_PATH = path_of(ROLE)
PROPAGATION_S = 10  # the authorizer learns of a changed role by a watch, a kubelet caches an answer for a second

NODE = {"kind": "Node", "metadata": {"name": "node-a"}}
SLO, METRIC, TOPOLOGY, DEVICE = (example(k) for k in ("NodeSLO", "NodeMetric", "NodeResourceTopology", "Device"))
VICTIM = pod("victim")
VICTIM["spec"].pop("nodeName")  # never started, so an eviction removes it at once
EVENT = {
    "kind": "Event",
    "metadata": {"name": "victim.evicted", "namespace": "lab"},
    "involvedObject": {"kind": "Pod", "name": "victim", "namespace": "lab"},
    "type": "Warning",
    "reason": "evictPodSuccess",
    "message": "lab",
    "source": {"component": "koordlet-qosManager"},
}
CLAIM = {
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "scratch", "namespace": "lab"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
EVICTION = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "victim", "namespace": "lab"}}


@dataclass(frozen=True)
class Call:
    """`verb` on `resource` is the permission; `needs` are objects that must exist, `absent` those that must not."""

    verb: str
    resource: str
    method: str
    path: str
    body: Any = None
    kind: str = "application/json"
    needs: tuple[Mapping[str, Any], ...] = ()
    absent: tuple[Mapping[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def listed(resource: str, path: str) -> list[Call]:
    chosen = f"{path}?fieldSelector=metadata.name=node-a"
    return [
        Call("list", resource, "GET", chosen),
        Call("watch", resource, "GET", f"{chosen}&watch=1&timeoutSeconds=30&resourceVersion=0"),
    ]


def kept(manifest: Mapping[str, Any], resource: str, *verbs: str) -> list[Call]:
    """Calls on one object of ours."""
    path, needs = path_of(manifest), (manifest,)
    calls = {
        "get": Call("get", resource, "GET", path, needs=needs),
        "create": Call("create", resource, "POST", path.rpartition("/")[0], manifest, absent=needs),
        "update": Call("update", resource, "PUT", path, manifest, needs=needs),
    }
    return [calls[v] for v in verbs]


STATUS = f"{path_of(METRIC)}/status"
CALLS = [
    *listed("nodes", "/api/v1/nodes"),
    Call("create", "events", "POST", path_of(EVENT).rpartition("/")[0], EVENT, absent=(EVENT,)),
    Call("patch", "events", "PATCH", path_of(EVENT), {"count": 2}, MERGE_PATCH, needs=(EVENT,)),
    Call("create", "pods/eviction", "POST", f"{path_of(VICTIM)}/eviction", EVICTION, needs=(VICTIM,)),
    Call("get", "persistentvolumeclaims", "GET", path_of(CLAIM), needs=(CLAIM,)),
    *listed("nodeslos", path_of(SLO).rpartition("/")[0]),
    *listed("nodemetrics", path_of(METRIC).rpartition("/")[0]),
    Call("patch", "nodemetrics/status", "PATCH", STATUS, {"status": METRIC["status"]}, MERGE_PATCH, needs=(METRIC,)),
    *kept(TOPOLOGY, "noderesourcetopologies", "get", "create", "update"),
    *kept(DEVICE, "devices", "get", "create", "update"),
]
KUBELET_CALLS = [Call("get", "nodes/pods", "GET", "/pods"), Call("get", "nodes/configz", "GET", "/configz")]


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Client:
    return cluster.agent()


@pytest.fixture
def shipped(cluster: Cluster) -> Iterator[Callable[[str, str], None]]:
    """Takes one permission away; afterwards the role is as shipped again, and in effect."""
    taken: list[tuple[str, str]] = []

    def take(verb: str, resource: str) -> None:
        taken.append((verb, resource))
        cluster.admin.must("PUT", ROLE_PATH, without(verb, resource))

    yield take
    cluster.admin.must("PUT", ROLE_PATH, ROLE)
    for verb, resource in taken:
        assert until(partial(allowed, cluster, verb, resource), bool)


def allowed(cluster: Cluster, verb: str, resource: str) -> int:
    group = next(rule["apiGroups"][0] for rule in ROLE["rules"] if resource in rule["resources"])
    what = dict(zip(("resource", "subresource"), resource.split("/"), strict=False), verb=verb, group=group)
    spec = {"user": f"system:serviceaccount:{AGENT_NAMESPACE}:{AGENT}", "resourceAttributes": what}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return int(cluster.admin.must("POST", path, review)["status"]["allowed"])


def without(verb: str, resource: str) -> dict[str, Any]:
    role = copy.deepcopy(ROLE)
    for rule in list(role["rules"]):
        if resource in rule["resources"] and verb in rule["verbs"]:
            others = [r for r in rule["resources"] if r != resource]
            rule_less = rule | {"resources": [resource], "verbs": [v for v in rule["verbs"] if v != verb]}
            role["rules"].remove(rule)
            role["rules"] += [r for r in (rule | {"resources": others}, rule_less) if r["resources"] and r["verbs"]]
    assert role != ROLE, f"the shipped role has no {verb} {resource}"
    return role


def send(cluster: Cluster, client: Client, call: Call) -> int:
    """The status, after making the world as the call needs it."""
    body = call.body
    for manifest in call.absent:
        cluster.admin.delete(path_of(manifest))
    for manifest in call.needs:
        cluster.apply([manifest])
    if call.method == "PUT":
        present = cluster.admin.get(call.path)
        body = body | {"metadata": present["metadata"]}
    return client.status(call.method, call.path, body, call.kind)


def until(status: Callable[[], int], wanted: Callable[[int], bool]) -> int:
    end = time.monotonic() + PROPAGATION_S
    while not wanted(got := status()) and time.monotonic() < end:
        time.sleep(0.05)
    return got


@pytest.fixture(scope="module", autouse=True)
def world(cluster: Cluster) -> Iterator[None]:
    yield
    for manifest in (NODE, SLO, METRIC, TOPOLOGY, DEVICE, VICTIM, EVENT):
        cluster.admin.delete(path_of(manifest))


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_permission_is_enough_and_needed(
    cluster: Cluster, agent: Client, shipped: Callable[[str, str], None], call: Call
) -> None:
    assert until(lambda: send(cluster, agent, call), lambda s: s < 300) in (200, 201)
    shipped(call.verb, call.resource)
    assert until(lambda: send(cluster, agent, call), lambda s: s == 403) == 403


@pytest.mark.parametrize("call", KUBELET_CALLS, ids=str)
def test_kubelet_permission_is_enough_and_needed(
    cluster: Cluster, cluster_node: Node, shipped: Callable[[str, str], None], call: Call
) -> None:
    kubelet = cluster_node.client(cluster.token(AGENT_NAMESPACE, AGENT))
    assert until(lambda: kubelet.status("GET", call.path), lambda s: s == 200) == 200
    shipped(call.verb, call.resource)
    assert until(lambda: kubelet.status("GET", call.path), lambda s: s == 403) == 403


def test_rule_for_old_kubelets_serves_instead(cluster: Cluster, cluster_node: Node) -> None:
    """nodes/proxy alone lets an account read both, as kubelets before 1.33 demand."""
    account = {"kind": "ServiceAccount", "metadata": {"name": "old", "namespace": "lab"}}
    role, binding = documents(ROOT / "deploy/old-kubelets/rbac.yaml")
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "old", "namespace": "lab"}]
    cluster.apply([account, role, binding])
    kubelet = cluster_node.client(cluster.token("lab", "old"))
    try:
        for call in KUBELET_CALLS:
            assert until(partial(kubelet.status, "GET", call.path), lambda s: s == 200) == 200
    finally:
        for manifest in (account, role, binding):
            cluster.admin.delete(path_of(manifest))


def test_a_client_certificate_serves_instead_of_a_token(cluster: Cluster, cluster_node: Node) -> None:
    user = f"system:serviceaccount:{AGENT_NAMESPACE}:{AGENT}"
    pair = cluster.authority.issue("agent", f"/CN={user}")
    files = (str(path) for path in (cluster.authority.own.certificate, pair.certificate, pair.key))
    load()
    with cluster.sandbox.forward(API_PORT) as port, cluster.sandbox.forward(PORT, cluster_node.address) as kubelet:
        access = Access(f"https://127.0.0.1:{port}", lambda anew: {}, *files)
        for server, path in ((port, path_of(SLO).rpartition("/")[0]), (kubelet, PODS), (kubelet, CONFIG)):
            api = Api(replace(access, server=f"https://127.0.0.1:{server}"))
            chosen = {"fieldSelector": "metadata.name=node-a"} if server == port else None
            assert until(partial(answered, api, path, chosen), bool)
            api.close()


def answered(api: Api, path: str, params: dict[str, str] | None) -> bool:
    try:
        return bool(api.get(path, params))
    except ApiError as error:
        if error.status != 403:  # remembered from a test before
            raise
        return False


def test_every_shipped_permission_has_a_call() -> None:
    shipped = {(v, r) for rule in ROLE["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert {(c.verb, c.resource) for c in (*CALLS, *KUBELET_CALLS)} == shipped


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/koordinator-system/configmaps"),
        ("GET", "/api/v1/namespaces/lab/secrets"),
        ("GET", "/api/v1/persistentvolumeclaims"),
        ("GET", "/api/v1/nodes/node-a"),
        ("PUT", f"{path_of(METRIC)}/status"),
        ("DELETE", path_of(TOPOLOGY)),
        ("GET", "/api/v1/nodes/node-a/proxy/pods"),
        ("DELETE", f"{path_of(SLO)}"),
        ("DELETE", "/api/v1/namespaces/lab/pods/victim"),
    ],
)
def test_agent_may_not(agent: Client, method: str, path: str) -> None:
    assert agent.status(method, path) == 403
