"""Core scheduling of the kernel: cookies of threads by prctl(PR_SCHED_CORE). (Documentation/admin-guide/hw-vuln/
core-scheduling.rst; kernel >= 5.14 with CONFIG_SCHED_CORE and SMT)

A cookie is given to others by a thread that has it, so each change is made on a short-lived thread of its own: that
thread takes the cookie, passes it on and ends. Threads of the agent itself keep none, and neither do their children.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterable
from typing import Final

_PR_SCHED_CORE: Final = 62
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_THREAD, _PROCESS = 0, 1
"""Scope: PIDTYPE_PID and PIDTYPE_TGID."""


def unsupported() -> str:
    """ "" where the kernel has core scheduling, else why not."""
    try:
        cookie_of(0)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return "threads of a core are switched off (no SMT)"
        if error.errno == errno.EINVAL:
            return "the kernel was built without CONFIG_SCHED_CORE, or is older than 5.14"
        return f"{errno.errorcode.get(error.errno or 0, error.errno)} ({error.strerror})"
    return ""


def cookie_of(pid: int) -> int:
    """Cookie of a process's main thread, 0 for none; pid 0 is the calling thread. Raises OSError (ESRCH: gone)."""
    cookie = ctypes.c_ulonglong(0)
    _prctl(_GET, pid, _THREAD, ctypes.byref(cookie))
    return cookie.value


def create(pid: int) -> int:
    """A new cookie for all threads of a process. Raises OSError."""
    _prctl(_CREATE, pid, _PROCESS, None)
    return cookie_of(pid)


def share(source: int, pids: Iterable[int]) -> dict[int, OSError]:
    """The source's cookie for all threads of these processes; what failed, by pid (ESRCH: gone meanwhile).

    Raises OSError when the source itself cannot be read: then nothing has changed.
    """
    return _on_a_thread(source, tuple(pids))


def clear(pids: Iterable[int]) -> dict[int, OSError]:
    """No cookie for these processes, as `share`."""
    return _on_a_thread(None, tuple(pids))


def _on_a_thread(source: int | None, pids: tuple[int, ...]) -> dict[int, OSError]:
    failed: dict[int, OSError] = {}
    fault: list[OSError] = []

    def work() -> None:
        try:
            if source is not None:
                _prctl(_SHARE_FROM, source, _THREAD, None)
        except OSError as error:
            fault.append(error)
            return
        for pid in pids:
            try:
                _prctl(_SHARE_TO, pid, _PROCESS, None)
            except OSError as error:
                failed[pid] = error

    thread = threading.Thread(target=work, name="core-cookie")
    thread.start()
    thread.join()
    if fault:
        raise fault[0]
    return failed


def _prctl(operation: int, pid: int, scope: int, address: object) -> None:
    if _libc.prctl(_PR_SCHED_CORE, operation, pid, scope, address) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl(PR_SCHED_CORE, {operation}, {pid})")


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p)
