"""One NRI connection: what the plugin does with a runtime that talks rubbish, or not at all."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordlet.wire import mux, ttrpc
from koordlet.wire import nri_pb2 as nri
from koordlet.wire.ttrpc import Code
from tests.unit.doors.line import Line
from tests.unit.doors.nri_runtime import LSR, container, pod
from tests.unit.doors.stand import Stand
from tests.unit.wire.golden import GOLDEN


@pytest.mark.parametrize(
    ("sandbox", "told"),
    [
        pytest.param(nri.PodSandbox(), nri.Container(), id="nothing-at-all"),
        pytest.param(nri.PodSandbox(uid="../x", name="a"), container(), id="a-uid-that-is-a-path"),
        pytest.param(nri.PodSandbox(uid="u1", name="a"), nri.Container(name="app", id="c1"), id="no-linux"),
        pytest.param(pod(parent="/"), container(parent=""), id="the-root-as-parent"),
    ],
)
def test_an_event_without_information_is_no_error(line: Callable[..., Line], sandbox: Any, told: Any) -> None:
    found = line()
    found.runtime.create(sandbox, told)
    assert all(d.target not in ("", "/") for d in found.stand.inbox.take()[0])
    assert found.stand.source.poll(1.0).pods == ()


def test_malformed_payloads_are_counted_and_change_nothing(line: Callable[..., Line]) -> None:
    found = line()
    for method in ("CreateContainer", "UpdateContainer", "StateChange", "RunPodSandbox", "Synchronize", "Configure"):
        assert found.runtime.ask_bytes(method, b"\xff\xff\xff") == (Code.OK, "", b"")
    assert found.stand.desk.figures()["hook_malformed_total{door=nri}"] == 6
    found.runtime.create(pod(), container())


def test_stream_ids_must_be_odd_and_new(line: Callable[..., Line]) -> None:
    found = line()
    for stream in (2, 1):
        found.runtime.send(mux.PLUGIN_CONN, stream, ttrpc.REQUEST, b"")
        _, frame = found.runtime.frame()
        assert ttrpc.read_answer(frame.data)[0] == Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        pytest.param(b"\x00\x00\x00\x01\xff\xff\xff\xff", "at most", id="oversized-frame"),
        pytest.param(
            b"\x00\x00\x00\x01\x00\x00\x00\x0a" + ttrpc.head(1 << 30, 1, ttrpc.REQUEST),
            "at most",
            id="oversized-message",
        ),
        pytest.param(
            b"\x00\x00\x00\x01\x00\x00\x00\x0a" + ttrpc.head(0, 99, ttrpc.RESPONSE), "frame of type 2", id="wrong-type"
        ),
    ],
)
def test_what_cannot_be_followed_ends_the_connection(line: Callable[..., Line], sent: bytes, reason: str) -> None:
    found = line()
    found.runtime.socket.sendall(sent)
    assert reason in found.ended()


def test_a_refused_registration_ends_it_with_the_runtimes_words(line: Callable[..., Line]) -> None:
    found = line(shake=False)
    found.runtime.frame()
    found.runtime.send(mux.RUNTIME_CONN, 1, ttrpc.RESPONSE, ttrpc.write_error(Code.UNKNOWN, "invalid plugin index"))
    assert found.ended() == "registration refused: invalid plugin index"


def test_a_zombie_connection_is_left(line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered but never synchronized: older runtimes keep the socket open and never call."""
    monkeypatch.setattr("koordlet.doors.nri_session.REGISTER_S", -0.9)  # leaves 0.1 s
    found = line(shake=False)
    found.runtime.frame()  # the registration, which is never answered
    assert "in time" in found.ended()


def test_a_message_that_stays_incomplete_ends_it(line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordlet.doors.nri_session.STALL_S", 0.05)
    found = line()
    found.runtime.socket.sendall(GOLDEN["G7"][:40])
    assert found.ended() == "a message stayed incomplete"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=6), st.integers(0, 2**31))
def test_garbage_ends_the_connection_or_is_answered_but_never_stops_the_agent(chunks: list[bytes], seed: int) -> None:
    stand = Stand()
    found = Line(stand)
    found.runtime.accept()
    try:
        for chunk in chunks:
            framed = (1).to_bytes(4, "big") + len(chunk).to_bytes(4, "big") + chunk
            found.runtime.socket.sendall(framed if seed % 2 else chunk)
    except OSError:
        pass
    found.runtime.socket.shutdown(socket.SHUT_WR)
    found.ended()
    found.close()
    again = Line(stand)
    again.runtime.handshake()
    assert again.runtime.create(pod(labels=LSR), container()).adjust.linux.resources.cpu.shares.value == 1024
    again.close()
    stand.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["CreateContainer", "UpdateContainer", "StateChange", "RunPodSandbox", "PostStartContainer"]),
    st.dictionaries(st.text(max_size=40), st.text(max_size=200), max_size=5),
    st.text(max_size=60),
    st.text(max_size=60),
)
def test_any_event_is_answered(method: str, labels: dict[str, str], uid: str, path: str) -> None:
    stand = Stand()
    found = Line(stand)
    found.runtime.handshake()
    sandbox = nri.PodSandbox(id=path, uid=uid, name=path, labels=labels, annotations=labels)
    sandbox.linux.cgroup_parent = path
    told = nri.Container(id=uid, name=path, pod_sandbox_id=path, env=[path, uid])
    told.linux.cgroups_path = path
    kind = {
        "CreateContainer": nri.CreateContainerRequest,
        "UpdateContainer": nri.UpdateContainerRequest,
        "StateChange": lambda **parts: nri.StateChangeEvent(event=7, **parts),
        "RunPodSandbox": lambda pod, container: nri.PodRequest(pod=pod),
        "PostStartContainer": nri.ContainerRequest,
    }[method]
    code, text, _ = found.runtime.ask(method, kind(pod=sandbox, container=told))
    assert (code, text) == (Code.OK, "")
    for known in stand.source.poll(1.0).pods:
        assert known.cgroup.strip("/") == known.cgroup != ""
        assert ".." not in known.cgroup.split("/")
        json.dumps(known.name)
    found.close()
    stand.close()
