"""The publisher: order, isolation, back-off, and that only what changed or is due gets written."""

from __future__ import annotations

from typing import Any, cast

from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.model.status import ApplyReport, Snapshot, TickStats
from koordlet.model.view import NodeView
from koordlet.report.publisher import Publisher

API = cast("Api", object())
SNAPSHOT = Snapshot(NodeView(0.0), {}, ApplyReport(), TickStats(), wall_s=0.0)


class Written:
    """A publication that is due whenever `wanted`, and fails with `error`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted = True
        self.error: Exception | None = None
        self.at_s: list[float] = []

    def due(self, snapshot: Snapshot, now_s: float) -> bool:
        return self.wanted

    def publish(self, api: Api, snapshot: Snapshot, now_s: float) -> None:
        self.at_s.append(now_s)
        if self.error is not None:
            raise self.error


def made(*publications: Written, current: Any = SNAPSHOT) -> tuple[Publisher, list[tuple[str, str]]]:
    counted: list[tuple[str, str]] = []
    publisher = Publisher(API, lambda: current, publications, lambda name, result: counted.append((name, result)))
    return publisher, counted


def test_nothing_is_written_before_the_first_tick() -> None:
    one = Written("one")
    publisher, counted = made(one, current=None)
    publisher.look(1.0)
    assert (one.at_s, counted) == ([], [])


def test_only_what_is_due_is_written() -> None:
    one, two = Written("one"), Written("two")
    two.wanted = False
    publisher, counted = made(one, two)
    publisher.look(1.0)
    assert counted == [("one", "written")]


def test_a_failure_backs_off_alone_and_recovers() -> None:
    bad, good = Written("bad"), Written("good")
    bad.error = ApiError(409, "Conflict", "somebody was faster")
    publisher, counted = made(bad, good)
    for second in range(300):
        publisher.look(float(second))
    assert len(good.at_s) == 300
    assert 6 <= len(bad.at_s) <= 16  # waits of up to 1, 2, 4, ... 60 s
    assert ("bad", "Conflict") in counted
    assert publisher.errors() == ("bad: 409 Conflict: somebody was faster",)
    bad.error = None
    publisher.look(400.0)
    assert publisher.errors() == ()
    before = len(bad.at_s)
    publisher.look(401.0)
    assert len(bad.at_s) == before + 1


def test_the_servers_wish_is_respected() -> None:
    one = Written("one")
    one.error = ApiError(429, "TooManyRequests", "", retry_after_s=30)
    publisher, _ = made(one)
    for second in range(60):
        publisher.look(float(second))
    assert one.at_s == [0.0, 30.0]


def test_a_broken_publication_does_not_end_the_others() -> None:
    bad, good = Written("bad"), Written("good")
    bad.error = ZeroDivisionError("x")
    publisher, counted = made(bad, good)
    publisher.look(1.0)
    assert counted == [("bad", "Internal"), ("good", "written")]


def test_the_thread_writes_and_ends() -> None:
    one = Written("one")
    publisher, _ = made(one)
    publisher.start()
    publisher.wake()
    for _ in range(1000):
        if one.at_s:
            break
        publisher._wake.wait(0.01)
    publisher.stop()
    assert one.at_s
    assert not publisher._thread.is_alive()
