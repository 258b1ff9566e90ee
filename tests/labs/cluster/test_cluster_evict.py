"""Cluster lab: evictions and Events by the agent's account against a real API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from koordlet.kube.access import Access
from koordlet.kube.client import Api
from koordlet.kube.evict import EvictionAnswer, Evictions, PodRef
from koordlet.kube.lazy import load
from tests.labs.cluster.api import path_of
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, API_PORT, Cluster
from tests.labs.cluster.node import pod

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

EVENTS = "/api/v1/namespaces/lab/events"
PDBS = "/apis/policy/v1/namespaces/lab/poddisruptionbudgets"


@pytest.fixture
def evictions(cluster: Cluster) -> Iterator[Evictions]:
    token = cluster.token(AGENT_NAMESPACE, AGENT)
    with cluster.sandbox.forward(API_PORT) as port:
        access = Access(
            f"https://127.0.0.1:{port}",
            lambda anew: {"Authorization": f"Bearer {token}"},
            str(cluster.authority.own.certificate),
        )
        load()
        api = Api(access, read_s=30)
        made = Evictions(api, "lab-node")
        yield made
        made.stop()
        api.close()


@pytest.fixture
def victim(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """A pod that is never started, so its eviction removes it at once."""
    manifest = pod("victim", labels={"app": "victim"})
    manifest["spec"].pop("nodeName")
    made = cluster.admin.create(manifest)
    yield made
    cluster.admin.delete(path_of(manifest))


def ref(made: dict[str, Any]) -> PodRef:
    return PodRef("lab", made["metadata"]["name"], made["metadata"]["uid"])


def answer(evictions: Evictions, seconds: int = 10) -> EvictionAnswer:
    found: list[EvictionAnswer] = []
    until(lambda: found.extend(evictions.answers()) or found, seconds)
    return found[0]


def until(true: Callable[[], object], seconds: int = 10) -> None:
    for _ in range(100 * seconds):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come")


def test_a_pod_is_evicted(cluster: Cluster, evictions: Evictions, victim: dict[str, Any]) -> None:
    evictions.ask(ref(victim))
    assert answer(evictions) == EvictionAnswer(victim["metadata"]["uid"])
    until(lambda: cluster.admin.status("GET", path_of(victim)) == 404)
    evictions.ask(ref(victim))
    assert answer(evictions).gone


def test_another_pod_of_the_same_name_is_left_alone(
    cluster: Cluster, evictions: Evictions, victim: dict[str, Any]
) -> None:
    evictions.ask(PodRef("lab", "victim", "00000000-0000-0000-0000-000000000000"))
    found = answer(evictions, 30)
    assert found.error
    assert not found.gone
    print(f"another uid: {found.error}")
    assert cluster.admin.status("GET", path_of(victim)) == 200


def test_a_disruption_budget_refuses(cluster: Cluster, evictions: Evictions, victim: dict[str, Any]) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "victim"}}},
    }
    cluster.admin.must("POST", PDBS, budget)
    victim_status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    kind = "application/strategic-merge-patch+json"
    cluster.admin.must("PATCH", f"{path_of(victim)}/status", victim_status, kind)
    try:
        evictions.ask(ref(victim))
        assert answer(evictions).error.startswith("429")
        assert cluster.admin.status("GET", path_of(victim)) == 200
    finally:
        cluster.admin.delete(f"{PDBS}/keep")


def test_events_are_made_and_counted_up(cluster: Cluster, evictions: Evictions, victim: dict[str, Any]) -> None:
    evictions.tell(ref(victim), "evictPodFail", "refused: trigger by koordlet feature BEMemoryEvict")
    evictions.tell(ref(victim), "evictPodFail", "refused: again")
    mine = f"{EVENTS}?fieldSelector=involvedObject.uid={victim['metadata']['uid']}"
    until(lambda: [e for e in cluster.admin.get(mine)["items"] if e.get("count") == 2])
    (event,) = cluster.admin.get(mine)["items"]
    assert (event["reason"], event["type"], event["message"]) == ("evictPodFail", "Warning", "refused: again")
    assert event["source"]["component"] == "koordlet-qosManager"
    assert evictions.dropped == 0
