"""Stopping a pod's containers by the container runtime: CRI `StopContainer`, timeout 0, on a thread of its own.

The way out of a node without API server whose containers the runtime should take down itself (spec/qos 4.4). The two
messages are small enough to be written here; gRPC is imported when the first pod is to go.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordlet.act.evict import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from koordlet.model.eviction import Evict

METHOD: Final = "/runtime.v1.RuntimeService/StopContainer"
CALL_S: Final = 5.0
_CONTAINER_ID: Final = b"\x0a"
"""Field 1, a string. Field 2, the timeout, is left out: 0 s."""


class CriStop:
    """`Runtime` by the socket of one runtime. A container that is gone already is stopped."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._wanted: queue.SimpleQueue[Evict] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, evict: Evict) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="cri-stop", daemon=True)
            self._thread.start()
        self._wanted.put(evict)

    def answers(self) -> list[Answer]:
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        return found

    def _work(self) -> None:
        import grpc

        with grpc.insecure_channel(f"unix://{self._socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)

            def stop(container_id: str) -> str:
                try:
                    call(request(container_id), timeout=CALL_S)
                except ValueError as error:
                    return str(error)
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        return ""
                    return f"{self._socket}: {error.code().name}: {error.details()}"
                return ""

            while True:
                evict = self._wanted.get()
                self._answers.put(Answer(evict.target, stopped(evict, stop)))


def stopped(evict: Evict, stop: Callable[[str], str]) -> str:
    """ "" when all containers are, else the first error; the others are tried all the same."""
    if not evict.containers:
        return "none of its containers is known to the runtime"
    errors = [stop(full_id.rpartition("://")[2]) for full_id in evict.containers]
    return next((error for error in errors if error), "")


def request(container_id: str) -> bytes:
    """A `StopContainerRequest`."""
    text = container_id.encode()
    if not 0 < len(text) < 128:  # a length of one byte; runtimes use 64 characters
        raise ValueError(f"container id {container_id[:80]!r}: not 1..127 bytes")
    return _CONTAINER_ID + bytes([len(text)]) + text
