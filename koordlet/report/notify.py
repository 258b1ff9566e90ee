"""Talks to the service manager: sd_notify(3) datagrams. Without NOTIFY_SOCKET every call does nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

_STATUS_MAX: Final = 256


class Notifier:
    """One datagram per call; True when it was sent. Never raises: a deaf manager must not stop the agent."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._address = env.get("NOTIFY_SOCKET", "")

    def ready(self, status: str = "") -> bool:
        return self._send("READY=1", *_status(status))

    def status(self, text: str) -> bool:
        return self._send(*_status(text))

    def watchdog(self, status: str = "") -> bool:
        return self._send("WATCHDOG=1", *_status(status))

    def stopping(self, status: str = "") -> bool:
        return self._send("STOPPING=1", *_status(status))

    def reloading(self) -> bool:
        """`ready` must follow when done. The time stamp is what Type=notify-reload asks for (systemd 253)."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def _send(self, *lines: str) -> bool:
        address = self._address
        if not lines or address[:1] not in ("/", "@"):  # vsock: addresses are for whole VMs
            return False
        name = "\0" + address[1:] if address.startswith("@") else address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
                door.setblocking(False)
                door.sendto("\n".join(lines).encode(), name)
        except OSError:
            return False
        return True


def watchdog_interval_s(env: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between two pings: half of WATCHDOG_USEC, as sd_watchdog_enabled(3) advises.

    None when the manager wants none, or wants them from another process (WATCHDOG_PID).
    """
    try:
        usec = int(env.get("WATCHDOG_USEC", "0"))
        pid = int(env.get("WATCHDOG_PID", str(os.getpid())))
    except ValueError:
        return None
    return usec / 2e6 if usec > 0 and pid == os.getpid() else None


def _status(text: str) -> tuple[str, ...]:
    return (f"STATUS={' '.join(text.split())[:_STATUS_MAX]}",) if text else ()
