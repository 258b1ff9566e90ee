"""The kubelet as a source: a file, and a real HTTP server on loopback."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.pod import PodSet
from koordlet.sources.kubelet import PodsSource
from tests.hosts.cases import case_json

SYSTEMD = Kubepods(Driver.SYSTEMD)


def body(*names: str) -> bytes:
    return json.dumps({"items": [{"metadata": {"name": name, "uid": name}} for name in names]}).encode()


def save(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    os.replace(fresh, path)


def names(found: PodSet) -> list[str]:
    return [pod.name for pod in found.pods]


class Kubelet:
    """Answers the queued (status, body) pairs, one per request; the last one for ever. None closes the connection."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes] | None] = []
        self.requests = 0
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kubelet.requests += 1
                answer = kubelet.answers.pop(0) if len(kubelet.answers) > 1 else kubelet.answers[0]
                if answer is None:
                    return
                self.send_response(answer[0])
                if answer[0] == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/pods/"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    made = Kubelet()
    yield made
    made.close()


def poll_until(source: PodsSource, now_s: float, done: Callable[[], bool]) -> PodSet:
    """Poll until the fetching thread delivered; bounded by a count of short waits."""
    for _ in range(1000):
        found = source.poll(now_s)
        if done():
            return found
        threading.Event().wait(0.01)
    raise AssertionError(f"no answer: {source.errors()}")


def test_known_pods_survive_a_restarting_kubelet(kubelet: Kubelet) -> None:
    responses, expected = (
        case_json("kubelet-unreachable-keeps-pods", name) for name in ("responses.json", "expected.json")
    )
    for answer in responses:
        if "error" in answer:
            kubelet.answers.append(None)
        else:
            kubelet.answers.append((answer["status"], body(*answer.get("pods", []))))
    source = PodsSource(kubelet.url, SYSTEMD, interval_s=600.0)
    for step, (want, updated) in enumerate(zip(expected["pods"], expected["updated"], strict=True)):
        before, failures = source.poll(step), source.failures
        source.request_refresh()
        now_s = 100.0 + step
        found = poll_until(source, now_s, lambda f=failures, s=now_s: source.failures > f or source.poll(s).at_s == s)  # type: ignore[misc]
        assert names(found) == want
        assert (found.at_s == now_s) is updated
        assert (found.revision > before.revision) is updated
        assert bool(source.errors()) is not updated
    source.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [((401, b""), "HTTP status 401"), ((302, b""), "HTTP status 302"), ((200, b"<html>"), "not a PodList")],
    ids=["unauthorised", "redirect", "no JSON"],
)
def test_answers_that_are_refused(kubelet: Kubelet, answer: tuple[int, bytes], error: str) -> None:
    kubelet.answers.append(answer)
    source = PodsSource(kubelet.url, SYSTEMD, interval_s=600.0)
    found = poll_until(source, 1.0, lambda: source.failures > 0)
    assert error in source.errors()[0]
    assert (found.at_s, found.pods) == (None, ())
    source.close()


def test_an_empty_first_answer_is_a_node_without_pods(kubelet: Kubelet) -> None:
    kubelet.answers.append((200, body()))
    source = PodsSource(kubelet.url, SYSTEMD, interval_s=600.0)
    found = poll_until(source, 5.0, lambda: source.poll(5.0).at_s is not None)
    assert (found.pods, found.at_s, found.revision, source.errors()) == ((), 5.0, 1, ())
    source.close()


def test_an_answer_that_never_ends_is_given_up() -> None:
    stalled, release = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        connection, _ = stalled.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            release.wait(10)

    thread = threading.Thread(target=serve)
    thread.start()
    source = PodsSource(f"http://127.0.0.1:{stalled.getsockname()[1]}/pods/", SYSTEMD, interval_s=600.0, timeout_s=0.1)
    found = poll_until(source, 1.0, lambda: source.failures > 0)
    assert "timed out" in source.errors()[0]
    assert found.at_s is None
    release.set()
    thread.join()
    source.close()
    stalled.close()


def test_nobody_listening_is_an_error_and_not_a_wait() -> None:
    source = PodsSource("http://127.0.0.1:9/pods/", SYSTEMD, interval_s=600.0)
    poll_until(source, 1.0, lambda: source.failures > 0)
    assert "127.0.0.1" in source.errors()[0]
    source.close()


def test_a_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    source = PodsSource(str(path), SYSTEMD)
    assert source.poll(0.0) == PodSet()
    assert "no such file" in source.errors()[0]
    save(path, body("b", "a"))
    found = source.poll(1.0)
    assert (names(found), found.revision, found.at_s, source.errors()) == (["a", "b"], 1, 1.0, ())
    again = source.poll(2.0)
    assert (again.pods is found.pods, again.revision, again.at_s) == (True, 1, 2.0)


def test_a_broken_or_missing_file_keeps_pods_and_ages(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    save(path, body("a"))
    source = PodsSource(str(path), SYSTEMD)
    source.poll(0.0)
    save(path, b"{")
    assert source.poll(1.0).at_s == source.poll(2.0).at_s == 0.0
    assert source.failures == 1
    path.unlink()
    assert (names(source.poll(3.0)), source.poll(3.0).at_s) == (["a"], 0.0)
    save(path, body("a"))
    found = source.poll(4.0)
    assert (found.revision, found.at_s) == (1, 4.0)


def test_a_file_emptied_by_its_owner_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    save(path, body("a"))
    source = PodsSource(str(path), SYSTEMD)
    source.poll(0.0)
    save(path, body())
    assert source.poll(1.0).pods == ()


def test_cgroups_are_named_anew_for_another_driver(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    save(path, body("a"))
    source = PodsSource(str(path), SYSTEMD)
    source.poll(0.0)
    source.use(Kubepods(Driver.CGROUPFS))
    assert source.poll(1.0).pods[0].cgroup == "kubepods/besteffort/poda"


@pytest.fixture(scope="module")
def pods_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pods") / "pods.json"


@given(data=st.binary(max_size=100))
def test_garbage_never_loses_pods(pods_file: Path, data: bytes) -> None:
    save(pods_file, body("a"))
    source = PodsSource(str(pods_file), SYSTEMD)
    source.poll(0.0)
    save(pods_file, data)
    assert names(source.poll(1.0)) == ["a"]
    assert source.errors()


def test_an_empty_answer_is_believed_once_no_cgroup_is_left(kubelet: Kubelet) -> None:
    kubelet.answers += [(200, body("a", "b"))]
    there = {"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda.slice": True}
    source = PodsSource(kubelet.url, SYSTEMD, interval_s=600.0, there=lambda cgroup: any(there.values()))
    assert names(poll_until(source, 1.0, lambda: source.poll(1.0).at_s == 1.0)) == ["a", "b"]
    kubelet.answers[:] = [(200, b'{"items": null}')]
    source.request_refresh()
    found = poll_until(source, 2.0, lambda: source.failures == 1)
    assert (names(found), found.at_s) == (["a", "b"], 1.0)
    there.clear()
    source.request_refresh()
    found = poll_until(source, 3.0, lambda: source.poll(3.0).at_s == 3.0)
    assert (names(found), source.errors()) == ([], ())
    source.close()


def test_what_was_seen_is_asked_about_again_soon(kubelet: Kubelet) -> None:
    """A container's id comes up to some seconds after its cgroup: one wish makes several requests."""
    kubelet.answers += [(200, body("a"))]
    answers = threading.Semaphore(0)
    source = PodsSource(kubelet.url, SYSTEMD, interval_s=600.0, arrived=answers.release)
    source.poll(0.0)
    assert answers.acquire(timeout=10)
    source.request_refresh()
    for _ in range(3):
        assert answers.acquire(timeout=10)
    source.close()


def test_a_given_way_of_asking(kubelet: Kubelet) -> None:
    answers: list[bytes | str] = ["403 Forbidden: no", body("a")]
    source = PodsSource(
        "kubelet", SYSTEMD, interval_s=600.0, get=lambda: answers.pop(0) if len(answers) > 1 else answers[0]
    )
    poll_until(source, 1.0, lambda: source.failures == 1)
    assert source.errors() == ("kubelet: 403 Forbidden: no",)
    source.request_refresh()
    assert names(poll_until(source, 2.0, lambda: source.poll(2.0).at_s == 2.0)) == ["a"]
    source.close()
