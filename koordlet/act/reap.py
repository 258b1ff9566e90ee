"""Freeing what a killed process held, at once: process_mrelease(2), Linux >= 5.15. (spec/qos 18.3 item 7)

A killed process frees its memory itself, and best-effort work does that with the weight, the quota and the CPUs of
best-effort work: slowest just when the node is busy. A thread of ours does it in its place. It can hit nobody by
mistake: the kernel refuses (EINVAL) for a process that is not dying.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import structlog

from koordlet._native import lib

log = structlog.get_logger(__name__)

_AGAIN: Final = 10
MAX_PROCESSES: Final = 1024
"""Of one victim; the rest frees its memory itself."""


class Reaper:
    """open before the kill, free after it. The thread begins with the first use and ends with the process."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lacking = False

    def open(self, pids: Iterable[int]) -> list[int]:
        """Descriptors of these processes, for `free`; none where the kernel has no such call."""
        found: list[int] = []
        for pid in () if self._lacking else sorted(pids)[:MAX_PROCESSES]:
            with suppress(OSError):  # gone already, or out of descriptors
                found.append(os.pidfd_open(pid))
        return found

    def free(self, pidfds: list[int]) -> None:
        """Hands them to the thread, which closes them. Does not wait."""
        if not pidfds:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="reap", daemon=True)
            self._thread.start()
        self._wanted.put(pidfds)

    def _work(self) -> None:
        while True:
            for pidfd in self._wanted.get():
                try:
                    self._free(pidfd)
                finally:
                    os.close(pidfd)

    def _free(self, pidfd: int) -> None:
        if self._lacking:
            return
        code = release(pidfd)
        if code == errno.ENOSYS:
            self._lacking = True
            log.info("reap.unsupported", why="process_mrelease needs Linux 5.15")
        elif code not in (0, errno.ESRCH, errno.EINVAL):
            log.debug("reap.failed", error=os.strerror(code))


def release(pidfd: int) -> int:
    """0 or the errno: ESRCH gone already, EINVAL not dying."""
    code = errno.EAGAIN
    for _ in range(_AGAIN):
        code = -lib.kl_release_memory(pidfd)
        if code not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: its memory map was busy
            break
    return code
