"""Containers stopped over CRI: a real gRPC server on a socket plays the runtime."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from koordlet.act.cri import METHOD, CriStop, request
from koordlet.act.evict import Answer, EvictBy, Evictor
from koordlet.kernel.host import CgroupVersion
from koordlet.model.eviction import EvictState
from tests.hosts.tree import HostTree
from tests.unit.act.test_evict import POD, Server

TWO = replace(POD, containers=("containerd://one", "containerd://two"))


class Runtime:
    """What it was asked to stop; refusals: id -> status code."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self.refusals: dict[str, grpc.StatusCode] = {}

    def stop(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        assert (message[0], message[1]) == (0x0A, len(message) - 2)  # the id, and no timeout
        container_id = message[2:].decode()
        if code := self.refusals.get(container_id):
            context.abort(code, "no")
        self.stopped.append(container_id)
        return b""


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[tuple[Runtime, CriStop]]:
    made = Runtime()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    service, method = METHOD.lstrip("/").split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(made.stop)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix://{tmp_path}/cri.sock")
    server.start()
    try:
        yield made, CriStop(tmp_path / "cri.sock")
    finally:
        server.stop(None)


def answer(stop: CriStop) -> Answer:
    deadline_s = time.monotonic() + 20
    while not (found := stop.answers()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return found[0]


def test_every_container_is_stopped_at_once(runtime: tuple[Runtime, CriStop]) -> None:
    played, stop = runtime
    stop.ask(TWO)
    assert answer(stop) == Answer("uid-a")
    assert played.stopped == ["one", "two"]


def test_one_that_is_gone_is_stopped_and_a_refusal_does_not_save_the_others(runtime: tuple[Runtime, CriStop]) -> None:
    played, stop = runtime
    played.refusals = {"one": grpc.StatusCode.NOT_FOUND}
    stop.ask(TWO)
    assert answer(stop) == Answer("uid-a")
    played.refusals = {"one": grpc.StatusCode.INTERNAL}
    stop.ask(TWO)
    assert "cri.sock: INTERNAL: no" in answer(stop).error
    assert played.stopped == ["two", "two"]


def test_what_cannot_be_asked_for_is_said(runtime: tuple[Runtime, CriStop], tmp_path: Path) -> None:
    _, stop = runtime
    stop.ask(POD)
    assert "none of its containers" in answer(stop).error
    stop.ask(replace(POD, containers=("containerd://" + "x" * 200,)))
    assert "not 1..127 bytes" in answer(stop).error
    nobody = CriStop(tmp_path / "nobody.sock")
    nobody.ask(TWO)
    assert "nobody.sock: UNAVAILABLE" in answer(nobody).error


@pytest.mark.parametrize("size", [1, 64, 127])
def test_the_request_names_the_container_alone(size: int) -> None:
    assert request("x" * size) == bytes([0x0A, size]) + b"x" * size


class Waiting:
    """A runtime whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.waiting: list[Answer] = []

    def ask(self, evict: object) -> None:
        self.asked.append(getattr(evict, "target", ""))

    def answers(self) -> list[Answer]:
        found, self.waiting = self.waiting, []
        return found


def test_the_runtimes_answer_counts_and_the_server_is_told(tmp_path: Path) -> None:
    """A disruption budget refuses to the API; the runtime has stopped the pod all the same, and it is spared then."""
    server, played, counts = Server(), Waiting(), list[str]()
    server.verdict = "429: budget"
    tree = HostTree(tmp_path, CgroupVersion.V1)
    evictor = Evictor(
        tree.host,
        lambda record: None,
        lambda evict, result: counts.append(result),
        lambda evict: True,
        api=server,
        runtime=played,
        by=EvictBy.CRI,
    )
    evictor.apply((TWO,), 100)
    evictor.apply((TWO,), 101)
    assert (server.asked, played.asked) == (["uid-a"], ["uid-a"])
    assert evictor.book()["uid-a"].state is EvictState.ASKED
    played.waiting.append(Answer("uid-a"))
    evictor.apply((TWO,), 102)
    assert evictor.book()["uid-a"].state is EvictState.DONE
    evictor.apply((TWO,), 130)
    assert (counts, len(played.asked)) == (["evicted"], 1)
    evictor.apply((TWO,), 170)
    assert len(played.asked) == 2
