"""The kubelet's PodResources v1 socket once more, with the devices that koordinator gave to pods (gate
PodResourcesProxy): exporters that ask here see whose a GPU is, which the kubelet does not know.

The kubelet's answers pass through, fields that we do not know included. beyond: the pods come from memory, not from a
request per call; Get is augmented as List is; a virtual function's device is not lost; no device has an empty name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import grpc
import structlog

from koordlet.doors.http import DoorError
from koordlet.doors.unixsocket import SocketTakenError, clear_stale
from koordlet.model.pod import Pod
from koordlet.wire.podresources_pb2 import (
    ContainerDevices,
    GetPodResourcesRequest,
    GetPodResourcesResponse,
    ListPodResourcesResponse,
    PodResources,
)

log = structlog.get_logger(__name__)

SERVICE: Final = "v1.PodResourcesLister"
GPU_NAME: Final = "nvidia.com/gpu"
RDMA_NAME: Final = "koordinator.sh/rdma"
MAX_BYTES: Final = 16 << 20
ANSWER_S: Final = 10.0
WORKERS: Final = 2
MAX_CALLS: Final = 16
STOP_S: Final = 0.5

GpuIds = Callable[[], Mapping[int, str]]
"""GPU minor -> UUID, of the node's own devices."""


class PodResourcesDoor:
    """path: of our socket. kubelet: of the kubelet's. pods: those known now. Raises DoorError from `start`."""

    def __init__(self, path: str, kubelet: str, pods: Callable[[], Iterable[Pod]], gpu_ids: GpuIds = dict) -> None:
        self._path, self._kubelet, self._pods, self._gpu_ids = path, kubelet, pods, gpu_ids
        self._server: grpc.Server | None = None
        self._channel: grpc.Channel | None = None
        self._workers: ThreadPoolExecutor | None = None

    def start(self) -> None:
        flag = f"-pod-resources-proxy-path={os.path.dirname(self._path)}"
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
            clear_stale(self._path)
        except SocketTakenError as error:
            raise DoorError(f"{flag}: {error}") from error
        except OSError as error:
            raise DoorError(f"{flag}: {error.strerror}") from error
        options = [("grpc.max_receive_message_length", MAX_BYTES), ("grpc.max_send_message_length", MAX_BYTES)]
        # The kubelet's own server speaks no proxy and needs no name: only the path counts.
        self._channel = grpc.insecure_channel(
            f"unix:{self._kubelet}", options=[*options, ("grpc.default_authority", "localhost")]
        )
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="door-podresources")
        server = grpc.server(
            self._workers, options=[*options, ("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=MAX_CALLS
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        before = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as error:
            self.close()
            raise DoorError(f"{flag}: cannot listen; is the path too long?") from error
        finally:
            os.umask(before)
        server.start()
        self._server = server
        log.info("podresources.listening", socket=self._path)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(STOP_S).wait(2 * STOP_S)
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        if self._channel is not None:
            self._channel.close()
        self._server = self._workers = self._channel = None

    def _handlers(self) -> grpc.GenericRpcHandler:
        def list_pods(request: bytes, context: grpc.ServicerContext) -> bytes:
            found = ListPodResourcesResponse.FromString(self._ask("List", request, context))
            self._augment(found.pod_resources)
            return found.SerializeToString()

        def get_pod(request: bytes, context: grpc.ServicerContext) -> bytes:
            asked = GetPodResourcesRequest.FromString(request)
            found = GetPodResourcesResponse.FromString(self._ask("Get", request, context))
            if found.HasField("pod_resources"):
                pod = found.pod_resources
                pod.name, pod.namespace = pod.name or asked.pod_name, pod.namespace or asked.pod_namespace
                self._augment([pod])
            return found.SerializeToString()

        def allocatable(request: bytes, context: grpc.ServicerContext) -> bytes:
            return self._ask("GetAllocatableResources", request, context)

        # No serializers: a message is taken apart only where something is added.
        calls = {"List": list_pods, "Get": get_pod, "GetAllocatableResources": allocatable}
        return grpc.method_handlers_generic_handler(
            SERVICE, {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
        )

    def _ask(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """The kubelet's answer. One that it does not give ends the call with the kubelet's own code."""
        assert self._channel is not None
        left_s = context.time_remaining()
        call: Any = self._channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            answer: bytes = call(request, timeout=min(left_s, ANSWER_S) if left_s is not None else ANSWER_S)
        except grpc.RpcError as error:
            failed: Any = error
            context.abort(failed.code(), f"kubelet: {failed.details()}")
            raise
        return answer

    def _augment(self, found: Iterable[PodResources]) -> None:
        given = {(pod.namespace, pod.name): pod for pod in self._pods() if pod.settings.devices is not None}
        for row in found if given else ():
            pod = given.get((row.namespace, row.name))
            if pod is None or not row.containers:
                continue
            # compat: the annotation does not say which container; the first one has them.
            held = row.containers[0].devices
            rows = {device.resource_name: device for device in held}
            for name, ids in device_ids(pod, self._gpu_ids()):
                known = set(rows[name].device_ids) if name in rows else set()
                fresh = [one for one in ids if one not in known]
                if fresh and name in rows and known:
                    rows[name].device_ids.extend(fresh)
                elif fresh:
                    held.append(ContainerDevices(resource_name=name, device_ids=fresh))
            held.sort(key=lambda device: device.resource_name)


def device_ids(pod: Pod, gpu_ids: Mapping[int, str]) -> list[tuple[str, list[str]]]:
    """(resource name, ids) of what the scheduler gave to a pod. A GPU without an id is found by its minor number."""
    devices = pod.settings.devices
    if devices is None:
        return []
    gpus = [share.id or gpu_ids.get(share.minor, "") for share in devices.gpus]
    rdma = [address for share in devices.rdma for address in share.functions]
    found = ((GPU_NAME, gpus), (RDMA_NAME, rdma))
    return [(name, [one for one in ids if one]) for name, ids in found if any(ids)]
