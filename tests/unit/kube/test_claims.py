"""Volumes of claims against an API server on loopback: asked for once, again when not bound, never waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from koordlet.kube.claims import AGAIN_S, FORGET_S, Claims
from koordlet.kube.client import Api
from tests.hosts.apiserver import ApiServer

KEY = ("u1", "batch", "data-0")
PATH = "/api/v1/namespaces/batch/persistentvolumeclaims/data-0"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claims(api: Api, clock: Clock) -> Iterator[Claims]:
    made = Claims(api, clock)
    yield made
    made.stop()
    assert made._thread is None or not made._thread.is_alive()


def claim(volume: str) -> dict[str, object]:
    spec = {"volumeName": volume} if volume else {}
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": "data-0", "namespace": "batch"}, "spec": spec}


def until(true: Callable[[], object]) -> None:
    for _ in range(1000):
        if true():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come")


def asked(server: ApiServer) -> int:
    return sum(path == PATH for _, path, _ in server.requests)


def test_a_bound_claim_is_asked_for_once(server: ApiServer, claims: Claims, clock: Clock) -> None:
    server.put(PATH, claim("pvc-77"))
    assert claims.volume(KEY) is None
    until(lambda: claims.revision == 1)
    for _ in range(3):
        clock.now_s += AGAIN_S
        assert claims.volume(KEY) == "pvc-77"
    assert asked(server) == 1


def test_one_that_is_not_bound_and_one_that_is_not_there(server: ApiServer, claims: Claims, clock: Clock) -> None:
    claims.volume(KEY)
    until(lambda: claims.revision == 1)
    with pytest.raises(LookupError, match=r"claim batch/data-0: .*404"):
        claims.volume(KEY)
    server.put(PATH, claim(""))
    clock.now_s += AGAIN_S
    with pytest.raises(LookupError, match="404"):  # the old word until there is a new one
        claims.volume(KEY)
    until(lambda: claims.revision == 2)
    with pytest.raises(LookupError, match="not bound yet"):
        claims.volume(KEY)
    server.put(PATH, claim("pvc-1"))
    clock.now_s += AGAIN_S
    with pytest.raises(LookupError):
        claims.volume(KEY)
    until(lambda: claims.revision == 3)
    assert claims.volume(KEY) == "pvc-1"


def test_a_claim_made_anew_for_another_pod_is_another_claim(server: ApiServer, claims: Claims, clock: Clock) -> None:
    server.put(PATH, claim("pvc-old"))
    claims.volume(KEY)
    until(lambda: claims.volume(KEY) == "pvc-old")
    server.put(PATH, claim("pvc-new"))
    other = ("u2", *KEY[1:])
    claims.volume(other)
    until(lambda: claims.volume(other) == "pvc-new")
    clock.now_s += FORGET_S + 1
    claims.volume(("u3", *KEY[1:]))
    assert KEY not in claims._entries
