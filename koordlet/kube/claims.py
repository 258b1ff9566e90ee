"""To which volume a claim is bound, asked for one claim at a time and on a thread of its own: nobody waits for it.

beyond: the reference follows all claims of the cluster on every node (F-18); here only those are asked for whose pod
runs here and limits the volume's I/O.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec
import structlog

from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.model.blkio import ClaimKey

log = structlog.get_logger(__name__)

AGAIN_S: Final = 30.0
"""Until a claim is asked for again that has no volume yet, or whose answer failed."""
FORGET_S: Final = 120.0
"""A claim that nobody asked for so long is forgotten; those in use are asked for every few seconds."""
MOST: Final = 4096


@dataclass(slots=True)
class _Entry:
    volume: str = ""
    error: str = ""
    waiting: bool = False
    again_s: float = 0.0
    used_s: float = 0.0


class Claims:
    """Methods may be called from any thread and never wait. clock: monotonic seconds.

    revision: grows with every answer.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self.revision = 0
        self._api, self._clock = api, clock
        self._condition = threading.Condition()
        self._entries: dict[ClaimKey, _Entry] = {}
        self._queue: deque[ClaimKey] = deque()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def volume(self, key: ClaimKey) -> str | None:
        """Name of the volume, None while the server has not answered. Raises LookupError, saying why there is none."""
        now_s = self._clock()
        with self._condition:
            entry = self._entries.get(key)
            if entry is None:
                self._sweep(now_s)
                if len(self._entries) >= MOST:
                    raise LookupError(f"more than {MOST} claims are in use")
                entry = self._entries[key] = _Entry()
            entry.used_s = now_s
            if not entry.volume and not entry.waiting and now_s >= entry.again_s:
                entry.waiting = True
                self._queue.append(key)
                self._go()
            if entry.volume:
                return entry.volume
            if entry.error:
                raise LookupError(entry.error)
            return None

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout=1.0)

    def _go(self) -> None:
        """With the lock held."""
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="claims", daemon=True)
            self._thread.start()
        self._condition.notify()

    def _sweep(self, now_s: float) -> None:
        old = [key for key, one in self._entries.items() if not one.waiting and now_s - one.used_s > FORGET_S]
        for key in old:
            del self._entries[key]

    # on the thread

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stopped or self._queue)
                if self._stopped:
                    return
                key = self._queue.popleft()
            volume, error = "", "internal error"
            try:
                volume, error = self._ask(key)
            except Exception:  # a dead thread would leave every further claim unknown
                log.exception("claims.broken")
            with self._condition:
                entry = self._entries[key]
                entry.volume, entry.error, entry.waiting = volume, error, False
                entry.again_s = self._clock() + AGAIN_S
                self.revision += 1

    def _ask(self, key: ClaimKey) -> tuple[str, str]:
        """(volume, what is wrong), one of them empty."""
        _, namespace, name = key
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/persistentvolumeclaims/{quote(name, safe='')}"
        try:
            volume = self._api.get(path, type=_Claim).spec.volume
        except ApiError as error:
            return "", f"claim {namespace}/{name}: {error}"
        return volume, "" if volume else f"claim {namespace}/{name} is not bound yet"


class _Spec(msgspec.Struct, frozen=True):
    volume: str = msgspec.field(default="", name="volumeName")


class _Claim(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()
