"""The doors under strangers, with real sockets."""

from __future__ import annotations

import http.client
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordlet.doors import request
from koordlet.doors.http import MAX_CONNECTIONS, DoorError, HttpDoor
from koordlet.doors.request import Reply

TEXT = "text/plain"


def hello(query: Mapping[str, str], accept: str) -> Reply:
    return 200, TEXT, f"hello {dict(query)} {accept}".encode()


def broken(query: Mapping[str, str], accept: str) -> Reply:
    raise RuntimeError("secret detail")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    path = tmp_path_factory.mktemp("run") / "k.sock"
    made = HttpDoor(
        "127.0.0.1:0", str(path), {"/healthz": hello, "/broken": broken}, {"/healthz": hello, "/v1/status": hello}
    )
    made.start()
    yield made
    made.close()
    assert not path.exists()


def get(door: HttpDoor, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, str]:
    assert door.port is not None
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def dial(door: HttpDoor) -> socket.socket:
    assert door.port is not None
    return socket.create_connection(("127.0.0.1", door.port), timeout=10)


def say(door: HttpDoor, data: bytes) -> bytes:
    """Send, half-close, and take everything that comes back."""
    with dial(door) as stranger:
        got = b""
        try:
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while more := stranger.recv(65536):
                got += more
        except (ConnectionResetError, BrokenPipeError):
            pass
        return got


@pytest.mark.parametrize(
    ("path", "method", "status", "body"),
    [
        ("/healthz?a=1&b=%20x", "GET", 200, "hello {'a': '1', 'b': ' x'} text/x"),
        ("/healthz", "POST", 405, ""),
        ("/healthz", "HEAD", 405, ""),
        ("/healthz", "BREW", 501, "501 Unsupported method ('BREW')\n"),
        ("/none", "GET", 404, "404 no such page; there are: /broken /healthz\n"),
        ("/v1/status", "GET", 404, "404 no such page; there are: /broken /healthz\n"),
        ("/broken", "GET", 500, "500 this page failed; the agent's log has the reason\n"),
        ("/healthz?" + "&".join(f"a{i}=" for i in range(40)), "GET", 400, "400 Malformed URL\n"),
        ("/" + "x" * 9000, "GET", 431, "431 Request head is larger than 8 KiB\n"),
    ],
    ids=["get", "post", "head", "brew", "unknown", "private-page", "page-fails", "many-fields", "long-line"],
)
def test_answers(door: HttpDoor, path: str, method: str, status: int, body: str) -> None:
    assert get(door, path, method, {"Accept": "text/x"}) == (status, body)


def test_the_unix_door_has_the_private_pages(door: HttpDoor, tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    own = HttpDoor("", str(path), {}, {"/v1/status": hello})
    own.start()
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.0 200")
    finally:
        own.close()
    assert not path.exists()


def test_actions_are_for_the_unix_door_alone(tmp_path: Path) -> None:
    own = HttpDoor("127.0.0.1:0", str(tmp_path / "p.sock"), {"/healthz": hello}, actions={"/do": hello})
    own.start()
    try:
        assert get(own, "/do?a=1", "POST")[0] == 405
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "p.sock"))
            client.sendall(b"POST /do?a=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.0 200")
    finally:
        own.close()


@pytest.mark.parametrize(
    ("data", "starts"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: x", b"HTTP/1.0 408"),
        (b"\r\n\r\n", b""),
        (b"GET /healthz HTTP/9.9\r\n\r\n", b"505 "),
        (b"GET http://[::1 HTTP/1.0\r\n\r\n", b"HTTP/1.0 400"),
        (b"GET /healthz HTTP/1.0\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"HTTP/1.0 431"),
        (b"GET /healthz HTTP/1.0\r\nx: " + b"y" * 200_000, b"HTTP/1.0 431"),
        (b"GET /healthz HTTP/1.0\r\nContent-Length: 100000\r\n\r\n" + b"z" * 100_000, b"HTTP/1.0 200"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", b""),
    ],
    ids=["nothing", "cut", "blank", "version", "url", "headers", "endless-header", "body", "tls-hello"],
)
def test_odd_requests(door: HttpDoor, data: bytes, starts: bytes) -> None:
    assert say(door, data).startswith(starts)
    assert get(door, "/healthz")[0] == 200


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2000) | st.binary(max_size=200).map(lambda b: b"GET /" + b + b" HTTP/1.1\r\n\r\n"))
def test_garbage_leaves_the_door_healthy(door: HttpDoor, data: bytes) -> None:
    got = say(door, data)
    assert b"Traceback" not in got
    assert get(door, "/healthz")[0] == 200


def test_silent_connections_give_way(door: HttpDoor) -> None:
    """200 strangers connect and say nothing, or one letter; a probe is still answered at once."""
    strangers = []
    try:
        for number in range(200):
            stranger = dial(door)
            strangers.append(stranger)
            if number % 2:
                stranger.sendall(b"G")
        assert get(door, "/healthz")[0] == 200
        assert threading.active_count() < 3 * MAX_CONNECTIONS
    finally:
        for stranger in strangers:
            stranger.close()
    assert get(door, "/healthz")[0] == 200


def test_when_every_place_is_at_work_a_newcomer_is_told_busy(tmp_path: Path) -> None:
    arrived, leave = threading.Semaphore(0), threading.Event()

    def slow(query: Mapping[str, str], accept: str) -> Reply:
        arrived.release()
        leave.wait(30)
        return 200, TEXT, b"done"

    own = HttpDoor("127.0.0.1:0", "", {"/slow": slow, "/healthz": hello})
    own.start()
    workers = [dial(own) for _ in range(MAX_CONNECTIONS)]
    try:
        for worker in workers:
            worker.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
        for _ in workers:
            assert arrived.acquire(timeout=30)
        assert get(own, "/healthz") == (503, "busy\n")
        leave.set()
        for worker in workers:
            assert b"done" in b"".join(iter(lambda w=worker: w.recv(4096), b""))  # type: ignore[misc]
    finally:
        leave.set()
        for worker in workers:
            worker.close()
        own.close()


def test_a_slow_head_is_cut_by_the_total_time(door: HttpDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for the whole head: a byte now and then does not extend it."""
    monkeypatch.setattr(request, "HEAD_LIMIT_S", 0.0)
    with dial(door) as stranger:
        stranger.sendall(b"G")
        assert b"".join(iter(lambda: stranger.recv(4096), b"")) == b""


def refuse_text(make: Callable[[], HttpDoor]) -> str:
    made = make()
    try:
        with pytest.raises(DoorError) as caught:
            made.start()
    finally:
        made.close()
    return str(caught.value)


@pytest.mark.parametrize("addr", ["9316", "::1:80", "1.2.3.4:", ":http", ":70000", ":-1", "[::1]80", ":٣"])
def test_malformed_addr(addr: str) -> None:
    assert refuse_text(lambda: HttpDoor(addr, "", {})).startswith(f"-addr={addr}: want HOST:PORT")


def test_port_in_use_names_the_flag(door: HttpDoor) -> None:
    text = refuse_text(lambda: HttpDoor(f"127.0.0.1:{door.port}", "", {}))
    assert "is used by another program; choose another, for example -addr=:" in text


def test_a_foreign_address_names_the_flag() -> None:
    assert "no such address" in refuse_text(lambda: HttpDoor("192.0.2.1:0", "", {}))


def test_all_addresses_take_ipv4() -> None:
    own = HttpDoor(":0", "", {"/healthz": hello})
    own.start()
    try:
        assert get(own, "/healthz")[0] == 200
    finally:
        own.close()
        own.close()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "k.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    own = HttpDoor("", str(path), {"/healthz": hello})
    own.start()
    own.close()
    assert not path.exists()


def test_a_live_socket_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    first = HttpDoor("", str(path), {"/healthz": hello})
    first.start()
    try:
        text = refuse_text(lambda: HttpDoor("127.0.0.1:0", str(path), {}))
        assert f"another agent answers on {path}" in text
        assert path.exists()
    finally:
        first.close()


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    path.write_text("precious")
    assert "is not a socket" in refuse_text(lambda: HttpDoor("", str(path), {}))
    assert path.read_text() == "precious"


def test_a_path_too_long_names_the_flag(tmp_path: Path) -> None:
    assert "-run-dir" in refuse_text(lambda: HttpDoor("", str(tmp_path / ("x" * 120)), {}))


def test_a_taken_port_leaves_no_socket_behind(door: HttpDoor, tmp_path: Path) -> None:
    refuse_text(lambda: HttpDoor(f"127.0.0.1:{door.port}", str(tmp_path / "k.sock"), {}))
    assert not os.path.exists(tmp_path / "k.sock")
