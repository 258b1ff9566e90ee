"""One NRI connection: what the plugin answers to a runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordlet.doors.desk import HookError
from koordlet.model.knob import Knob
from koordlet.model.podevent import Device, Hook, LinuxResources, PodAnswer, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.wire import mux, ttrpc
from koordlet.wire import nri_pb2 as nri
from koordlet.wire.ttrpc import Code
from tests.hosts.cases import case_json
from tests.unit.doors.line import Line
from tests.unit.doors.nri_runtime import LSR, PLUGIN, container, pod
from tests.unit.doors.stand import Blocked, Stand
from tests.unit.wire.golden import GOLDEN

BE = {"koordinator.sh/qosClass": "BE"}


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
