"""One NRI connection: what the plugin answers to a runtime, and what it does with one that talks rubbish."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordlet.doors.desk import HookError
from koordlet.doors.nri_identity import Identity
from koordlet.doors.nri_session import Session
from koordlet.model.knob import Knob
from koordlet.model.podevent import Device, Hook, LinuxResources, PodAnswer, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.wire import mux, ttrpc
from koordlet.wire import nri_pb2 as nri
from koordlet.wire.ttrpc import Code
from tests.hosts.cases import case_json
from tests.unit.doors.nri_runtime import PLUGIN, Runtime, container, pod
from tests.unit.doors.stand import Blocked, Stand
from tests.unit.wire.golden import GOLDEN

LSR = {"koordinator.sh/qosClass": "LSR"}
BE = {"koordinator.sh/qosClass": "BE"}


class Line:
    """A session on its own thread and the runtime at the other end. `end` is why it ended."""

    def __init__(self, stand: Stand, **more: Any) -> None:
        ours, theirs = socket.socketpair()
        self.stand, self.runtime, self.end = stand, Runtime(theirs), ""
        self.session = Session(ours, Identity("koordlet_nri", "00"), stand.teller(), **more)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.end = self.session.run()

    def ended(self) -> str:
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        return self.end

    def close(self) -> None:
        self.runtime.close()
        self.session.close()
        self.ended()


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    made: list[Line] = []

    def make(rule: Callable[[PodEvent], PodAnswer] | None = None, *, shake: bool = True, **desk: Any) -> Line:
        made.append(Line(Stand(rule, **desk)))
        if shake:
            made[-1].runtime.handshake()
        return made[-1]

    yield make
    for found in made:
        found.close()
        found.stand.close()


def test_it_registers_configures_and_synchronizes(line: Callable[..., Line]) -> None:
    found = line(shake=False)
    found.runtime.accept()
    assert found.runtime.registered is not None
    assert (found.runtime.registered.plugin_name, found.runtime.registered.plugin_idx) == ("koordlet_nri", "00")
    assert found.runtime.configure() == 0x4CF
    assert not found.session.synchronized
    assert found.runtime.synchronize() == nri.SynchronizeResponse()
    found.runtime.create(pod(), container())  # the answer comes after the session knows that it is in use
    assert found.session.synchronized


def test_the_runtimes_own_bytes_are_understood(line: Callable[..., Line]) -> None:
    """G3 in, as a runtime sends it; then G7."""
    found = line(shake=False)
    found.runtime.accept()
    found.runtime.socket.sendall(GOLDEN["G3"])
    conn, frame = found.runtime.frame()
    assert (conn, frame.stream) == (1, 1)
    assert nri.ConfigureResponse.FromString(ttrpc.read_answer(frame.data)[2]).events == 0x4CF
    found.runtime.socket.sendall(GOLDEN["G7"])
    _, frame = found.runtime.frame()
    assert frame.data == b""
    assert [(event.hook, event.pod.uid) for event in found.stand.events] == [(Hook.PRE_RUN_POD_SANDBOX, "u1")]


def test_w47_the_runtimes_streams_are_odd_and_grow(line: Callable[..., Line]) -> None:
    """Each call is answered on its own stream; one that is even or was there before is refused on it."""
    runtime = line(shake=False).runtime
    runtime.accept()

    def answered(stream: int, method: str, message: Any) -> Code | int:
        call = ttrpc.write_call(ttrpc.Call(PLUGIN, method, message.SerializeToString(), 2.0))
        runtime.send(mux.PLUGIN_CONN, stream, ttrpc.REQUEST, call)
        conn, frame = runtime.frame()
        assert (conn, frame.stream, frame.kind) == (mux.PLUGIN_CONN, stream, ttrpc.RESPONSE)
        return ttrpc.read_answer(frame.data)[0]

    configure = nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.4.2", NRI_version="v0.12.0")
    assert answered(1, "Configure", configure) == 0
    for stream, more in ((3, True), (5, True), (7, False)):
        assert answered(stream, "Synchronize", nri.SynchronizeRequest(more=more)) == 0
    assert answered(9, "CreateContainer", nri.CreateContainerRequest(pod=pod(), container=container())) == 0
    for stream in (9, 10):
        refused = answered(stream, "CreateContainer", nri.CreateContainerRequest(pod=pod(), container=container()))
        assert refused == Code.INVALID_ARGUMENT


def test_synchronize_comes_in_chunks(line: Callable[..., Line]) -> None:
    found = line(shake=False)
    runtime = found.runtime
    runtime.accept()
    runtime.configure()
    for number in range(3):
        uid = f"u{number}"
        parent = f"/kubepods/burstable/pod{uid}"
        parts = [pod(f"p{number}", parent, uid)], [container("app", f"c{number}", uid, parent)]
        assert runtime.synchronize(*parts, more=True) == nri.SynchronizeResponse(more=True)
        assert found.stand.source.poll(1.0).pods == ()
    assert runtime.synchronize() == nri.SynchronizeResponse()
    pods = found.stand.source.poll(1.0).pods
    assert [(p.name, p.cgroup, p.containers[0].id) for p in pods] == [
        (f"p{n}", f"kubepods/burstable/podu{n}", f"containerd://c{n}") for n in range(3)
    ]
    assert found.stand.inbox.take() == ([], [], True)


def test_a_large_synchronize_chunk_is_taken(line: Callable[..., Line]) -> None:
    found = line(shake=False)
    found.runtime.accept()
    found.runtime.configure()
    big = [pod(f"p{n}", f"/kubepods/podu{n}", f"u{n}", annotations={"a": "x" * 50_000}) for n in range(80)]
    assert found.runtime.synchronize(big, more=True).more
    found.runtime.synchronize()
    assert len(found.stand.source.poll(1.0).pods) == 80


def test_a_containers_values_travel_in_the_reply(line: Callable[..., Line]) -> None:
    found = line()
    sandbox = pod(labels=LSR, annotations={"scheduling.koordinator.sh/resource-status": '{"cpuset":"4-7"}'})
    reply = found.runtime.create(sandbox, container())
    cpu = reply.adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.quota.value, cpu.shares.value) == ("4-7", -1, 1024)
    assert not reply.adjust.linux.resources.HasField("memory")
    event = found.stand.events[-1]
    assert event.container is not None
    assert (event.container.name, event.cgroup) == ("app", "kubepods/burstable/podu1/c1")
    assert (event.pod.qos, event.pod.kube_qos) == (Qos.LSR, KubeQos.BURSTABLE)


def test_what_is_not_wanted_is_not_set(line: Callable[..., Line]) -> None:
    found = line(lambda event: PodAnswer())
    assert found.runtime.create(pod(), container()) == nri.CreateContainerResponse()


def test_unlimited_memory_and_an_empty_cpu_set_cannot_be_said(line: Callable[..., Line]) -> None:
    found = line(lambda event: PodAnswer(resources=LinuxResources(memory_limit_bytes=-1, cpu_quota_us=-1)))
    resources = found.runtime.create(pod(), container()).adjust.linux.resources
    assert resources.cpu.quota.value == -1
    assert not resources.HasField("memory")


def test_env_devices_and_mounts_are_adjusted(line: Callable[..., Line]) -> None:
    answer = PodAnswer(
        env={"NVIDIA_VISIBLE_DEVICES": "0,1"},
        devices=(Device("/dev/infiniband/rdma_cm", "c", 10, 58, 0o666),),
        mounts=(("/usr/local/vgpu", "/vgpu", ("ro", "rbind")),),
    )
    adjust = line(lambda event: answer).runtime.create(pod(), container()).adjust
    assert [(e.key, e.value) for e in adjust.env] == [("NVIDIA_VISIBLE_DEVICES", "0,1")]
    assert (adjust.linux.devices[0].path, adjust.linux.devices[0].file_mode.value) == ("/dev/infiniband/rdma_cm", 0o666)
    assert (adjust.mounts[0].source, adjust.mounts[0].destination) == ("/usr/local/vgpu", "/vgpu")


def test_an_update_names_its_container_and_starts_from_what_is_asked(line: Callable[..., Line]) -> None:
    """koordinator #3129: an update without an id is ignored; the present values are adjusted ones."""
    found = line()
    present = container()
    present.linux.resources.cpu.shares.value = 9
    asked = nri.LinuxResources(cpu=nri.LinuxCPU(quota=nri.OptionalInt64(value=400000)))
    request = nri.UpdateContainerRequest(pod=pod(labels=LSR), container=present, linux_resources=asked)
    code, _, payload = found.runtime.ask("UpdateContainer", request)
    reply = nri.UpdateContainerResponse.FromString(payload)
    assert code == Code.OK
    assert [(u.container_id, u.linux.resources.cpu.shares.value) for u in reply.update] == [("c1", 1024)]
    assert found.stand.events[-1].asked == LinuxResources(cpu_quota_us=400000)


def test_an_update_with_nothing_to_say_is_empty(line: Callable[..., Line]) -> None:
    found = line(lambda event: PodAnswer())
    request = nri.UpdateContainerRequest(pod=pod(), container=container())
    assert found.runtime.ask("UpdateContainer", request) == (Code.OK, "", b"")


@pytest.mark.parametrize("style", ["one method per event", "StateChange"])
def test_a_pods_life_is_followed(line: Callable[..., Line], style: str) -> None:
    found = line()

    def tell(name: str, number: int, **what: Any) -> None:
        if style == "StateChange":
            answer = found.runtime.ask("StateChange", nri.StateChangeEvent(event=number, **what))
        else:
            kind = nri.ContainerRequest if "container" in what else nri.PodRequest
            answer = found.runtime.ask(name, kind(**what))
        assert answer == (Code.OK, "", b"")

    sandbox, started, sandbox_group = pod(labels=BE), container(), "kubepods/burstable/podu1"
    started.pid = 4711
    tell("RunPodSandbox", 1, pod=sandbox)
    found.runtime.create(sandbox, container())
    assert not found.stand.source.poll(1.0).pods[0].containers[0].running
    tell("PostStartContainer", 7, pod=sandbox, container=started)
    assert found.stand.source.poll(1.0).pods[0].containers[0].running
    assert [(e.hook, e.pid) for e in found.stand.events] == [
        (Hook.PRE_RUN_POD_SANDBOX, None),
        (Hook.PRE_CREATE_CONTAINER, None),
        (Hook.POST_START_CONTAINER, 4711),
    ]
    tell("RemoveContainer", 11, pod=sandbox, container=started)
    assert found.stand.source.poll(1.0).pods[0].containers == ()
    tell("StopPodSandbox", 2, pod=sandbox)
    assert (found.stand.events[-1].hook, found.stand.events[-1].cgroup) == (Hook.POST_STOP_POD_SANDBOX, sandbox_group)
    assert found.stand.source.poll(1.0).pods == ()
    tell("RemovePodSandbox", 3, pod=sandbox)
    assert found.stand.source.poll(1.0).pods == ()
    decisions, _, _ = found.stand.inbox.take()
    assert {(d.target, d.knob) for d in decisions} == {(sandbox_group, Knob.CPU_SHARES)}


def test_the_end_of_an_older_sandbox_is_not_the_pods(line: Callable[..., Line]) -> None:
    found = line()
    for number in ("sb-1", "sb-2"):
        sandbox = pod()
        sandbox.id = number
        found.runtime.ask("RunPodSandbox", nri.PodRequest(pod=sandbox))
    sandbox.id = "sb-1"
    found.runtime.ask("StopPodSandbox", nri.PodRequest(pod=sandbox))
    assert {event.hook for event in found.stand.events} == {Hook.PRE_RUN_POD_SANDBOX}
    assert len(found.stand.source.poll(1.0).pods) == 1


def test_what_nobody_subscribed_to_is_answered_with_nothing(line: Callable[..., Line]) -> None:
    found = line()
    for method in ("StopContainer", "ValidateContainerAdjustment", "PostUpdatePodSandbox", "Shutdown"):
        assert found.runtime.ask(method, nri.Empty()) == (Code.OK, "", b"")
    assert found.runtime.ask("StateChange", nri.StateChangeEvent(event=99)) == (Code.OK, "", b"")


def test_an_unknown_method_is_unimplemented(line: Callable[..., Line]) -> None:
    assert line().runtime.ask("Fly", nri.Empty())[0] == Code.UNIMPLEMENTED


def test_stages_that_are_disabled_are_not_subscribed_to() -> None:
    stand = Stand(disabled=frozenset({Hook.PRE_CREATE_CONTAINER}))
    found = Line(stand, disabled=frozenset({Hook.PRE_CREATE_CONTAINER}))
    found.runtime.accept()
    assert found.runtime.configure() == 0x4CF & ~0x8
    found.runtime.synchronize()
    assert found.runtime.create(pod(labels=LSR), container()) == nri.CreateContainerResponse()
    assert stand.events == []
    found.close()


def test_the_two_second_budget(line: Callable[..., Line]) -> None:
    """nri-two-second-budget: a blocked rule costs the pod its adjustment, not the node its plugin."""
    blocked = Blocked()
    found, expected = line(blocked, limit_s=0.2), case_json("nri-two-second-budget")
    event = case_json("nri-two-second-budget", "event.json")
    told = event["pod"]
    sandbox = pod(
        told["name"], told["linux"]["cgroup_parent"], "u2", labels=told["labels"], annotations=told["annotations"]
    )
    app = container(event["container"]["name"], event["container"]["id"], "u2", told["linux"]["cgroup_parent"])
    assert found.runtime.create(sandbox, app) == nri.CreateContainerResponse()
    found.stand.rule = Stand().rule
    cpu = found.runtime.create(sandbox, app).adjust.linux.resources.cpu  # answered from the event itself
    assert (cpu.cpus, cpu.quota.value) == (expected["cpuset"], expected["cpu_quota"])
    assert (found.end == "") is expected["connection_open"]
    assert found.stand.timed[0] == ("PreCreateContainer", "failed")
    assert found.stand.desk.figures()["hook_late_total{door=nri}"] == 1
    blocked.go.set()


def test_a_rule_that_raises_changes_nothing(line: Callable[..., Line]) -> None:
    def broken(event: PodEvent) -> PodAnswer:
        raise RuntimeError("boom")

    found = line(broken)
    assert found.runtime.create(pod(), container()) == nri.CreateContainerResponse()
    assert found.stand.timed == [("PreCreateContainer", "failed")]


def test_with_failure_policy_fail_the_pod_fails_with_the_reason(line: Callable[..., Line]) -> None:
    found = line(lambda event: PodAnswer(faults=("CPUSetAllocator: no such CPU",)), fail=True)
    request = nri.CreateContainerRequest(pod=pod(), container=container())
    assert found.runtime.ask("CreateContainer", request)[:2] == (Code.UNKNOWN, "CPUSetAllocator: no such CPU")
    with pytest.raises(HookError):
        found.stand.desk.ask(found.stand.events[0], "nri")


def test_an_agent_that_observes_changes_nothing(line: Callable[..., Line]) -> None:
    found = line(observe=True)
    assert found.runtime.create(pod(labels=LSR), container()) == nri.CreateContainerResponse()
    assert found.stand.events != []
    assert found.stand.inbox.take()[:2] == ([], [])


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
