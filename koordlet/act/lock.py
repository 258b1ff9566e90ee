"""One agent per node: an advisory lock on a file in the run directory that also names its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType


class LockedError(Exception):
    """Another process holds the lock. pid: its process id, None when the file does not say."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path = path
        self.pid = pid
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path}: a koordlet is already running on this node ({holder}); only one may write")


class Lock:
    """Held from construction until `release` or the end of the process, whichever is first.

    Raises LockedError, or OSError when the file cannot be made. The file is never removed: a second agent could
    then lock a new file of the same name while the first still runs.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            text = os.pread(self._fd, 32, 0).strip()
            os.close(self._fd)
            raise LockedError(path, int(text) if text.isdigit() else None) from None
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class DirectoryLock:
    """An advisory lock on an existing directory, such as the cgroup root that is written below.

    It leaves no file behind and does not depend on where an agent keeps its own. Raises LockedError, or OSError.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise LockedError(path, None) from None
        except OSError:
            os.close(self._fd)
            raise

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
