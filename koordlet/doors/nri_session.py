"""One connection to a runtime's NRI, from registration to its end (spec/hooks 2.2 to 2.9). Runs on one thread.

The runtime asks one question at a time and holds a node-wide lock meanwhile, so a question is answered before the next
is read. Nothing here raises into a pod's creation: what cannot be used is answered with "unchanged" and counted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from koordlet.doors import nri_messages as words
from koordlet.doors.desk import LIMIT_S, HookError
from koordlet.doors.nri_identity import Identity
from koordlet.doors.nri_versions import STAGES, Event, event_mask, release, scheme
from koordlet.doors.teller import Teller
from koordlet.model.podevent import Hook
from koordlet.sources.podlist import MAX_PODS
from koordlet.sources.sandbox import MAX_CONTAINERS, Sandbox, SandboxContainer
from koordlet.wire import mux, ttrpc
from koordlet.wire import nri_pb2 as nri
from koordlet.wire.mux import MuxError, MuxReader
from koordlet.wire.ttrpc import Call, Code, Frame, FrameReader, TtrpcError

log = structlog.get_logger(__name__)

PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"
OWN_VERSION: Final = "v0.12.0"
REGISTER_S: Final = 5.0
"""The runtime's limit for all until Synchronize, unless it tells another."""
STALL_S: Final = 10.0
"""Longest that a message may stay incomplete."""
SEND_S: Final = 2.0
_CHUNK: Final = 1 << 16


class SessionError(Exception):
    """The connection is of no use any more; the text says why."""


class Session:
    """ready: called when the runtime has told all its pods. Its end is told by `run` alone, by returning why."""

    def __init__(
        self,
        connection: socket.socket,
        identity: Identity,
        teller: Teller,
        *,
        disabled: frozenset[Hook] = frozenset(),
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = connection
        self._identity = identity
        self._teller = teller
        self._disabled = disabled
        self._ready = ready
        self._mux = MuxReader()
        self._streams = {mux.PLUGIN_CONN: FrameReader(), mux.RUNTIME_CONN: FrameReader()}
        self._last_stream = 0
        self._until_s = 0.0
        self._registered = False
        self._incomplete_s: float | None = None
        self._limit_s = 2 * LIMIT_S
        self._sandboxes: list[Sandbox] = []
        self._containers: list[tuple[str, SandboxContainer]] = []
        self._methods: Mapping[str, Callable[[bytes, float], bytes]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "UpdateContainer": self._update,
            "StateChange": self._state_change,
            "RunPodSandbox": lambda data, s: self._event(Event.RUN_POD_SANDBOX, nri.PodRequest.FromString(data), s),
            "StopPodSandbox": lambda data, s: self._event(Event.STOP_POD_SANDBOX, nri.PodRequest.FromString(data), s),
            "RemovePodSandbox": lambda data, s: self._event(
                Event.REMOVE_POD_SANDBOX, nri.PodRequest.FromString(data), s
            ),
            "PostStartContainer": lambda data, s: self._event(
                Event.POST_START_CONTAINER, nri.ContainerRequest.FromString(data), s
            ),
            "RemoveContainer": lambda data, s: self._event(
                Event.REMOVE_CONTAINER, nri.ContainerRequest.FromString(data), s
            ),
            **dict.fromkeys(_UNHEEDED, lambda data, s: b""),
        }
        self._done = False
        self.synchronized = False

    def run(self) -> str:
        """Register and serve until the connection ends; the reason for its end."""
        try:
            self._register()
            while True:
                self._socket.settimeout(self._patience_s())
                try:
                    data = self._socket.recv(_CHUNK)
                except TimeoutError:
                    self._check_watchdogs()
                    continue
                if not data:
                    return "closed by the runtime"
                self._feed(data)
        except (SessionError, MuxError, TtrpcError) as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        finally:
            self.close()

    def close(self) -> None:
        """From any thread: `run` returns."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # framing

    def _register(self) -> None:
        request = nri.RegisterPluginRequest(
            plugin_name=self._identity.name, plugin_idx=self._identity.index, NRI_version=OWN_VERSION
        )
        call = Call(RUNTIME, "RegisterPlugin", request.SerializeToString(), REGISTER_S)
        self._until_s = time.monotonic() + REGISTER_S
        self._send(mux.RUNTIME_CONN, 1, ttrpc.REQUEST, ttrpc.write_call(call))

    def _send(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        self._socket.settimeout(SEND_S)
        try:
            self._socket.sendall(mux.frames(conn, ttrpc.head(len(data), stream, kind), data))
        except TimeoutError:
            raise SessionError("the runtime does not read") from None

    def _patience_s(self) -> float | None:
        """Until when to wait for bytes, None for ever."""
        ends = [] if self.synchronized else [self._until_s]
        if self._incomplete_s is not None:
            ends.append(self._incomplete_s + STALL_S)
        return max(0.001, min(ends) - time.monotonic()) if ends else None

    def _check_watchdogs(self) -> None:
        now_s = time.monotonic()
        if not self.synchronized and now_s >= self._until_s:
            raise SessionError("no Synchronize in time" if self._registered else "no answer to RegisterPlugin in time")
        if self._incomplete_s is not None and now_s >= self._incomplete_s + STALL_S:
            raise SessionError("a message stayed incomplete")

    def _feed(self, data: bytes) -> None:
        whole = False
        for conn, piece in self._mux.feed(data):
            stream = self._streams.get(conn)
            for frame in stream.feed(piece) if stream is not None else ():
                whole = True
                if conn == mux.PLUGIN_CONN:
                    self._serve(frame)
                else:
                    self._heard(frame)
        if not (self._mux.incomplete or any(stream.incomplete for stream in self._streams.values())):
            self._incomplete_s = None
        elif whole or self._incomplete_s is None:
            self._incomplete_s = time.monotonic()
        self._check_watchdogs()

    def _heard(self, frame: Frame) -> None:
        """An answer to our one call; others are late or strange, and ignored."""
        if frame.kind != ttrpc.RESPONSE or frame.stream != 1 or self._registered:
            return
        code, text, _ = ttrpc.read_answer(frame.data)
        if code != Code.OK:
            raise SessionError(f"registration refused: {text[:200]}")
        self._registered = True
        self._until_s = time.monotonic() + REGISTER_S + 1.0

    def _serve(self, frame: Frame) -> None:
        if frame.kind != ttrpc.REQUEST:
            raise SessionError(f"a frame of type {frame.kind} where requests come")
        if frame.stream % 2 == 0 or frame.stream <= self._last_stream:
            answer = ttrpc.write_error(Code.INVALID_ARGUMENT, f"stream {frame.stream} is even or not new")
        else:
            self._last_stream = frame.stream
            answer = self._answer(frame.data)
        self._send(mux.PLUGIN_CONN, frame.stream, ttrpc.RESPONSE, answer)
        if not self.synchronized and self._done:
            self.synchronized = True
            self._ready()

    def _answer(self, data: bytes) -> bytes:
        try:
            call = ttrpc.read_call(data)
        except TtrpcError as error:
            return ttrpc.write_error(Code.INVALID_ARGUMENT, str(error))
        method = self._methods.get(call.method) if call.service == PLUGIN else None
        if method is None:
            return ttrpc.write_error(Code.UNIMPLEMENTED, f"method {call.method[:64]}")
        try:
            return ttrpc.write_answer(method(call.payload, call.limit_s or self._limit_s))
        except HookError as error:
            return ttrpc.write_error(Code.UNKNOWN, str(error))
        except (DecodeError, ValueError) as error:
            self._teller.desk.count(f"hook_malformed_total{{door={self._teller.door}}}")
            log.warning("nri.malformed", method=call.method, error=str(error)[:200])
        except Exception:
            log.exception("nri.failed", method=call.method)
        return b""  # an error would fail the pod

    # events

    def _configure(self, data: bytes, limit_s: float) -> bytes:
        told = nri.ConfigureRequest.FromString(data)
        nri_release = release(told.NRI_version, told.runtime_name, told.runtime_version, told.registration_timeout)
        if told.registration_timeout > 0:
            self._until_s = time.monotonic() + told.registration_timeout / 1e3 + 1.0
        if told.request_timeout > 0:
            self._limit_s = told.request_timeout / 1e3
        self._teller.runtime = scheme(told.runtime_name)
        mask = event_mask(nri_release, self._disabled)
        log.info(
            "nri.configured",
            runtime=told.runtime_name[:64],
            version=told.runtime_version[:64],
            nri=".".join(map(str, nri_release)),
            events=hex(mask),
        )
        return bytes(nri.ConfigureResponse(events=mask).SerializeToString())

    def _synchronize(self, data: bytes, limit_s: float) -> bytes:
        """Chunks add up until one without `more`. Arguments, environments and mounts are not kept."""
        told = nri.SynchronizeRequest.FromString(data)
        self._sandboxes += map(words.sandbox, told.pods[: MAX_PODS - len(self._sandboxes)])
        room = MAX_PODS * MAX_CONTAINERS // 16 - len(self._containers)
        self._containers += ((found.pod_sandbox_id, words.container(found)) for found in told.containers[:room])
        if told.more:
            self._until_s = time.monotonic() + REGISTER_S
            return bytes(nri.SynchronizeResponse(more=True).SerializeToString())
        self._teller.source.synchronized(self._teller.runtime, self._sandboxes, self._containers)
        log.info("nri.synchronized", pods=len(self._sandboxes), containers=len(self._containers))
        self._sandboxes, self._containers = [], []
        self._teller.desk.news()  # existing containers are the reconciler's, not a long list in this reply
        self._done = True
        return b""

    def _create(self, data: bytes, limit_s: float) -> bytes:
        told = nri.CreateContainerRequest.FromString(data)
        linux = told.container.linux
        asked = words.asked(linux.resources, linux.oom_score_adj if linux.HasField("oom_score_adj") else None)
        answer = self._teller.container(
            Hook.PRE_CREATE_CONTAINER,
            words.sandbox(told.pod),
            words.container(told.container, running=False, asked=asked),
            time.monotonic(),
            asked=asked,
            env=words.env(told.container),
            limit_s=limit_s,
        )
        adjust = words.adjustment(answer)
        return bytes(nri.CreateContainerResponse(adjust=adjust).SerializeToString())

    def _update(self, data: bytes, limit_s: float) -> bytes:
        """What is about to be applied counts, not the container's present values: those are ours already."""
        told = nri.UpdateContainerRequest.FromString(data)
        answer = self._teller.container(
            Hook.PRE_UPDATE_CONTAINER,
            words.sandbox(told.pod),
            words.container(told.container),
            time.monotonic(),
            asked=words.asked(told.linux_resources),
            limit_s=limit_s,
        )
        update = words.update(told.container.id, answer)
        return bytes(nri.UpdateContainerResponse(update=[update] if update else []).SerializeToString())

    def _state_change(self, data: bytes, limit_s: float) -> bytes:
        told = nri.StateChangeEvent.FromString(data)
        with suppress(ValueError):  # an event of a later release
            self._event(Event(told.event), told, limit_s)
        return b""

    def _event(
        self, event: Event, told: nri.PodRequest | nri.ContainerRequest | nri.StateChangeEvent, limit_s: float
    ) -> bytes:
        sandbox, source = words.sandbox(told.pod), self._teller.source
        if event is Event.RUN_POD_SANDBOX:
            self._teller.pod(STAGES[event], sandbox, time.monotonic(), limit_s)
        elif event is Event.STOP_POD_SANDBOX:
            self._teller.ended(sandbox, limit_s)
        elif event is Event.REMOVE_POD_SANDBOX:
            source.sandbox_gone(sandbox.uid, sandbox.id)
        elif isinstance(told, nri.PodRequest):
            pass
        elif event is Event.POST_START_CONTAINER:
            container = words.container(told.container, running=True)
            pid = told.container.pid or None
            self._teller.container(STAGES[event], sandbox, container, time.monotonic(), pid=pid, limit_s=limit_s)
        elif event is Event.REMOVE_CONTAINER:
            uid = sandbox.uid or source.uid_of(told.container.pod_sandbox_id)
            full_id = f"{self._teller.runtime}://{told.container.id}"
            source.container_gone(uid, told.container.name, full_id)
        return b""


_UNHEEDED: Final = (
    "Shutdown",
    "StopContainer",
    "UpdatePodSandbox",
    "ValidateContainerAdjustment",
    "PostUpdatePodSandbox",
    "PostCreateContainer",
    "StartContainer",
    "PostUpdateContainer",
)
"""Not subscribed to; should one come, an empty answer changes nothing."""
