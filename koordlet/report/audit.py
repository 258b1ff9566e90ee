"""The audit file: one JSON object per action, written through at once, rotated by size (spec/api 4.5).

Keys of the reference: createdAt, type, level, namespace, name, container, reason, message; ours besides:
target, knob, before, after, owner, mode, error, why (stage -> number). Empty texts are left out. Never reads
the kernel, never raises into the tick: a disk that is full costs records, not control.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import structlog

from koordlet.model.audit import AuditRecord

log = structlog.get_logger(__name__)

ACTIVE: Final = "audit.log"
ROTATE_BYTES: Final = 2 << 20
TAIL_RECORDS: Final = 256
_STAMP: Final = "%Y-%m-%d-%H-%M-%S"
_TEXT_MAX: Final = 1024
"""Longest text kept of one field; a record must not grow with what a stranger put into a kernel file or a name."""


class AuditLog:
    """An `AuditSink`.

    directory: made 0755 at the first record; None keeps the tail in memory only (gate AuditEvents off).
    verbose: records of a higher level are dropped, 0 keeps all. max_mb: of all files together, so max_mb // 2
    files of 2 MiB (one at least). clock: wall clock in seconds.
    write_errors: records that could not be written since the start. last_error: why, "" while writing works.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        *,
        verbose: int = 3,
        max_mb: int = 16,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = None if directory is None else Path(directory)
        self.write_errors = 0
        self.last_error = ""
        self._verbose = verbose
        self._max_files = max(1, (max_mb << 20) // ROTATE_BYTES)
        self._clock = clock
        self._lock = threading.Lock()
        self._tail: deque[dict[str, Any]] = deque(maxlen=TAIL_RECORDS)
        self._fd = -1
        self._failing = False

    def __call__(self, record: AuditRecord) -> None:
        if self._verbose and record.level > self._verbose:
            return
        row = _row(record, self._clock())
        with self._lock:
            self._tail.append(row)
            if self.directory is not None:
                self._write(self.directory, row)

    def tail(self, limit: int = TAIL_RECORDS) -> list[dict[str, Any]]:
        """The last records as they stand in the file, oldest first."""
        with self._lock:
            rows = list(self._tail)
        return rows[max(0, len(rows) - max(0, limit)) :]

    def close(self) -> None:
        with self._lock:
            self._forget()

    def _write(self, directory: Path, row: dict[str, Any]) -> None:
        # A lone surrogate (a cgroup name that is no UTF-8) becomes \udcXX, which is valid JSON.
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"
        try:
            self._append(directory, line)
        except OSError as error:
            self._forget()
            self.write_errors += 1
            self.last_error = f"{directory / ACTIVE}: {error.strerror or error}"
            if not self._failing:
                self._failing = True
                log.error("audit.write_failed", file=str(directory / ACTIVE), error=error.strerror)
            return
        if self._failing:
            self._failing = False
            self.last_error = ""
            log.info("audit.recovered", lost=self.write_errors)

    def _append(self, directory: Path, line: bytes) -> None:
        if self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:  # somebody removed the file under us
            self._forget()
        if self._fd < 0:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._fd = _open(directory / ACTIVE)
        before = os.fstat(self._fd).st_size
        written = os.write(self._fd, line)
        if written != len(line):  # the disk filled up in the middle: leave no torn line behind
            os.ftruncate(self._fd, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if before + written >= ROTATE_BYTES:
            self._rotate(directory)

    def _rotate(self, directory: Path) -> None:
        """All nine names of this second taken: the file stays active and the next record tries again."""
        stamp = _stamp_after(directory, self._clock())
        for index in range(9):
            target = directory / f"audit-{stamp}-{index}.log"
            if not target.exists():
                os.rename(directory / ACTIVE, target)
                self._forget()
                break
        rotated = sorted(directory.glob("audit-*.log"))
        for old in rotated[: max(0, len(rotated) - (self._max_files - 1))]:
            old.unlink(missing_ok=True)

    def _forget(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _stamp_after(directory: Path, wall_s: float) -> str:
    """The time for a file's name, never before the newest one's: who deletes the oldest and who reads backwards go by
    the names, and a clock may be set back, by an hour even each autumn."""
    stamp = datetime.fromtimestamp(wall_s).strftime(_STAMP)
    newest = max((path.name.removeprefix("audit-")[:19] for path in directory.glob("audit-*.log")), default="")
    if newest <= stamp:
        return stamp
    try:
        return (datetime.strptime(newest, _STAMP) + timedelta(seconds=1)).strftime(_STAMP)
    except (ValueError, OverflowError):
        return stamp  # no file of ours


def _open(path: Path) -> int:
    """Append to `path`; a last line torn by a crash is ended first, so it spoils no record but itself."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    return fd


def _row(record: AuditRecord, wall_s: float) -> dict[str, Any]:
    texts = {
        "type": record.kind,
        "namespace": record.namespace,
        "name": record.name,
        "container": record.container,
        "reason": record.reason,
        "message": record.message,
        "target": record.target,
        "knob": record.knob,
        "before": record.before,
        "after": record.after,
        "owner": record.owner,
        "mode": record.mode,
        "error": record.error,
    }
    row: dict[str, Any] = {"createdAt": _rfc3339(wall_s), "level": record.level}
    row.update((key, text[:_TEXT_MAX]) for key, text in texts.items() if text)
    if record.why:
        row["why"] = dict(record.why)
    return row


def _rfc3339(wall_s: float) -> str:
    """Local time with its zone; UTC is written Z as the reference does."""
    text = datetime.fromtimestamp(wall_s).astimezone().isoformat(timespec="microseconds")
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text
