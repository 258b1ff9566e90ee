"""Cluster lab: the control plane, the shipped CRDs, and account tokens of chosen expiry."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.cluster.api import MERGE_PATCH, path_of
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, Cluster, documents

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]  # the first run on a machine builds

EXAMPLES = documents(Path(__file__).with_name("examples.yaml"))
NODES = "/api/v1/nodes"


def example(kind: str) -> dict[str, Any]:
    return copy.deepcopy(next(e for e in EXAMPLES if e["kind"] == kind))


@pytest.fixture
def made(cluster: Cluster) -> Iterator[list[str]]:
    """Paths to delete after the test."""
    paths: list[str] = []
    yield paths
    for path in paths:
        cluster.admin.delete(path)


@pytest.mark.parametrize("given", EXAMPLES, ids=lambda e: f"{e['kind']}-{e['metadata']['name']}")
def test_example_comes_back_as_written(cluster: Cluster, made: list[str], given: dict[str, Any]) -> None:
    path = path_of(given)
    made.append(path)
    answer = cluster.admin.must("POST", path.rpartition("/")[0] + "?fieldValidation=Strict", given)
    if given["kind"] == "NodeMetric":  # its status is a subresource, ignored at creation
        answer["status"] = given["status"]
        answer = cluster.admin.must("PUT", f"{path}/status?fieldValidation=Strict", answer)
    assert lost(given, answer) == []
    assert lost(given, cluster.admin.get(path)) == []


def lost(given: Any, back: Any, at: str = "") -> list[str]:
    """What of `given` is not in `back`. That the server adds defaults, and leaves out empty objects, is no loss."""
    if isinstance(given, dict) and isinstance(back, dict):
        return [found for k, v in given.items() for found in lost(v, back.get(k), f"{at}/{k}")]
    if isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        return [found for i, (g, b) in enumerate(zip(given, back, strict=True)) for found in lost(g, b, f"{at}/{i}")]
    same = given == back or (given == {} and back is None)
    return [] if same else [f"{at}: {given!r} became {back!r}"]


def test_topology_is_served_in_both_versions(cluster: Cluster, made: list[str]) -> None:
    given = example("NodeResourceTopology")
    made.append(path_of(given))
    cluster.admin.create(given)
    other = cluster.admin.get(path_of(given).replace("v1alpha1", "v1alpha2"))
    assert other["zones"] == given["zones"]
    assert other["apiVersion"] == "topology.node.k8s.io/v1alpha2"


@pytest.mark.parametrize(
    ("kind", "change", "names"),
    [
        (
            "NodeSLO",
            {"spec": {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": "many"}}},
            "ThresholdPercent",
        ),
        ("NodeMetric", {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 1.5}}}, "reportIntervalSeconds"),
        ("NodeResourceTopology", {"zones": [{"name": "node-0"}]}, "zones[0].type"),
        ("Device", {"spec": {"devices": [{"type": "gpu"}]}}, "health"),
    ],
)
def test_wrong_type_is_refused_by_name(cluster: Cluster, kind: str, change: dict[str, Any], names: str) -> None:
    answer = cluster.admin.request("POST", path_of(example(kind)).rpartition("/")[0], example(kind) | change)
    assert answer.status == 422, answer.text
    assert names in answer.text


def test_values_outside_the_agents_range_are_kept(cluster: Cluster, made: list[str]) -> None:
    """A schema stricter than the reference's would refuse what other components write; the agent judges ranges."""
    given = example("NodeSLO")
    given["spec"]["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"] = 650
    given["spec"]["extensions"] = {"vendor": {"any": [1, "x"]}}
    made.append(path_of(given))
    assert cluster.admin.create(given)["spec"] == given["spec"]


def test_bandwidth_defaults_when_left_out(cluster: Cluster, made: list[str]) -> None:
    given = example("NodeSLO")
    given["spec"]["resourceQOSStrategy"]["beClass"]["networkQOS"] = {"enable": True, "egressLimit": "1G"}
    made.append(path_of(given))
    back = cluster.admin.create(given)["spec"]["resourceQOSStrategy"]["beClass"]["networkQOS"]
    assert back == {"enable": True, "ingressRequest": 0, "ingressLimit": 100, "egressRequest": 0, "egressLimit": "1G"}


def test_agent_writes_status_and_only_that(cluster: Cluster, made: list[str]) -> None:
    given = example("NodeMetric")
    made.append(path_of(given))
    cluster.admin.create(given)
    agent, change = (
        cluster.agent(),
        {"status": {"updateTime": "2026-07-24T06:53:45Z"}, "spec": {"metricCollectPolicy": None}},
    )
    back = agent.must("PATCH", f"{path_of(given)}/status", change, MERGE_PATCH)
    assert back["status"]["updateTime"] == "2026-07-24T06:53:45Z"
    assert back["spec"] == given["spec"]
    assert agent.status("PATCH", path_of(given), change, MERGE_PATCH) == 403


def test_watch_tells_changes(cluster: Cluster, made: list[str]) -> None:
    given = example("NodeSLO")
    made.append(path_of(given))
    cluster.admin.create(given)
    version = cluster.admin.get(path_of(given).rpartition("/")[0])["metadata"]["resourceVersion"]
    cluster.admin.must(
        "PATCH", path_of(given), {"spec": {"systemStrategy": {"watermarkScaleFactor": 200}}}, MERGE_PATCH
    )
    path = f"{path_of(given).rpartition('/')[0]}?fieldSelector=metadata.name=node-a&resourceVersion={version}"
    event = next(iter(cluster.agent().watch(path, 5)))
    assert event["type"] == "MODIFIED"
    assert event["object"]["spec"]["systemStrategy"]["watermarkScaleFactor"] == 200


@pytest.mark.parametrize(("seconds", "status"), [(3600, 200), (600, 200), (30, 200), (-1, 401), (-3600, 401)])
def test_token_is_good_until_it_expires(cluster: Cluster, seconds: int, status: int) -> None:
    assert cluster.client(cluster.token(AGENT_NAMESPACE, AGENT, seconds)).status("GET", NODES) == status


def test_token_of_a_removed_account_is_refused(cluster: Cluster) -> None:
    account = {"kind": "ServiceAccount", "metadata": {"name": "short-lived", "namespace": "lab"}}
    cluster.admin.create(account)
    token = cluster.token("lab", "short-lived", 300)
    cluster.admin.delete(path_of(account))
    assert cluster.client(token).status("GET", NODES) == 401


def test_nobody_and_a_foreign_signature_are_refused(cluster: Cluster) -> None:
    head, claims, signature = cluster.token(AGENT_NAMESPACE, AGENT, 300).split(".")
    assert cluster.client(f"{head}.{claims}.{signature[::-1]}").status("GET", NODES) == 401
    assert cluster.client().status("GET", NODES) == 403


def test_restart_after_compaction_ends_old_watches(cluster: Cluster, made: list[str]) -> None:
    """The drill for 410 Gone: compaction alone does nothing, the server's watch cache still has the history."""
    given = example("NodeSLO")
    made.append(path_of(given))
    version = cluster.admin.create(given)["metadata"]["resourceVersion"]
    cluster.admin.must(
        "PATCH", path_of(given), {"spec": {"systemStrategy": {"watermarkScaleFactor": 300}}}, MERGE_PATCH
    )
    cluster.compact()
    cluster.stop_apiserver()
    cluster.start_apiserver()
    assert cluster.admin.get(path_of(given))["spec"]["systemStrategy"]["watermarkScaleFactor"] == 300
    event = next(iter(cluster.agent().watch(f"{path_of(given).rpartition('/')[0]}?resourceVersion={version}", 5)))
    assert event["type"] == "ERROR"
    assert event["object"]["code"] == 410
