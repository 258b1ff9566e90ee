"""Evictions and their Events against an API server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from koordlet.kube.client import Api
from koordlet.kube.evict import EVENTS_BURST, EvictionAnswer, Evictions, PodRef
from tests.hosts.apiserver import ApiServer, Reply, status

POD = PodRef("batch", "spark-1", "uid-1")
EVICTION = "/api/v1/namespaces/batch/pods/spark-1/eviction"
EVENTS = "/api/v1/namespaces/batch/events"
NOW = datetime(2026, 7, 24, 6, 52, 45, tzinfo=UTC)


@pytest.fixture
def evictions(api: Api, server: ApiServer) -> Iterator[Evictions]:
    server.refuse = answered()
    made = Evictions(api, "node-a", now=lambda: NOW)
    yield made
    made.stop()
    assert not any(thread.is_alive() for thread in made._threads)


def answered(eviction: Reply = (201, {}, {}), version: str = "v1") -> Callable[[str, str], Reply | None]:
    def refuse(verb: str, path: str) -> Reply | None:
        if path == "/api/v1":
            return 200, {"resources": [{"name": "pods"}, {"name": "pods/eviction", "version": version}]}, {}
        return eviction if path.endswith("/eviction") else None

    return refuse


def until(true: Callable[[], object]) -> None:
    for _ in range(1000):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come")


def answer(evictions: Evictions) -> EvictionAnswer:
    found: list[EvictionAnswer] = []
    until(lambda: found.extend(evictions.answers()) or found)
    (one,) = found
    return one


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_uid_is_a_precondition_and_the_version_the_servers(
    server: ApiServer, evictions: Evictions, version: str
) -> None:
    server.refuse = answered(version=version)
    evictions.ask(POD)
    assert answer(evictions) == EvictionAnswer("uid-1")
    body = next(body for verb, path, body in server.requests if path == EVICTION)
    assert body == {
        "apiVersion": f"policy/{version}",
        "kind": "Eviction",
        "metadata": {"namespace": "batch", "name": "spark-1"},
        "deleteOptions": {"preconditions": {"uid": "uid-1"}},
    }
    evictions.ask(POD)
    answer(evictions)
    assert server.count("GET", "/api/v1") == 1


@pytest.mark.parametrize(
    ("reply", "error", "gone"),
    [
        (
            status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget."),
            "429",
            False,
        ),
        (status(404, "NotFound", "no such pod"), "", True),
        (
            status(409, "Conflict", "the UID in the precondition (uid-1) does not match"),
            "409",
            False,
        ),
        (status(409, "Conflict", "please apply your changes to the latest version"), "409", False),
        (status(500, "InternalError", "etcd"), "500", False),
        (status(403, "Forbidden", "no"), "403", False),
    ],
)
def test_what_the_server_says_comes_back(
    server: ApiServer, evictions: Evictions, reply: Reply, error: str, gone: bool
) -> None:
    server.refuse = answered(reply)
    evictions.ask(POD)
    found = answer(evictions)
    assert found.error.startswith(error)
    assert bool(found.error) is bool(error)
    assert found.gone is gone


def test_a_server_that_is_away_is_an_answer_too(server: ApiServer, evictions: Evictions) -> None:
    server.refuse = lambda verb, path: status(503, "ServiceUnavailable")
    evictions.ask(POD)
    assert answer(evictions).error.startswith("503")


def test_asking_twice_makes_one_request(server: ApiServer, evictions: Evictions) -> None:
    going, go = threading.Event(), threading.Event()
    usual = answered()

    def slow(verb: str, path: str) -> Reply | None:
        if path == EVICTION:
            going.set()
            go.wait(10)
        return usual(verb, path)

    server.refuse = slow
    evictions.ask(POD)
    assert going.wait(10)
    evictions.ask(POD)
    go.set()
    assert answer(evictions) == EvictionAnswer("uid-1")
    assert server.count("POST", EVICTION) == 1


def test_events_of_one_kind_count_up_one_object(server: ApiServer, evictions: Evictions) -> None:
    evictions.tell(POD, "evictPodFail", "first")
    evictions.tell(POD, "evictPodFail", "x" * 5000)
    until(lambda: any(verb == "PATCH" for verb, _, _ in server.requests))
    until(lambda: [o for o in server.objects.values() if o.get("count") == 2])
    (event,) = (o for path, o in server.objects.items() if path.startswith(EVENTS))
    assert event["message"] == "x" * 1024
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == "uid-1"
    assert event["source"] == {"component": "koordlet-qosManager", "host": "node-a"}
    assert event["lastTimestamp"] == "2026-07-24T06:52:45Z"
    server.objects.clear()  # the server forgets Events after an hour
    evictions.tell(POD, "evictPodFail", "again")
    until(lambda: [o for o in server.objects.values() if o.get("message") == "again"])
    evictions.tell(POD, "evictPodSuccess", "another reason")
    until(lambda: len(server.objects) == 2)


def test_a_storm_of_events_is_bounded(server: ApiServer, evictions: Evictions) -> None:
    for number in range(200):
        evictions.tell(PodRef("batch", f"p-{number}", f"uid-{number}"), "evictPodFail", "")
    assert evictions.dropped >= 200 - EVENTS_BURST - 2
    until(lambda: len(server.objects) >= EVENTS_BURST)


def test_a_slow_refusal_does_not_hold_up_the_next_pod(server: ApiServer, evictions: Evictions) -> None:
    go = threading.Event()
    usual = answered()

    def slow(verb: str, path: str) -> Reply | None:
        if path == EVICTION:
            go.wait(10)
        return usual(verb, path)

    server.refuse = slow
    evictions.ask(POD)
    evictions.ask(PodRef("batch", "spark-2", "uid-2"))
    assert answer(evictions) == EvictionAnswer("uid-2")
    go.set()
    assert answer(evictions) == EvictionAnswer("uid-1")
