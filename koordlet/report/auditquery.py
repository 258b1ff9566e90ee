"""`GET /events`: the audit files read backwards, newest first, page by page (spec/api 4.5).

A page token names a cursor of ours. A cursor holds the active file open and knows the names of the older ones, so a
rotation in the middle of reading neither skips nor repeats a record. Lines may be of any length up to LINE_MAX_BYTES.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordlet.report.audit import ACTIVE

READER_TTL_S: Final = 600.0
PAGE_DEFAULT: Final = 256
PAGE_MAX_BYTES: Final = 4 << 20
"""A page ends early when it grows larger; its token goes on from there."""
LINE_MAX_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 16
_REMEMBERED: Final = 64

Answer = tuple[int, str, bytes, Mapping[str, str]]
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json; charset=utf-8"


@dataclass(slots=True)
class _Cursor:
    lines: Iterator[bytes | None]
    used_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)


class AuditQuery:
    """directory: of the audit files, None when none are written. max_events: largest `size`. clock: monotonic."""

    def __init__(
        self,
        directory: Path | None,
        *,
        max_readers: int = 4,
        max_events: int = 2048,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._clock = directory, clock
        self._max_readers, self._max_events = max(1, max_readers), max_events
        self._lock = threading.Lock()
        self._cursors: dict[str, _Cursor] = {}  # oldest use first
        self._expired: dict[str, None] = {}

    def page(self, query: Mapping[str, str], accept: str) -> Answer:
        """The reply to a request's query and its Accept header."""
        size = _size(query.get("size", ""))
        if size > self._max_events:
            return _refuse(400, f"size({size}) exceeds the limit({self._max_events})")
        if size < 1:
            return _refuse(400, f"size({size}) is less than 1")
        token = query.get("pageToken", "")
        with self._lock:
            self._sweep()
            if not token:
                token = self._open()
            elif token in self._expired:
                return _refuse(409, f"reader {token} is expired")
            elif token not in self._cursors:
                return _refuse(409, f"invalid pageToken {token[:64]}")
            cursor = self._cursors.pop(token)
            self._cursors[token] = cursor
            cursor.used_s = self._clock()
        with cursor.lock:
            events, ended = _take(cursor.lines, size)
        if ended:
            with self._lock:
                self._cursors.pop(token, None)
            token = ""
        if accept == "application/json":
            body = json.dumps(
                {"NextPageToken": token, "Events": [found for _, found in events]},
                ensure_ascii=False,
                separators=(",", ":"),
            )
            return 200, _JSON, body.encode("utf-8", "backslashreplace"), {}
        return 200, _TEXT, b"".join(line + b"\n" for line, _ in events), {"Next-Page-Token": token} if token else {}

    def _open(self) -> str:
        token = str(uuid.uuid4())
        self._cursors[token] = _Cursor(_backwards(self._directory), self._clock())
        while len(self._cursors) > self._max_readers:
            self._expire(next(iter(self._cursors)))
        return token

    def _sweep(self) -> None:
        now_s = self._clock()
        for token, cursor in list(self._cursors.items()):
            if now_s - cursor.used_s > READER_TTL_S:
                self._expire(token)

    def _expire(self, token: str) -> None:
        del self._cursors[token]
        self._expired[token] = None
        while len(self._expired) > _REMEMBERED:
            del self._expired[next(iter(self._expired))]


def _size(text: str) -> int:
    """What is no integer counts as absent."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else PAGE_DEFAULT


def _refuse(status: int, why: str) -> Answer:
    return status, _TEXT, f"{why}\n".encode("utf-8", "backslashreplace"), {}


def _take(lines: Iterator[bytes | None], size: int) -> tuple[list[tuple[bytes, Any]], bool]:
    """Up to `size` lines, and whether the data ended. Lines that are no records count, but are not shown."""
    events: list[tuple[bytes, Any]] = []
    total = 0
    for _ in range(size):
        try:
            line = next(lines)
        except StopIteration:
            return events, True
        found = None if line is None else _record(line)
        if line is not None and found is not None:
            events.append((line, found))
            total += len(line)
        if total >= PAGE_MAX_BYTES:
            break
    return events, False


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _backwards(directory: Path | None) -> Iterator[bytes | None]:
    """Lines of all files, the newest first; None for one that is too long to keep. The active file is opened now."""
    if directory is None:
        return iter(())
    fd = _opened(directory / ACTIVE)
    active = os.fstat(fd).st_ino if fd >= 0 else 0
    older = []
    for path in sorted(directory.glob("audit-*.log")):
        with suppress(OSError):
            if path.stat().st_ino != active:  # it may have been rotated just now
                older.append(path.name)
    return _files(directory, fd, older)


def _files(directory: Path, fd: int, older: list[str]) -> Iterator[bytes | None]:
    while True:
        if fd >= 0:
            try:
                yield from _lines(fd)
            finally:
                os.close(fd)
        if not older:
            return
        fd = _opened(directory / older.pop())


def _opened(path: Path) -> int:
    """-1 when it is not there, or not to be read."""
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _lines(fd: int) -> Iterator[bytes | None]:
    """From the end that the file has now."""
    at = os.fstat(fd).st_size
    rest, dropped = b"", False
    while at > 0:
        begin = max(0, at - _BLOCK_BYTES)
        block = os.pread(fd, at - begin, begin)
        at = begin
        first, *whole = (block + rest).split(b"\n")
        if whole and dropped:
            whole[-1], dropped = b"", False
            yield None
        for line in reversed(whole):
            if line:
                yield line
        rest = first
        if len(rest) > LINE_MAX_BYTES:
            rest, dropped = b"", True
    if dropped:
        yield None
    elif rest:
        yield rest
