"""sd_notify datagrams on a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.report.notify import Notifier, watchdog_interval_s

CALLS: list[tuple[str, Callable[[Notifier], bool], str]] = [
    ("ready", lambda n: n.ready("2 pods"), "READY=1\nSTATUS=2 pods"),
    ("ready-bare", lambda n: n.ready(), "READY=1"),
    ("status", lambda n: n.status("a\nREADY=1"), "STATUS=a READY=1"),
    ("watchdog", lambda n: n.watchdog(), "WATCHDOG=1"),
    ("stopping", lambda n: n.stopping("bye"), "STOPPING=1\nSTATUS=bye"),
]


@pytest.mark.parametrize("kind", ["file", "abstract"])
@pytest.mark.parametrize(("call", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_one_datagram(tmp_path: Path, kind: str, call: Callable[[Notifier], bool], expected: str) -> None:
    address = str(tmp_path / "s") if kind == "file" else f"@koordlet-test-{os.getpid()}-{id(call)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1))
        assert call(Notifier({"NOTIFY_SOCKET": address}))
        assert manager.recv(4096).decode() == expected


def test_reloading_tells_the_monotonic_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        assert Notifier({"NOTIFY_SOCKET": str(tmp_path / "s")}).reloading()
        first, second = manager.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert int(second.partition("=")[2]) > 0


@pytest.mark.parametrize("address", ["", "/no/such/socket", "vsock:2:1", "relative"], ids=lambda v: v or "unset")
def test_nobody_listens(address: str) -> None:
    assert not Notifier({"NOTIFY_SOCKET": address}).ready()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
    ids=["unset", "half", "ours", "another-process", "no-number", "zero"],
)
def test_watchdog_interval(env: dict[str, str], expected: float | None) -> None:
    assert watchdog_interval_s(env) == expected
