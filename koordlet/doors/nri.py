"""The NRI door: keeps one connection to the runtime's NRI socket, for as long as the agent runs (spec/hooks 2.15).

A runtime without NRI is a normal state, so the door waits for the socket without an end. It never has two connections:
one thread dials, serves and closes before it dials again, and a lock on the socket's directory keeps a second agent
out, whose answers the runtime would take for a conflict. Protobuf is loaded with the first connection.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from koordlet.act.lock import DirectoryLock, LockedError
from koordlet.doors.nri_identity import Identity
from koordlet.doors.teller import Teller
from koordlet.model.podevent import Hook

if TYPE_CHECKING:
    from koordlet.doors.nri_session import Session

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.1
"""Between two looks for the socket while it may come back at any moment."""
EAGER_S: Final = 30.0
"""For how long after a start or a loss that is so; then a look each second."""
LONGEST_WAIT_S: Final = 30.0
ABANDONED_S: Final = 1.0
"""A plugin that the runtime launched, and whose socket does not answer for so long, has outlived its runtime."""
DIAL_S: Final = 2.0
DEGRADED_AFTER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits after connections that did not last. steps: after so many it grows no more."""

    first_s: float = 1.0
    factor: float = 2.0
    cap_s: float = LONGEST_WAIT_S
    steps: int = 2**31 - 1
    jitter: float = 0.2
    settled_s: float = 6.0
    """A connection that lived for so long was a good one."""

    def wait_s(self, failures: int) -> float:
        """The first failure after a good connection is made up for at once."""
        if failures <= 1:
            return LOOK_S
        steps = min(failures - 2, self.steps, 64)
        wait = min(self.first_s * self.factor**steps, self.cap_s, LONGEST_WAIT_S)
        return wait * random.uniform(1 - self.jitter, 1 + self.jitter)


class NriDoor:
    """path: of the runtime's socket. given: the connection of a plugin that the runtime launched. ended: called when
    such a plugin has lost its runtime for good."""

    def __init__(
        self,
        path: Path,
        identity: Identity,
        teller: Teller,
        *,
        disabled: frozenset[Hook] = frozenset(),
        backoff: Backoff | None = None,
        given: socket.socket | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._identity, self._teller = path, identity, teller
        self._disabled = disabled
        self._backoff = backoff or Backoff()
        self._given = given
        self._launched = given is not None
        self._ended = ended
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._thread: threading.Thread | None = None
        self._lost_s: float | None = None
        self.registrations = 0
        self.ready = False
        self.last_end = ""

    def start(self) -> None:
        """Once; later calls change nothing."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="door-nri", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Hang up and wait for the thread."""
        self._stop.set()
        with self._lock:
            session, thread = self._session, self._thread
        if session is not None:
            session.close()
        if thread is not None:
            thread.join(5.0)

    def errors(self) -> tuple[str, ...]:
        """A connection that was there and has been missing for a while."""
        lost_s = self._lost_s
        if lost_s is None or self.ready or time.monotonic() - lost_s < DEGRADED_AFTER_S:
            return ()
        return (f"NRI: no connection to {self._path} ({self.last_end})",)

    def figures(self) -> dict[str, float]:
        return {"nri_connected": float(self.ready), "nri_registrations_total": self.registrations}

    def _run(self) -> None:
        failures, seen = 0, None
        if self._given is not None:
            self._serve(self._given)
            self._given = None
            failures = 1
        while not self._stop.is_set():
            if failures and self._wait(self._backoff.wait_s(failures), seen):
                failures = 0  # the runtime was restarted
            held = self._dial()
            if held is None:
                return
            connection, lock = held
            try:
                seen = _identity_of(self._path)
                began_s = time.monotonic()
                was_ready = self._serve(connection)
                good = was_ready and time.monotonic() - began_s >= self._backoff.settled_s
                failures = 1 if good else failures + 1
            finally:
                lock.__exit__(None, None, None)

    def _serve(self, connection: socket.socket) -> bool:
        """One connection to its end; whether it was in use."""
        from koordlet.doors.nri_session import Session

        session = Session(connection, self._identity, self._teller, disabled=self._disabled, ready=self._is_ready)
        with self._lock:
            self._session = session
        self.registrations += 1
        reason = "closed" if self._stop.is_set() else session.run()
        session.close()
        was_ready, self.ready = self.ready, False
        with self._lock:
            self._session = None
        if not self._stop.is_set():
            now_s = time.monotonic()
            self._teller.source.lost(now_s)
            if was_ready or self.last_end != reason:
                log.warning("nri.lost", reason=reason, path=str(self._path))
            self._lost_s = now_s if was_ready else self._lost_s
            self.last_end = reason
        return was_ready

    def _is_ready(self) -> None:
        self.ready, self._lost_s = True, None
        log.info("nri.ready", plugin=f"{self._identity.index}-{self._identity.name}")

    def _dial(self) -> tuple[socket.socket, DirectoryLock] | None:
        """Waits for a socket that answers; None when the door closes."""
        began_s, told = time.monotonic(), False
        while not self._stop.is_set():
            now_s = time.monotonic()
            if self._path.exists():
                try:
                    lock = DirectoryLock(self._path.parent)
                except LockedError:
                    if not told:
                        told = True
                        log.warning("nri.taken", path=str(self._path), reason="another agent holds this runtime")
                except OSError:
                    pass  # vanished meanwhile
                else:
                    connection = _connect(self._path)
                    if connection is not None:
                        return connection, lock
                    lock.__exit__(None, None, None)
            if self._launched and now_s - began_s >= ABANDONED_S:
                log.warning("nri.abandoned", reason=self.last_end)
                self._ended()
                return None
            self._stop.wait(LOOK_S if now_s - began_s < EAGER_S else 1.0)
        return None

    def _wait(self, wait_s: float, seen: object) -> bool:
        """Wait, but no longer than until another socket lies there; then True."""
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.is_set():
            now = _identity_of(self._path)
            if seen is not None and now is not None and now != seen:
                return True
            self._stop.wait(min(LOOK_S, left_s))
        return False


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(DIAL_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Tells a socket from a later one of the same name."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_ino, found.st_ctime_ns
    return None
