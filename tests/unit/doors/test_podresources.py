"""The pod-resources proxy between real gRPC sockets: a kubelet's answers in, koordinator's devices added."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordlet.doors.http import DoorError
from koordlet.doors.podresources import PodResourcesDoor, device_ids
from koordlet.model.pod import Pod
from koordlet.model.qos import KubeQos
from koordlet.model.settings import DeviceAllocation, GpuShare, PodSettings, RdmaShare
from koordlet.wire.podresources_pb2 import GetPodResourcesResponse, ListPodResourcesResponse

UNKNOWN = b"\xfa\x3e\x05later"  # field 1007, text: of a kubelet newer than we are


def pod(name: str, devices: DeviceAllocation | None) -> Pod:
    return Pod(name, "ml", name, f"kubepods/pod{name}", KubeQos.BURSTABLE, settings=PodSettings(devices=devices))


PODS = (
    pod("train", DeviceAllocation((GpuShare(0, id="GPU-a"), GpuShare(1)), (RdmaShare(("0000:3b:00.2",)),))),
    pod("plain", None),
    pod("native", DeviceAllocation((GpuShare(0, id="GPU-k"),))),
)


def answer() -> bytes:
    found = ListPodResourcesResponse()
    for name in ("plain", "train", "native", "stranger", "empty"):
        row = found.pod_resources.add(name=name, namespace="ml")
        for container in ("main", "side") if name != "empty" else ():
            row.containers.add(name=container)
    found.pod_resources[2].containers[0].devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-k"])
    found.pod_resources[1].containers[0].devices.add(resource_name="a.com/nic", device_ids=["n"])
    return found.SerializeToString() + UNKNOWN


class Kubelet:
    def __init__(self, path: Path) -> None:
        self.calls: list[str] = []
        self.error: grpc.StatusCode | None = None
        self.server = grpc.server(ThreadPoolExecutor(1))
        calls = {name: self._call(name) for name in ("List", "Get", "GetAllocatableResources")}
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", calls)
        self.server.add_generic_rpc_handlers((handler,))
        self.server.add_insecure_port(f"unix:{path}")
        self.server.start()

    def _call(self, name: str) -> Any:
        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append(name)
            if self.error is not None:
                context.abort(self.error, "not today")
            if name == "List":
                return answer()
            if name == "Get":
                row = ListPodResourcesResponse.FromString(answer()).pod_resources[1]
                return GetPodResourcesResponse(pod_resources=row).SerializeToString()
            return b"anything at all"

        return grpc.unary_unary_rpc_method_handler(serve)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[tuple[Kubelet, PodResourcesDoor, grpc.Channel]]:
    kubelet = Kubelet(tmp_path / "kubelet.sock")
    door = PodResourcesDoor(
        str(tmp_path / "proxy/kubelet.sock"), str(tmp_path / "kubelet.sock"), lambda: PODS, lambda: {1: "GPU-b"}
    )
    door.start()
    channel = grpc.insecure_channel(f"unix:{tmp_path}/proxy/kubelet.sock")
    yield kubelet, door, channel
    channel.close()
    door.close()
    kubelet.server.stop(None).wait()


def ask(channel: grpc.Channel, method: str, request: bytes = b"") -> bytes:
    call: Any = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
    found: bytes = call(request, timeout=10)
    return found


def devices(row: Any) -> list[list[tuple[str, list[str]]]]:
    return [[(d.resource_name, list(d.device_ids)) for d in container.devices] for container in row.containers]


def test_list_adds_what_koordinator_gave_and_keeps_all_else(
    rig: tuple[Kubelet, PodResourcesDoor, grpc.Channel],
) -> None:
    body = ask(rig[2], "List")
    found = {row.name: devices(row) for row in ListPodResourcesResponse.FromString(body).pod_resources}
    assert found["train"] == [
        [("a.com/nic", ["n"]), ("koordinator.sh/rdma", ["0000:3b:00.2"]), ("nvidia.com/gpu", ["GPU-a", "GPU-b"])],
        [],
    ]
    assert found["plain"] == found["stranger"] == [[], []]
    assert found["native"] == [[("nvidia.com/gpu", ["GPU-k"])], []]  # the kubelet knew it already
    assert found["empty"] == []
    assert UNKNOWN in body


def test_get_is_augmented_too(rig: tuple[Kubelet, PodResourcesDoor, grpc.Channel]) -> None:
    found = GetPodResourcesResponse.FromString(ask(rig[2], "Get")).pod_resources
    assert devices(found)[0][2] == ("nvidia.com/gpu", ["GPU-a", "GPU-b"])


def test_allocatable_passes_through_unread(rig: tuple[Kubelet, PodResourcesDoor, grpc.Channel]) -> None:
    assert ask(rig[2], "GetAllocatableResources") == b"anything at all"


def test_a_kubelets_refusal_is_passed_on(rig: tuple[Kubelet, PodResourcesDoor, grpc.Channel]) -> None:
    rig[0].error = grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError) as raised:
        ask(rig[2], "List")
    failed: Any = raised.value
    assert (failed.code(), failed.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "kubelet: not today")
    rig[0].error = None
    assert ask(rig[2], "List")


def test_without_a_kubelet_the_call_fails_and_the_proxy_lives(tmp_path: Path) -> None:
    door = PodResourcesDoor(str(tmp_path / "p/kubelet.sock"), str(tmp_path / "none.sock"), lambda: PODS)
    door.start()
    channel = grpc.insecure_channel(f"unix:{tmp_path}/p/kubelet.sock")
    try:
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as raised:
                ask(channel, "List")
            failed: Any = raised.value
            assert failed.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        channel.close()
        door.close()
    assert not (tmp_path / "p/kubelet.sock").exists()


def test_the_socket_is_nobody_elses(rig: tuple[Kubelet, PodResourcesDoor, grpc.Channel], tmp_path: Path) -> None:
    assert (tmp_path / "proxy/kubelet.sock").stat().st_mode & 0o077 == 0
    with pytest.raises(DoorError, match="-pod-resources-proxy-path="):
        PodResourcesDoor(str(tmp_path / "proxy/kubelet.sock"), "", lambda: ()).start()
    assert ask(rig[2], "List")


def test_ids_that_nobody_knows_are_left_out() -> None:
    assert device_ids(PODS[0], {}) == [("nvidia.com/gpu", ["GPU-a"]), ("koordinator.sh/rdma", ["0000:3b:00.2"])]
    assert device_ids(pod("x", DeviceAllocation((GpuShare(3),))), {}) == []
    assert device_ids(PODS[1], {}) == []
