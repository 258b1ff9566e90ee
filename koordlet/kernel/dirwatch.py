"""Directories that come and go below watched directories, as inotify(7) tells; no polling."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from koordlet._native import lib

_EVENT: Final = struct.Struct("iIII")
_IS_DIR: Final = 0x40000000
_CREATED: Final = 0x100
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_READ_BYTES: Final = 1 << 16


class Change(NamedTuple):
    """A directory `name` was made in, or removed from, the watched directory `where`."""

    where: Path
    name: str
    made: bool


class DirWatch:
    """`fileno` is readable when `read` has something to tell. Raises OSError where the kernel gives no inotify."""

    def __init__(self) -> None:
        self._fd = _checked(lib.kl_dirwatch_open())
        self._paths: dict[int, Path] = {}

    def fileno(self) -> int:
        return self._fd

    def add(self, path: Path) -> bool:
        """Watch a directory; True when it was not watched before. Nothing happens when there is none. Raises OSError
        (ENOSPC: too many)."""
        try:
            number = _checked(lib.kl_dirwatch_add(self._fd, os.fsencode(path)))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise
        known, self._paths[number] = self._paths.get(number), path
        return known != path

    def read(self) -> tuple[list[Change], bool]:
        """(what happened since the last read, whether some of it was lost). Never blocks."""
        changes: list[Change] = []
        lost = False
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return changes, lost
            offset = 0
            while offset < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                raw = data[offset + _EVENT.size : offset + _EVENT.size + length]
                offset += _EVENT.size + length
                where = self._paths.get(number)
                if mask & _OVERFLOW:
                    lost = True
                elif mask & _IGNORED:
                    self._paths.pop(number, None)  # the watched directory itself is gone
                elif mask & _IS_DIR and where is not None:
                    changes.append(Change(where, os.fsdecode(raw.rstrip(b"\0")), bool(mask & _CREATED)))

    def close(self) -> None:
        os.close(self._fd)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
