"""RuntimeHookService: the gRPC door at which koord-runtime-proxy knocks before it passes a CRI call on (spec/hooks 1).

Imported only when the door is on; gRPC is the agent's dearest library. The socket is root's alone. Strangers are gRPC's
own problem: 4 MiB per message, a handshake within seconds, a bounded number of calls at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else every stranger's garbage is a line on standard error

import grpc
import structlog
from google.protobuf.message import DecodeError

from koordlet.doors import hookmessages
from koordlet.doors.desk import LIMIT_S, HookError
from koordlet.doors.http import DoorError
from koordlet.doors.registration import Registration
from koordlet.doors.teller import Teller
from koordlet.doors.unixsocket import SocketTakenError, clear_stale
from koordlet.model.podevent import Hook
from koordlet.wire.hook_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)

log = structlog.get_logger(__name__)

SERVICE: Final = "runtime.v1alpha1.RuntimeHookService"
POD_HOOKS: Final = (Hook.PRE_RUN_POD_SANDBOX, Hook.POST_STOP_POD_SANDBOX)
CONTAINER_HOOKS: Final = (
    Hook.PRE_CREATE_CONTAINER,
    Hook.PRE_START_CONTAINER,
    Hook.POST_START_CONTAINER,
    Hook.POST_STOP_CONTAINER,
    Hook.PRE_UPDATE_CONTAINER,
)
WORKERS: Final = 8
MAX_CALLS: Final = 64
"""At a time; more are refused at once, which the proxy takes for a missing server."""
STOP_S: Final = 1.0
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_concurrent_streams", MAX_CALLS),
    ("grpc.max_metadata_size", 16 << 10),
)


class RuntimeHookDoor:
    """path: of the socket. registration: None where nobody is to be told. Raises DoorError from `start`."""

    def __init__(self, path: str, teller: Teller, registration: Registration | None = None) -> None:
        self._path = path
        self._teller = teller
        self._registration = registration
        self._server: grpc.Server | None = None
        self._workers: ThreadPoolExecutor | None = None
        self.error = ""

    def start(self) -> None:
        """Listen, then register: the proxy never learns of a server that does not answer yet."""
        try:
            clear_stale(self._path)
        except SocketTakenError as error:
            raise DoorError(f"-runtime-hooks-addr: {error}") from error
        except OSError as error:
            raise DoorError(f"-runtime-hooks-addr={self._path}: {error.strerror}") from error
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="door-hook")
        server = grpc.server(self._workers, options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        before = os.umask(0o177)  # the socket is never open to others, not even for a moment
        try:
            server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as error:
            self._workers.shutdown(wait=False)
            raise DoorError(f"-runtime-hooks-addr={self._path}: cannot listen; is the path too long?") from error
        finally:
            os.umask(before)
        server.start()
        self._server = server
        if self._registration is not None:
            try:
                self._registration.put()
            except OSError as error:
                self.error = f"{self._registration.path}: {error.strerror}; koord-runtime-proxy does not know of us"
                log.warning("hooks.not_registered", error=self.error)

    def close(self, *, stay_registered: bool = False) -> None:
        """Calls under way are answered. stay_registered: somebody takes over soon, do not bother the proxy."""
        if self._registration is not None and not stay_registered:
            with suppress(OSError):
                self._registration.remove()
        if self._server is not None:
            self._server.stop(STOP_S).wait(2 * STOP_S)
            self._server = None
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
            self._workers = None
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _handlers(self) -> grpc.GenericRpcHandler:
        methods = {f"{hook.value}Hook": _method(self._pod(hook), PodSandboxHookRequest) for hook in POD_HOOKS}
        methods |= {
            f"{hook.value}Hook": _method(self._container(hook), ContainerResourceHookRequest)
            for hook in CONTAINER_HOOKS
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _pod(self, hook: Hook) -> Callable[[PodSandboxHookRequest, grpc.ServicerContext], PodSandboxHookResponse]:
        def serve(request: PodSandboxHookRequest, context: grpc.ServicerContext) -> PodSandboxHookResponse:
            sandbox = hookmessages.pod_sandbox(request)
            if hook is Hook.POST_STOP_POD_SANDBOX:
                self._teller.ended(sandbox, _left_s(context))
                return hookmessages.pod_reply(request)
            try:
                self._teller.pod(hook, sandbox, time.monotonic(), _left_s(context))
            except HookError as error:
                context.abort(grpc.StatusCode.UNKNOWN, str(error))
            return hookmessages.pod_reply(request)

        return serve

    def _container(
        self, hook: Hook
    ) -> Callable[[ContainerResourceHookRequest, grpc.ServicerContext], ContainerResourceHookResponse]:
        def serve(
            request: ContainerResourceHookRequest, context: grpc.ServicerContext
        ) -> ContainerResourceHookResponse:
            asked = hookmessages.asked(request.container_resources)
            creation = hook is Hook.PRE_CREATE_CONTAINER
            container = hookmessages.container(
                request, running=hook is Hook.POST_START_CONTAINER, asked=asked if creation else None
            )
            try:
                answer = self._teller.container(
                    hook,
                    hookmessages.container_sandbox(request),
                    container,
                    time.monotonic(),
                    asked=asked,
                    env=dict(request.container_envs),
                    limit_s=_left_s(context),
                )
            except HookError as error:
                context.abort(grpc.StatusCode.UNKNOWN, str(error))
            for what in hookmessages.undeliverable(answer):
                self._teller.desk.count(f"hook_undeliverable_total{{door={self._teller.door},what={what}}}")
                log.warning("hooks.undeliverable", pod=request.pod_meta.name[:253], what=what)
            return hookmessages.container_reply(request, answer)

        return serve


def _left_s(context: grpc.ServicerContext) -> float:
    """What the caller still gives; the proxy sets no limit of its own."""
    left: float | None = context.time_remaining()
    return min(left, 2 * LIMIT_S) if left is not None else 2 * LIMIT_S


def _method(serve: Callable[[Any, grpc.ServicerContext], Any], request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    """Parses in the handler: gRPC never gives back the place of a call whose request its own deserializer refused, so
    MAX_CALLS pieces of garbage would shut the door for good."""

    def call(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            asked = request.FromString(data)
        except DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return bytes(serve(asked, context).SerializeToString())

    return grpc.unary_unary_rpc_method_handler(call)
