"""mux and ttrpc framing against the golden frames, at every cut, and under garbage."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.wire import mux, ttrpc
from koordlet.wire.mux import MuxError, MuxReader, frames
from koordlet.wire.nri_pb2 import (
    ConfigureRequest,
    ConfigureResponse,
    ContainerUpdate,
    CreateContainerResponse,
    KeyValue,
    LinuxDevice,
    OptionalFileMode,
    OptionalInt64,
    RegisterPluginRequest,
    StateChangeEvent,
    SynchronizeResponse,
    UpdateContainerResponse,
)
from koordlet.wire.ttrpc import Call, Code, FrameReader, TtrpcError
from tests.unit.wire.golden import GOLDEN

PLUGIN, RUNTIME = "nri.pkg.api.v1alpha1.Plugin", "nri.pkg.api.v1alpha1.Runtime"


def heard(*chunks: bytes) -> list[tuple[int, ttrpc.Frame]]:
    """What a peer's bytes mean, in whatever chunks they come."""
    reader, streams = MuxReader(), {mux.PLUGIN_CONN: FrameReader(), mux.RUNTIME_CONN: FrameReader()}
    return [
        (conn, frame)
        for chunk in chunks
        for conn, piece in reader.feed(chunk)
        if conn in streams
        for frame in streams[conn].feed(piece)
    ]


def message(conn: int, stream: int, kind: int, data: bytes) -> bytes:
    return frames(conn, ttrpc.head(len(data), stream, kind), data)


def in_one_frame(sent: bytes) -> bytes:
    """The golden frames have head and data in one mux frame."""
    conn, body = sent[:4], b"".join(piece for _, piece in MuxReader().feed(sent))
    return conn + len(body).to_bytes(4, "big") + body


def answer(stream: int, payload: bytes) -> bytes:
    return in_one_frame(message(mux.PLUGIN_CONN, stream, ttrpc.RESPONSE, ttrpc.write_answer(payload)))


def test_g1_registration() -> None:
    register = RegisterPluginRequest(plugin_name="koordlet_nri", plugin_idx="00")
    data = ttrpc.write_call(Call(RUNTIME, "RegisterPlugin", register.SerializeToString(), 5.0))
    assert in_one_frame(message(mux.RUNTIME_CONN, 1, ttrpc.REQUEST, data)) == GOLDEN["G1"]


def test_g2_an_empty_answer() -> None:
    ((conn, frame),) = heard(GOLDEN["G2"])
    assert (conn, frame.stream, frame.kind) == (mux.RUNTIME_CONN, 1, ttrpc.RESPONSE)
    assert ttrpc.read_answer(frame.data) == (Code.OK, "", b"")


def test_g3_configure() -> None:
    ((conn, frame),) = heard(GOLDEN["G3"])
    call = ttrpc.read_call(frame.data)
    assert (conn, frame.stream) == (mux.PLUGIN_CONN, 1)
    assert (call.service, call.method, call.limit_s) == (PLUGIN, "Configure", 2.0)
    told = ConfigureRequest.FromString(call.payload)
    assert (told.runtime_name, told.runtime_version, told.NRI_version) == ("containerd", "v2.3.0", "v0.12.0")
    assert (told.registration_timeout, told.request_timeout) == (5000, 2000)


def test_g4_the_event_mask() -> None:
    assert answer(1, ConfigureResponse(events=0x8D).SerializeToString()) == GOLDEN["G4"]


def test_g5_synchronize_answers() -> None:
    assert answer(3, SynchronizeResponse(more=True).SerializeToString()) == GOLDEN["G5a"]
    assert answer(3, SynchronizeResponse().SerializeToString()) == GOLDEN["G5b"]


def test_g6_an_unknown_method() -> None:
    data = ttrpc.write_error(Code.UNIMPLEMENTED, "method PostStartContainer")
    assert in_one_frame(message(mux.PLUGIN_CONN, 5, ttrpc.RESPONSE, data)) == GOLDEN["G6"]
    ((_, frame),) = heard(GOLDEN["G6"])
    assert ttrpc.read_answer(frame.data)[:2] == (Code.UNIMPLEMENTED, "method PostStartContainer")


def test_g7_a_state_change() -> None:
    ((_, frame),) = heard(GOLDEN["G7"])
    call = ttrpc.read_call(frame.data)
    event = StateChangeEvent.FromString(call.payload)
    assert (call.method, event.event, event.pod.id, event.pod.uid) == ("StateChange", 1, "sb1", "u1")
    assert event.pod.linux.cgroup_parent == "/kubepods.slice"


def test_g8_an_adjustment() -> None:
    reply = CreateContainerResponse()
    resources = reply.adjust.linux.resources
    resources.cpu.shares.value = 1024
    resources.cpu.quota.value = -1
    resources.memory.limit.value = 2 << 30
    assert answer(9, reply.SerializeToString()) == GOLDEN["G8"]


def test_g9_an_update() -> None:
    reply = UpdateContainerResponse(update=[ContainerUpdate(container_id="c1")])
    reply.update[0].linux.resources.cpu.cpus = "0-3"
    assert answer(11, reply.SerializeToString()) == GOLDEN["G9"]


def test_g10_a_message_goes_out_in_two_frames() -> None:
    sent = message(mux.PLUGIN_CONN, 5, ttrpc.RESPONSE, bytes(5000))
    first, second = sent[:18], sent[18:]
    assert first == bytes.fromhex("00000001 0000000a 00001388 00000005 0200")
    assert second == bytes.fromhex("00000001 00001388") + bytes(5000)


@pytest.mark.parametrize(("length", "lengths"), [(4087, [10, 4087]), (0, [10])], ids=["W44-two", "W44-one"])
def test_w44_frames_of_a_reply(length: int, lengths: list[int]) -> None:
    sent, found = message(1, 3, ttrpc.RESPONSE, bytes(length)), []
    while sent:
        size = int.from_bytes(sent[4:8], "big")
        found.append(size)
        sent = sent[8 + size :]
    assert found == lengths


def test_payloads_without_a_frame() -> None:
    update = UpdateContainerResponse(update=[ContainerUpdate(container_id="c1")])
    update.update[0].linux.resources.cpu.quota.SetInParent()
    assert update.SerializeToString() == GOLDEN["zero-quota"]
    env = CreateContainerResponse()
    env.adjust.env.append(KeyValue(key="NVIDIA_VISIBLE_DEVICES", value="0,1"))
    assert env.SerializeToString() == GOLDEN["env"]
    device = CreateContainerResponse()
    mode = OptionalFileMode(value=0o666)
    node = LinuxDevice(path="/dev/infiniband/rdma_cm", type="c", major=10, minor=58, file_mode=mode)
    device.adjust.linux.devices.append(node)
    assert device.SerializeToString() == GOLDEN["device"]
    assert OptionalInt64(value=-1).SerializeToString() == bytes.fromhex("08ffffffffffffffffff01")


def test_w45_a_frame_cut_anywhere_is_the_same_request() -> None:
    whole = heard(GOLDEN["G1"])
    body = GOLDEN["G1"][8:]
    for cut in range(1, len(body)):
        parts = [(2).to_bytes(4, "big") + len(p).to_bytes(4, "big") + p for p in (body[:cut], body[cut:])]
        assert heard(*parts) == whole
    for cut in range(1, len(GOLDEN["G1"])):
        assert heard(GOLDEN["G1"][:cut], GOLDEN["G1"][cut:]) == whole
    assert heard(*(GOLDEN["G1"][i : i + 1] for i in range(len(GOLDEN["G1"])))) == whole


def test_w46_unknown_connections_are_ignored() -> None:
    strange = [bytes.fromhex(f"0000000{conn} 00000003 ffffff") for conn in (0, 7)]
    assert heard(GOLDEN["G3"] + strange[0] + strange[1] + GOLDEN["G7"]) == heard(GOLDEN["G3"], GOLDEN["G7"])


def test_streams_of_two_connections_do_not_mix() -> None:
    a, b = GOLDEN["G3"][8:], GOLDEN["G2"][8:]
    sent = (
        b"".join(
            conn.to_bytes(4, "big") + b"\x00\x00\x00\x05" + piece
            for conn, piece in [(1, a[:5]), (2, b[:5]), (1, a[5:10]), (2, b[5:10])]
        )
        + (1).to_bytes(4, "big")
        + len(a[10:]).to_bytes(4, "big")
        + a[10:]
    )
    assert sorted(conn for conn, _ in heard(sent)) == [1, 2]


@pytest.mark.parametrize("size", [(1 << 24) + 1, (1 << 32) - 1])
def test_a_mux_frame_that_is_too_large_ends_it(size: int) -> None:
    with pytest.raises(MuxError, match="at most"):
        list(MuxReader().feed((1).to_bytes(4, "big") + size.to_bytes(4, "big")))


def test_a_message_that_is_too_large_ends_it() -> None:
    with pytest.raises(TtrpcError, match="at most"):
        heard(message(1, 1, ttrpc.REQUEST, b"")[:8] + ttrpc.head((4 << 20) + 1, 1, ttrpc.REQUEST))


def test_an_answer_that_is_too_large_becomes_an_error() -> None:
    code, text, _ = ttrpc.read_answer(ttrpc.write_answer(bytes((4 << 20) + 1)))
    assert code == Code.RESOURCE_EXHAUSTED
    assert "too large" in text


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_garbage_never_makes_it_hold_more_than_was_sent(chunks: list[bytes]) -> None:
    try:
        found = heard(*chunks)
    except (MuxError, TtrpcError):
        return
    assert sum(len(frame.data) for _, frame in found) <= sum(map(len, chunks))


@given(st.binary(max_size=400))
def test_garbage_in_the_envelope_is_an_error_and_nothing_else(data: bytes) -> None:
    for read in (ttrpc.read_call, ttrpc.read_answer):
        with suppress(TtrpcError):
            read(data)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 2**32 - 1), st.binary(max_size=9000)), max_size=8),
    st.data(),
)
def test_what_is_written_is_read_back_at_any_cut(sent: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(message(conn, number, ttrpc.REQUEST, body) for conn, number, body in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    found = [(conn, frame.stream, frame.data) for conn, frame in heard(*chunks)]
    assert found == sent
