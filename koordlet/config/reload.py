"""Files that are followed while we run: read again when they change, and never half.

A file that cannot be read or is not valid leaves the previous value in force and says so. A deleted file falls
back to the initial value after a grace, because some editors save by deleting first. Cost while nothing changes:
one stat per file and call.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from koordlet.config.errors import PolicyError

DELETE_GRACE_S: Final = 60.0
MAX_FILES: Final = 256
SETTLED_NS: Final = 2_000_000_000
"""A directory changed so lately may change again without a new time stamp."""
SUFFIXES: Final = (".yaml", ".yml", ".json")

log = structlog.get_logger(__name__)
T = TypeVar("T")
_Signature = tuple[int, int, int, int]


class Watched(Generic[T]):
    """One file and its last valid value.

    load raises PolicyError or OSError. value: the last good one, `initial` before it and after a deletion.
    error: what is wrong now, "" when nothing. failures: refused reads so far. revision: swaps so far.
    required: a missing file is an error even before it was ever seen.
    """

    def __init__(self, path: Path, load: Callable[[Path], T], initial: T, *, required: bool = False) -> None:
        self.path = path
        self.value = initial
        self.error = ""
        self.failures = 0
        self.revision = 0
        self.loaded = False
        self._load = load
        self._initial = initial
        self._required = required
        self._signature: _Signature | None = None
        self._missing_since_s: float | None = None

    def poll(self, now_s: float) -> bool:
        """Look once. True when value was swapped for a different one."""
        try:
            # Taken before reading: a write that overtakes the read changes it again, so we come back.
            signature = file_signature(self.path)
            if signature is None:
                return self._missing(now_s)
            self._missing_since_s = None
            if signature == self._signature:
                return False
            self._signature = signature
            value = self._load(self.path)
        except OSError as error:
            self._signature = None
            return self._refuse(f"{self.path}: {error.strerror or error}")
        except PolicyError as error:
            return self._refuse(str(error))
        self.error, self.loaded = "", True
        return self._swap(value)

    def _missing(self, now_s: float) -> bool:
        self._signature = None
        if not self.loaded:
            self.error = f"{self.path}: no such file" if self._required else ""
            return False
        if self._missing_since_s is None:
            self._missing_since_s = now_s
            log.warning("config.file_gone", path=str(self.path), grace_s=DELETE_GRACE_S)
        if now_s - self._missing_since_s < DELETE_GRACE_S:
            self.error = f"{self.path}: deleted; what it said is dropped after {DELETE_GRACE_S:.0f} s"
            return False
        self.error, self.loaded = "", False
        return self._swap(self._initial)

    def _refuse(self, error: str) -> bool:
        self.failures += 1
        if error != self.error:
            log.error("config.reload_failed", path=str(self.path), error=error, kept_revision=self.revision)
        self.error = error
        return False

    def _swap(self, value: T) -> bool:
        if value == self.value:
            return False
        self.value = value
        self.revision += 1
        log.info("config.loaded", path=str(self.path), revision=self.revision)
        return True


class WatchedFiles(Generic[T]):
    """A file, or the `*.yaml`, `*.yml` and `*.json` files of a directory in name order, each followed on its own."""

    def __init__(self, path: Path, load: Callable[[Path], T], *, required: bool = False) -> None:
        self._path = path
        self._load = load
        self._required = required
        self._files: dict[Path, Watched[T | None]] = {}
        self._error = ""
        self._dropped_failures = 0
        self._known: tuple[tuple[int, int, int], list[Path]] | None = None

    def poll(self, now_s: float) -> bool:
        """Look once at every file. True when any value changed."""
        listed = self._listed()
        for path in listed:
            if path not in self._files:
                self._files[path] = Watched(path, self._load, None)
        changed = False
        for path, watched in list(self._files.items()):
            changed |= watched.poll(now_s)
            if not watched.loaded and path not in listed:
                self._dropped_failures += watched.failures
                del self._files[path]
        return changed

    @property
    def values(self) -> tuple[tuple[Path, T], ...]:
        """(file, last valid value), in file name order."""
        return tuple((path, item.value) for path, item in sorted(self._files.items()) if item.value is not None)

    @property
    def errors(self) -> tuple[str, ...]:
        own = (self._error,) if self._error else ()
        return own + tuple(item.error for _, item in sorted(self._files.items()) if item.error)

    @property
    def failures(self) -> int:
        return self._dropped_failures + sum(item.failures for item in self._files.values())

    def _listed(self) -> list[Path]:
        self._error = ""
        try:
            found = os.stat(self._path)
            signature = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
            if self._known is not None and self._known[0] == signature:
                return self._known[1]
            names = sorted(name for name in os.listdir(self._path) if name.endswith(SUFFIXES) and name[0] != ".")
        except NotADirectoryError:
            return [self._path]
        except FileNotFoundError:
            if self._required and not self._files:
                self._error = f"{self._path}: no such file or directory"
            return []
        except OSError as error:
            self._error = f"{self._path}: {error.strerror or error}"
            return []
        if len(names) > MAX_FILES:
            self._error = f"{self._path}: {len(names)} files, only the first {MAX_FILES} are read"
            return [self._path / name for name in names[:MAX_FILES]]
        listed = [self._path / name for name in names]
        if time.time_ns() - found.st_mtime_ns > SETTLED_NS:
            self._known = (signature, listed)
        return listed


def file_signature(path: Path) -> _Signature | None:
    """What changes when a file's content does, None when there is no such file.

    Raises OSError for the rest, and for a pipe or device, which would block the reader.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return (found.st_mtime_ns, found.st_ino, found.st_size, found.st_ctime_ns)
