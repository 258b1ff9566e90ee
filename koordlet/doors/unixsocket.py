"""Unix sockets of doors: one that a dead agent left behind is cleared away, a living one is not."""

from __future__ import annotations

import os
import socket
import stat


class SocketTakenError(Exception):
    """The path is in use; the text names it and says by what."""


def clear_stale(path: str) -> None:
    """Remove the socket of an agent that died. Raises SocketTakenError when it is alive, or is no socket at all."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTakenError(f"{path} exists and is not a socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except TimeoutError:
            pass  # a full queue: somebody listens
    raise SocketTakenError(f"another agent answers on {path}; stop it first")
