"""The NRI door: one connection at a time, for as long as the agent runs, whatever the runtime does."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.act.lock import DirectoryLock
from koordlet.doors.nri import Backoff, NriDoor
from koordlet.doors.nri_identity import Identity, launched
from koordlet.doors.nri_versions import Event, event_mask, release
from koordlet.model.podevent import Hook
from tests.hosts.cases import case_json
from tests.unit.doors.nri_runtime import LSR, Listener, Runtime, container, pod
from tests.unit.doors.stand import Stand

NAME = Identity("koordlet_nri", "00")


def wait_for(what: Callable[[], object]) -> None:
    """Until it is so; fails after 10 s."""
    until_s = time.monotonic() + 10.0
    while not what():
        assert time.monotonic() < until_s, "did not come"
        time.sleep(0.005)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Callable[..., NriDoor]]:
    made: list[tuple[NriDoor, Stand]] = []

    def make(**more: Any) -> NriDoor:
        stand = Stand()
        made.append((NriDoor(tmp_path / "nri/nri.sock", NAME, stand.teller(), **more), stand))
        made[-1][0].start()
        return made[-1][0]

    yield make
    for found, stand in made:
        found.close()
        stand.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Callable[[], Listener]]:
    made: list[Listener] = []

    def make() -> Listener:
        made.append(Listener(tmp_path / "nri/nri.sock"))
        return made[-1]

    yield make
    for found in made:
        found.close()


def test_a_single_connection(door: Callable[..., NriDoor], listener: Callable[[], Listener]) -> None:
    """nri-single-connection: close and run error are one end; late closes and further starts change nothing."""
    expected, runtimes = case_json("nri-single-connection"), listener()
    found = door()
    first = runtimes.plugin()
    first.handshake()
    wait_for(lambda: found.ready)
    first.socket.shutdown(socket.SHUT_RDWR)  # the close and the failing read loop
    second = runtimes.plugin()
    second.handshake()
    first.close()  # late
    for _ in range(2):
        threading.Thread(target=found.start).start()
    assert second.create(pod(labels=LSR), container()).adjust.linux.resources.cpu.shares.value == 1024
    runtimes.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        runtimes.plugin()
    assert found.registrations == expected["registrations"]
    assert expected["alive"] == [2]


def test_it_waits_for_a_runtime_and_follows_its_restarts(
    door: Callable[..., NriDoor], listener: Callable[[], Listener]
) -> None:
    found = door()
    assert found.errors() == ()
    for number in (1, 2, 3):
        runtimes = listener()
        runtime = runtimes.plugin()
        runtime.handshake()
        wait_for(lambda: found.ready)
        assert found.registrations == number
        runtimes.close()
        runtime.close()
        wait_for(lambda: not found.ready)


def test_a_dead_runtimes_socket_is_tried_until_it_answers(
    door: Callable[..., NriDoor], listener: Callable[[], Listener]
) -> None:
    runtimes = listener()
    runtimes.socket.close()
    found = door()
    runtimes.path.unlink()
    runtime = listener().plugin()
    runtime.handshake()
    wait_for(lambda: found.ready)


def test_another_agent_on_the_same_runtime_keeps_out(
    door: Callable[..., NriDoor], listener: Callable[[], Listener], tmp_path: Path
) -> None:
    """koordinator #2334: two plugins that set one field make every creation fail."""
    runtimes = listener()
    with DirectoryLock(tmp_path / "nri"):
        found = door()
        runtimes.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            runtimes.plugin()
    runtimes.socket.settimeout(10.0)
    runtimes.plugin().handshake()
    wait_for(lambda: found.ready)


def test_what_it_missed_is_told_anew(
    door: Callable[..., NriDoor], listener: Callable[[], Listener], tmp_path: Path
) -> None:
    runtimes, stand = listener(), Stand()
    found = NriDoor(tmp_path / "nri/nri.sock", NAME, stand.teller())
    found.start()
    first = runtimes.plugin()
    first.handshake([pod("old", "/kubepods/podu9", "u9")])
    first.close()
    runtimes.plugin().handshake([pod()], [container()])
    wait_for(lambda: [p.name for p in stand.source.poll(1.0).pods] == ["web-0"])
    found.close()
    stand.close()


def test_a_launched_plugin_uses_the_runtimes_connection_and_name(door: Callable[..., NriDoor]) -> None:
    ours, theirs = socket.socketpair()
    fd = ours.detach()
    got = launched({"NRI_PLUGIN_SOCKET": str(fd), "NRI_PLUGIN_NAME": "koordlet", "NRI_PLUGIN_IDX": "07"})
    assert got is not None
    identity, given = got
    assert not os.get_inheritable(fd)
    stand, ended, runtime = Stand(), threading.Event(), Runtime(theirs)
    found = NriDoor(Path("/nonexistent/nri.sock"), identity, stand.teller(), given=given, ended=ended.set)
    found.start()
    runtime.handshake()
    assert runtime.registered is not None
    assert (runtime.registered.plugin_name, runtime.registered.plugin_idx) == ("koordlet", "07")
    assert runtime.create(pod(labels=LSR), container()).adjust.linux.resources.cpu.shares.value == 1024
    runtime.close()
    assert ended.wait(10.0)  # its runtime is gone, and nobody would start it again
    found.close()
    stand.close()


@pytest.mark.parametrize(
    "env",
    [
        {"NRI_PLUGIN_SOCKET": "x", "NRI_PLUGIN_NAME": "a", "NRI_PLUGIN_IDX": "00"},
        {"NRI_PLUGIN_SOCKET": "0", "NRI_PLUGIN_NAME": "a", "NRI_PLUGIN_IDX": "00"},
        {"NRI_PLUGIN_SOCKET": "60000", "NRI_PLUGIN_NAME": "a", "NRI_PLUGIN_IDX": "00"},
        {"NRI_PLUGIN_SOCKET": "3"},
    ],
)
def test_half_an_environment_is_an_error(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="NRI"):
        launched(env)
    assert launched({}) is None


@pytest.mark.parametrize(
    ("name", "index"), [("koordlet", "0"), ("koordlet", "000"), ("koordlet", "a1"), ("a b", "00"), ("", "00")]
)
def test_w49_names_that_a_runtime_would_refuse(name: str, index: str) -> None:
    with pytest.raises(ValueError, match="NRI plugin"):
        Identity(name, index)


UPSTREAM = (Event.RUN_POD_SANDBOX, Event.REMOVE_POD_SANDBOX, Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER)


@pytest.mark.parametrize(
    ("more", "mask"),
    [
        pytest.param((), 0x8D, id="W42-upstream"),
        pytest.param((Event.POST_START_CONTAINER,), 0xCD, id="W42-with-PostStart"),
        pytest.param((Event.POST_START_CONTAINER, Event.REMOVE_CONTAINER), 0x4CD, id="W42-with-Remove"),
        pytest.param((Event.UPDATE_POD_SANDBOX,), 0x8D, id="W43-a-bit-that-0.8-refuses"),
    ],
)
def test_masks(more: tuple[Event, ...], mask: int) -> None:
    assert event_mask((0, 8), wanted=(*UPSTREAM, *more)) == mask


def test_a_newer_runtime_takes_newer_bits() -> None:
    assert event_mask((0, 12), wanted=(*UPSTREAM, Event.UPDATE_POD_SANDBOX)) == 0x88D
    assert event_mask((0, 12), {Hook.PRE_RUN_POD_SANDBOX}) == 0x4CE


@pytest.mark.parametrize(
    ("nri", "runtime", "version", "registration_ms", "expected"),
    [
        ("v0.12.3", "containerd", "v2.4.2", 5000, (0, 12)),
        ("", "containerd", "v2.2.1", 5000, (0, 11)),
        ("", "containerd", "v2.2.0", 5000, (0, 10)),
        ("", "containerd", "v2.0.4", 5000, (0, 8)),
        ("", "containerd", "v1.7.29", 5000, (0, 8)),
        ("", "containerd", "v1.7.16", 0, (0, 6)),
        ("", "containerd", "1.7.2-k3s1", 0, (0, 3)),
        ("", "cri-o", "1.34.1", 5000, (0, 10)),
        ("", "CRI-O", "1.30.0", 0, (0, 6)),
        ("", "own-runtime", "v9", 5000, (0, 8)),
        ("", "own-runtime", "", 0, (0, 0)),
        ("nonsense", "containerd", "nonsense", 0, (0, 0)),
    ],
)
def test_releases(nri: str, runtime: str, version: str, registration_ms: int, expected: tuple[int, int]) -> None:
    assert release(nri, runtime, version, registration_ms) == expected


def test_backoff_grows_to_its_cap_and_forgives_one_loss() -> None:
    backoff = Backoff(first_s=1.0, factor=2.0, cap_s=30.0, jitter=0.0)
    assert [backoff.wait_s(n) for n in (1, 2, 3, 4, 9, 10_000)] == [0.1, 1.0, 2.0, 4.0, 30.0, 30.0]
    assert Backoff(cap_s=1e9, jitter=0.0).wait_s(100) == 30.0
    assert Backoff(steps=1, jitter=0.0).wait_s(50) == 2.0
