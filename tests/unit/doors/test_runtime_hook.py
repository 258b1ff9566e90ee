"""The gRPC door against a real gRPC client whose messages come from the .proto, not from the generated code."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordlet.doors.http import DoorError
from koordlet.doors.registration import Registration
from koordlet.doors.runtime_hook import RuntimeHookDoor
from koordlet.model.cpuset import CpuSet
from koordlet.model.podevent import Hook, LinuxResources, PodAnswer, PodEvent
from tests.unit.doors.stand import Blocked, Stand
from tests.unit.wire.golden import GOLDEN

ROOT = Path(__file__).parents[3]
SERVICE = "runtime.v1alpha1.RuntimeHookService"
STAGES = ("PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")


class Peer:
    """koord-runtime-proxy's side. Requests are dicts, replies messages of their own descriptor pool."""

    def __init__(self, path: Path, methods: dict[str, tuple[Any, Any]]) -> None:
        self._methods = methods
        self._channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])

    def __call__(self, method: str, limit_s: float = 10.0, **fields: Any) -> Any:
        request, reply = self._methods[method]
        call = self._channel.unary_unary(f"/{SERVICE}/{method}", request.SerializeToString, reply.FromString)
        return call(request(**fields), timeout=limit_s, wait_for_ready=True)

    def raw(self, method: str, data: bytes) -> bytes:
        answer: bytes = self._channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=10.0, wait_for_ready=True)
        return answer

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Compiled here and now, so that .proto and checked-in code are compared as well."""
    target = tmp_path_factory.mktemp("proto") / "hook.binpb"
    words = [f"-I{ROOT / 'proto'}", f"--descriptor_set_out={target}", "koordlet/wire/hook.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], check=True)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file:
        pool.Add(file)
    return {
        method.name: (
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
        )
        for method in pool.FindServiceByName(SERVICE).methods
    }


class Open:
    def __init__(self, folder: Path, methods: dict[str, tuple[Any, Any]], stand: Stand, policy: str = "Ignore") -> None:
        self.stand, self.path = stand, folder / "k.sock"
        self.registration = Registration(folder / "hookserver.d", "/var/run/koordlet/koordlet.sock", policy, STAGES)
        self.door = RuntimeHookDoor(str(self.path), stand.teller("proxy", hold_s=30.0), self.registration)
        self.door.start()
        self.ask = Peer(self.path, methods)

    def close(self) -> None:
        self.ask.close()
        self.door.close()
        self.stand.close()


@pytest.fixture
def opened(tmp_path: Path, methods: dict[str, tuple[Any, Any]]) -> Iterator[Callable[..., Open]]:
    made: list[Open] = []

    def make(rule: Callable[[PodEvent], PodAnswer] | None = None, **desk: Any) -> Open:
        made.append(Open(tmp_path, methods, Stand(rule, **desk)))
        return made[-1]

    yield make
    for found in made:
        found.close()


POD = {"name": "p", "namespace": "ns", "uid": "u1"}
BE = {"koordinator.sh/qosClass": "BE"}


def create(**more: Any) -> dict[str, Any]:
    return {
        "pod_meta": POD,
        "container_meta": {"name": "main"},
        "pod_labels": BE,
        "pod_cgroup_parent": "/kubepods/besteffort/podu1",
        **more,
    }


def test_a_reply_is_the_request_with_what_is_wanted_changed(opened: Callable[..., Open]) -> None:
    answer = PodAnswer(
        resources=LinuxResources(cpu_shares=1024, cpu_quota_us=100000, memory_limit_bytes=1 << 30),
        env={"B": "2"},
        annotations={"y": "2"},
    )
    found = opened(lambda event: answer)
    asked = {"cpu_shares": 2, "oom_score_adj": 1000, "cpuset_cpus": "0-1", "memory_swap_limit_in_bytes": 5}
    huge = [{"page_size": "2MB", "limit": 4}]
    reply = found.ask(
        "PreCreateContainerHook",
        **create(
            container_resources={**asked, "unified": {"memory.high": "1"}, "hugepage_limits": huge},
            container_envs={"A": "1", "B": "0"},
            container_annotations={"x": "1"},
        ),
    )
    got = reply.container_resources
    assert (got.cpu_shares, got.cpu_quota, got.memory_limit_in_bytes) == (1024, 100000, 1 << 30)
    assert (got.oom_score_adj, got.cpuset_cpus, got.memory_swap_limit_in_bytes) == (1000, "0-1", 5)
    assert dict(got.unified) == {"memory.high": "1"}
    assert [(h.page_size, h.limit) for h in got.hugepage_limits] == [("2MB", 4)]
    assert dict(reply.container_envs) == {"A": "1", "B": "2"}
    assert dict(reply.container_annotations) == {"x": "1", "y": "2"}
    assert reply.pod_cgroup_parent == "/kubepods/besteffort/podu1"
    event = found.stand.events[-1]
    assert (event.hook, event.asked.cpu_shares, event.asked.cpuset) == (Hook.PRE_CREATE_CONTAINER, 2, CpuSet([0, 1]))


def test_k1_in_k2_out(opened: Callable[..., Open]) -> None:
    wanted = LinuxResources(cpu_shares=1024, cpu_quota_us=100000, memory_limit_bytes=1 << 30)
    found = opened(lambda event: PodAnswer(resources=wanted))
    assert found.ask.raw("PreCreateContainerHook", GOLDEN["K1"]) == GOLDEN["K2"]


def test_an_empty_cpu_set_clears_what_the_kubelet_pinned(opened: Callable[..., Open]) -> None:
    """W21: only here can that be said."""
    found = opened(lambda event: PodAnswer(resources=LinuxResources(cpuset=CpuSet())))
    reply = found.ask("PreCreateContainerHook", **create(container_resources={"cpuset_cpus": "0-3", "cpu_shares": 2}))
    assert (reply.container_resources.cpuset_cpus, reply.container_resources.cpu_shares) == ("", 2)


def test_a_request_without_resources_gets_some_only_when_something_is_wanted(opened: Callable[..., Open]) -> None:
    found = opened(lambda event: PodAnswer())
    assert not found.ask("PreCreateContainerHook", **create()).HasField("container_resources")
    found.stand.rule = lambda event: PodAnswer(
        resources=LinuxResources(cpu_shares=512, cpu_quota_us=-1, memory_limit_bytes=-1)
    )
    got = found.ask("PreCreateContainerHook", **create()).container_resources
    assert (got.cpu_shares, got.cpu_quota, got.memory_limit_in_bytes) == (512, -1, -1)
    assert (got.cpuset_cpus, got.oom_score_adj, got.cpu_period) == ("", 0, 0)


def test_a_pods_reply_is_its_request_and_its_values_go_to_the_loop(opened: Callable[..., Open]) -> None:
    found = opened()
    reply = found.ask(
        "PreRunPodSandboxHook",
        pod_meta=POD,
        labels=BE,
        annotations={"a": "b"},
        cgroup_parent="/kubepods/besteffort/podu1",
        resources={"cpu_shares": 7},
    )
    assert (dict(reply.labels), dict(reply.annotations), reply.resources.cpu_shares) == (BE, {"a": "b"}, 7)
    assert reply.cgroup_parent == "/kubepods/besteffort/podu1"
    decisions, _, _ = found.stand.inbox.take()
    assert [d.target for d in decisions] == ["kubepods/besteffort/podu1"]
    assert [p.uid for p in found.stand.source.poll(time.monotonic()).pods] == ["u1"]


@pytest.mark.parametrize("hook", [h for h in Hook if h is not Hook.RECONCILE])
def test_all_seven_methods_answer(opened: Callable[..., Open], hook: Hook) -> None:
    found = opened()
    if "Sandbox" in hook:
        assert dict(found.ask(f"{hook.value}Hook", pod_meta=POD, labels=BE).labels) == BE
    else:
        assert found.ask(f"{hook.value}Hook", **create(container_envs={"A": "1"})).container_envs["A"] == "1"


@pytest.mark.parametrize("parent", ["", "/", "../..", "/kubepods/../.."])
def test_empty_cgroup_parent(opened: Callable[..., Open], parent: str) -> None:
    """Case empty-cgroup-parent: nothing is wanted of the root cgroup, and the fault is named."""
    found = opened()
    reply = found.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE, cgroup_parent=parent)
    assert reply.cgroup_parent == parent
    assert all(d.target == "" for d in found.stand.inbox.take()[0])  # which the loop does not admit
    assert found.stand.source.refused == 1
    assert "names no cgroup" in found.stand.source.errors()[0]


def test_a_pod_without_a_parent_is_taken_from_what_is_known(opened: Callable[..., Open]) -> None:
    """A restarted proxy forgets parents; the view has not."""
    found = opened()
    found.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE, cgroup_parent="/kubepods/besteffort/podu1")
    known = found.stand.events[-1].pod
    found.stand.known["u1"] = known
    found.ask("PreCreateContainerHook", **create(pod_cgroup_parent=""))
    assert found.stand.events[-1].pod.kube_qos is known.kube_qos
    assert found.stand.events[-1].pod.cgroup == "kubepods/besteffort/podu1"


def test_late_and_failing_answers_echo_the_request(opened: Callable[..., Open]) -> None:
    blocked = Blocked()
    found = opened(blocked, limit_s=0.2)
    asked = create(container_resources={"cpu_shares": 2}, container_envs={"A": "1"})
    reply = found.ask("PreCreateContainerHook", **asked)
    assert (reply.container_resources.cpu_shares, dict(reply.container_envs)) == (2, {"A": "1"})
    blocked.go.set()
    found.stand.rule = lambda event: 1 // 0  # type: ignore[assignment,return-value]
    assert found.ask("PreCreateContainerHook", **asked).container_resources.cpu_shares == 2


def test_a_callers_deadline_is_kept(opened: Callable[..., Open]) -> None:
    blocked = Blocked()
    found = opened(blocked, limit_s=5.0)
    assert found.ask("PreCreateContainerHook", limit_s=0.6, **create()).pod_cgroup_parent != ""
    blocked.go.set()


def test_with_failure_policy_fail_the_call_fails(opened: Callable[..., Open]) -> None:
    found = opened(lambda event: PodAnswer(faults=("GroupIdentity: broken",)), fail=True)
    for method, fields in (("PreCreateContainerHook", create()), ("PreRunPodSandboxHook", {"pod_meta": POD})):
        with pytest.raises(grpc.RpcError) as caught:
            found.ask(method, **fields)
        assert "GroupIdentity: broken" in str(caught.value)


def test_what_the_protocol_cannot_carry_is_counted(opened: Callable[..., Open]) -> None:
    found = opened(lambda event: PodAnswer(mounts=(("/a", "/b", ()),)))
    found.ask("PreCreateContainerHook", **create())
    assert found.stand.desk.figures()["hook_undeliverable_total{door=proxy,what=mounts}"] == 1


def test_the_socket_is_roots_alone_and_goes_with_the_door(opened: Callable[..., Open]) -> None:
    found = opened()
    assert stat.S_IMODE(os.stat(found.path).st_mode) == 0o600
    found.door.close()
    assert not found.path.exists()
    assert not found.registration.path.exists()


def test_a_dead_agents_socket_is_cleared_a_living_one_is_not(
    opened: Callable[..., Open], methods: dict[str, tuple[Any, Any]], tmp_path: Path
) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "k.sock"))
    dead.close()
    opened()
    with pytest.raises(DoorError, match="another agent answers"):
        Open(tmp_path, methods, Stand())
    (tmp_path / "file").write_text("")
    with pytest.raises(DoorError, match="not a socket"):
        RuntimeHookDoor(str(tmp_path / "file"), Stand().teller("proxy")).start()


def test_somebody_who_takes_over_leaves_the_registration(opened: Callable[..., Open]) -> None:
    found = opened()
    found.door.close(stay_registered=True)
    assert json.loads(found.registration.path.read_text())["failure-policy"] == "Ignore"


def test_a_directory_that_cannot_be_written_is_told_and_the_door_stays_open(
    tmp_path: Path, methods: dict[str, tuple[Any, Any]]
) -> None:
    (tmp_path / "hookserver.d").write_text("a file, where a directory should be")
    found = Open(tmp_path, methods, Stand())
    assert "koord-runtime-proxy does not know of us" in found.door.error
    assert dict(found.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE).labels) == BE
    found.close()


def rss_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_a_thousand_connections_leave_it_healthy(opened: Callable[..., Open]) -> None:
    found = opened()
    found.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE)
    before_kb = rss_kb()
    half = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[:12]
    strangers = []
    for number in range(1000):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.settimeout(10.0)
        stranger.connect(str(found.path))
        with contextlib.suppress(OSError):  # it has hung up already
            stranger.sendall((b"GET / HTTP/1.1\r\n\r\n", half, b"\xff" * 4096, b"")[number % 4])
        strangers.append(stranger)
    assert dict(found.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE).labels) == BE
    assert rss_kb() - before_kb < 128 * 1024
    for stranger in strangers:
        stranger.close()
    assert dict(found.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE).labels) == BE


def test_an_oversized_message_is_refused(opened: Callable[..., Open]) -> None:
    found = opened()
    with pytest.raises(grpc.RpcError) as caught:
        found.ask("PreRunPodSandboxHook", pod_meta=POD, annotations={"a": "x" * (5 << 20)})
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    assert dict(found.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE).labels) == BE


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), method=st.sampled_from(["PreRunPodSandboxHook", "PreCreateContainerHook"]))
def test_garbage_in_a_call_is_refused_and_nothing_else(shared: Open, data: bytes, method: str) -> None:
    with contextlib.suppress(grpc.RpcError):  # some garbage is a message
        shared.ask.raw(method, data)
    assert dict(shared.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE).labels) == BE


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
def test_garbage_on_the_socket_leaves_the_others_alone(shared: Open, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(shared.path))
        with contextlib.suppress(OSError):
            stranger.sendall(data)
    assert dict(shared.ask("PreRunPodSandboxHook", pod_meta=POD, labels=BE).labels) == BE


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, methods: dict[str, tuple[Any, Any]]) -> Iterator[Open]:
    found = Open(tmp_path_factory.mktemp("door"), methods, Stand())
    yield found
    found.close()
