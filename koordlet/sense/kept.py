"""Small kernel files: `KeptFile` for one that is read every tick, on a descriptor that stays open; `read_once`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_BYTES: Final = 4096


def read_once(path: str, limit_bytes: int = _BYTES) -> bytes:
    """Content, without the layers of `open`, which would cost more than the kernel does. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, limit_bytes)
    finally:
        os.close(fd)


class KeptFile:
    """Opened at the first use and again after a failed read: a cgroup made anew under the same path is another file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def fd(self) -> int:
        """-1 while the file cannot be opened."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return -1
        return self._fd

    def read(self) -> bytes | None:
        """Content of a small file, None while it is not there or unreadable."""
        for _ in range(2):
            fd = self.fd()
            if fd < 0:
                return None
            try:
                return os.pread(fd, _BYTES, 0)
            except OSError:
                self.close()
        return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
