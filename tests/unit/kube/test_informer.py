"""One object followed by list and watch, through everything that may happen to a watch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.kube.client import Api
from koordlet.kube.informer import Informer
from koordlet.kube.objects import NODES, NodeObject
from tests.hosts.apiserver import ApiServer, status

A = f"{NODES}/a"


class Followed:
    """An informer and a way to wait for what it sees."""

    def __init__(self, api: Api) -> None:
        self.condition = threading.Condition()
        self.changes = 0
        self.informer = Informer(api, NODES, "a", NodeObject, changed=self._changed)
        self.informer._backoff._first_s = self.informer._backoff._next_s = 0.01

    def _changed(self) -> None:
        with self.condition:
            self.changes += 1
            self.condition.notify_all()

    def until(self, true: Callable[[], Any]) -> None:
        for _ in range(1000):
            with self.condition:
                if true():
                    return
                self.condition.wait(0.01)
        raise AssertionError((self.informer.error, self.informer.value))

    @property
    def labels(self) -> dict[str, str] | None:
        value = self.informer.value
        return value.metadata.labels if value is not None else None


@pytest.fixture
def followed(api: Api) -> Iterator[Followed]:
    made = Followed(api)
    yield made
    made.informer.stop()
    assert not made.informer._thread.is_alive()


def labelled(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "a", "labels": labels}}


def until_watched(server: ApiServer, followed: Followed) -> None:
    end = threading.Event()
    for _ in range(500):
        with server.lock:
            if server.watches:
                return
        end.wait(0.01)
    raise AssertionError("nobody watches")


def test_the_object_is_followed_from_nothing_to_nothing(server: ApiServer, followed: Followed) -> None:
    server.put(f"{NODES}/b", {"metadata": {"labels": {"not": "mine"}}})
    informer = followed.informer.start()
    assert informer.wait(10)
    assert informer.value is None
    assert informer.synced
    until_watched(server, followed)
    server.put(A, labelled(x="1"))
    followed.until(lambda: followed.labels == {"x": "1"})
    server.put(A, labelled(x="2"))
    followed.until(lambda: followed.labels == {"x": "2"})
    server.put(f"{NODES}/b", {})
    server.remove(A)
    followed.until(lambda: informer.value is None)
    server.put(A, labelled(x="3"))  # the Node is made anew
    followed.until(lambda: followed.labels == {"x": "3"})
    assert informer.error == ""


def test_a_change_of_what_we_do_not_read_is_none(server: ApiServer, followed: Followed) -> None:
    server.put(A, labelled(x="1"))
    followed.informer.start()
    followed.until(lambda: followed.labels)
    before = followed.informer.revision
    until_watched(server, followed)
    server.put(A, labelled(x="1") | {"status": {"conditions": [{"lastHeartbeatTime": "now"}]}})
    server.put(A, labelled(x="2"))
    followed.until(lambda: followed.labels == {"x": "2"})
    assert followed.informer.revision == before + 1


def test_a_stream_that_ends_goes_on_where_it_ended(server: ApiServer, followed: Followed) -> None:
    server.put(A, labelled(x="1"))
    followed.informer.start()
    followed.until(lambda: followed.labels)
    until_watched(server, followed)
    server.end_watches()
    server.put(A, labelled(x="2"))
    followed.until(lambda: followed.labels == {"x": "2"})
    assert server.count("GET", NODES) == 1  # no second list


def test_a_version_that_is_gone_is_listed_anew(server: ApiServer, followed: Followed) -> None:
    server.put(A, labelled(x="1"))
    followed.informer.start()
    followed.until(lambda: followed.labels)
    until_watched(server, followed)
    server.expire()
    server.objects[A]["metadata"]["labels"] = {"x": "missed"}
    server.end_watches()
    followed.until(lambda: followed.labels == {"x": "missed"})
    assert server.count("GET", NODES) == 2
    assert followed.informer.failures == 0


def test_bookmarks_move_on_the_version(server: ApiServer, followed: Followed) -> None:
    server.put(A, labelled(x="1"))
    followed.informer.start()
    followed.until(lambda: followed.labels)
    until_watched(server, followed)
    server.expire()
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(server.version)}}}
    server.send(NODES, json.dumps(bookmark).encode())
    server.put(A, labelled(x="2"))
    followed.until(lambda: followed.labels == {"x": "2"})
    server.end_watches()
    server.put(A, labelled(x="3"))  # seen although nobody listens just now, and without a list
    followed.until(lambda: followed.labels == {"x": "3"})
    assert server.count("GET", NODES) == 1


@pytest.mark.parametrize("line", [b"not json", b"{}", b'{"type": "ADDED", "object": 7}', b"[" * 20000])
def test_rubbish_in_a_stream(server: ApiServer, followed: Followed, line: bytes) -> None:
    server.put(A, labelled(x="1"))
    followed.informer.start()
    followed.until(lambda: followed.labels)
    until_watched(server, followed)
    server.send(NODES, line)
    followed.until(lambda: followed.informer.failures)
    assert followed.labels == {"x": "1"}
    server.put(A, labelled(x="2"))
    followed.until(lambda: followed.labels == {"x": "2"})


def test_an_object_that_is_not_understood_keeps_the_previous(server: ApiServer, followed: Followed) -> None:
    server.put(A, labelled(x="1"))
    followed.informer.start()
    followed.until(lambda: followed.labels)
    until_watched(server, followed)
    server.put(A, {"metadata": {"name": "a", "labels": ["odd"]}})
    followed.until(lambda: followed.informer.failures)
    assert followed.labels == {"x": "1"}
    assert "labels" in followed.informer.error
    server.put(A, labelled(x="2"))
    followed.until(lambda: followed.labels == {"x": "2"})
    until_watched(server, followed)
    server.put(A, labelled(x="3"))
    followed.until(lambda: followed.labels == {"x": "3"} and followed.informer.error == "")


@pytest.mark.parametrize("code", [403, 404, 500, 503])
def test_a_server_in_trouble_keeps_the_value(server: ApiServer, followed: Followed, code: int) -> None:
    server.put(A, labelled(x="1"))
    followed.informer.start()
    followed.until(lambda: followed.labels)
    until_watched(server, followed)
    server.refuse = lambda verb, path: status(code, "Trouble")
    server.end_watches()
    followed.until(lambda: followed.informer.failures)
    assert followed.labels == {"x": "1"}
    assert "Trouble" in followed.informer.error
    server.refuse = lambda verb, path: None
    until_watched(server, followed)
    server.put(A, labelled(x="2"))
    followed.until(lambda: followed.labels == {"x": "2"})


def test_a_server_that_is_away_at_the_start(server: ApiServer, followed: Followed) -> None:
    server.refuse = lambda verb, path: status(503, "ServiceUnavailable")
    followed.informer.start()
    assert not followed.informer.wait(10)
    assert not followed.informer.synced
    server.refuse = lambda verb, path: None
    server.put(A, labelled(x="1"))
    followed.until(lambda: followed.labels == {"x": "1"})


def test_what_was_known_is_there_while_the_server_is_away(server: ApiServer, api: Api, tmp_path: Path) -> None:
    keep = tmp_path / "node.json"
    server.put(A, labelled(x="1"))
    first = Informer(api, NODES, "a", NodeObject, keep=keep).start()
    assert first.wait(10)
    first.stop()
    server.refuse = lambda verb, path: status(503, "ServiceUnavailable")
    second = Informer(api, NODES, "a", NodeObject, keep=keep).start()
    assert not second.wait(10)
    assert second.value == first.value
    assert second.revision == 1
    second.stop()
    keep.write_bytes(b"torn")
    third = Informer(api, NODES, "a", NodeObject, keep=keep).start()
    assert third.value is None
    third.stop()


def test_what_is_no_more_is_not_remembered(server: ApiServer, api: Api, tmp_path: Path) -> None:
    keep = tmp_path / "node.json"
    keep.write_bytes(b'{"metadata": {"name": "a"}}')
    informer = Informer(api, NODES, "a", NodeObject, keep=keep).start()
    assert informer.wait(10)
    informer.stop()
    assert informer.value is None
    assert not keep.exists()
