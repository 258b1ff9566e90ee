"""What every touched file said before us: the durable record that makes each write reversible.

Format. A text file, `/var/lib/koordlet/journal`, only appended to while the agent runs. The first line is a comment.
Every other line is eight hex digits of CRC-32, a blank, and a JSON object over which the CRC was taken:

    {"original": TEXT, "id": N, "target": CGROUP, "knob": NAME, "path": FILE, "inode": N, "boot": ID, "ours": [TEXT],
     "owner": STRATEGY, "reason": WHY}
    {"ours": [[N, TEXT], ...]}            values about to be written to the files of these ids
    {"settled": [[N, TEXT], ...]}         the file reads back as this now; earlier values are no longer ours
    {"done": [N, ...]}                    restored, left to somebody else, or gone

TEXT is the file's bytes as Latin-1. An "original" is fsynced before we write the kernel file, all of one pass in one
go. The others, and originals of what a runtime has written in our name already, are not: they survive a crash of the
agent in the page cache, and a crash of the machine resets the cgroups anyway, which is why records of another boot are
dropped. `ours` goes out before the write, so that an undo after a crash knows a value of ours from somebody else's. A
line that is cut short or damaged never existed.

On start, and when the file has grown long, the living records are written to a new file, which is fsynced and renamed
over the old one.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from koordlet.kernel.host import Host
from koordlet.model.knob import Knob

log = structlog.get_logger(__name__)

HEADER: Final = b"# koordlet journal 1: original content of the kernel files it changed; see koordlet/act/journal.py\n"
COMPACT_BYTES: Final = 262_144
"""A longer file is compacted, provided that this makes it four times smaller."""
OURS_MAX: Final = 16
REASON_MAX: Final = 256
"""Characters kept of the reason for a first write."""
_KNOBS: Final = {knob.value for knob in Knob}


class JournalError(Exception):
    """An original could not be made durable (disk full, read-only, I/O error); nothing may be written for it."""


@dataclass(slots=True)
class Entry:
    """One changed file. original: its first bytes. ours: values that we may have left there, oldest first.

    owner, reason: the strategy that first changed it and why, for whoever reads of the undo; "" where nobody said."""

    target: str
    knob: Knob
    path: str
    inode: int
    original: bytes
    ours: list[bytes] = field(default_factory=list)
    id: int = 0
    owner: str = ""
    reason: str = ""


def read_boot_id(host: Host) -> str:
    """The kernel's id of this boot; "" on a copied tree without one."""
    try:
        return (host.proc_root / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Journal:
    """fault: why the journal cannot take records right now, "" when it can; for the agent's health. damaged: lines
    that could not be read at the start; what they said cannot be undone."""

    def __init__(self, path: Path, boot_id: str) -> None:
        """Reads what is there and compacts it. An unwritable place is a `fault`, not an error: what was recorded
        earlier can still be undone. Raises JournalError if an existing file cannot be read."""
        self.path = path
        self.fault = ""
        self.damaged = 0
        self._boot_id = boot_id
        self._fd = -1
        self._size_bytes = 0
        self._live: dict[int, Entry] = {}
        self._by_file: dict[tuple[str, Knob, int], Entry] = {}
        self._next_id = 1
        self._compact_at_bytes = COMPACT_BYTES
        self._load()
        self._heal()

    def live(self) -> tuple[Entry, ...]:
        """Files that are not back to their original, in the order of their first write."""
        return tuple(self._live.values())

    def find(self, target: str, knob: Knob, inode: int) -> Entry | None:
        """By cgroup rather than by path, which differs between a container and the host."""
        return self._by_file.get((target, knob, inode))

    def has(self, entry: Entry) -> bool:
        return self._live.get(entry.id) is entry

    def add(self, entries: Sequence[Entry], *, durable: bool = True) -> None:
        """Record originals, together; gives each entry its id. Raises JournalError: then none of them is. durable:
        before it returns, which takes long on a busy disk."""
        if not entries:
            return
        lines = []
        for entry in entries:
            entry.id, self._next_id = self._next_id, self._next_id + 1
            lines.append(self._original(entry))
        if not self._append(b"".join(lines), durable=durable):
            raise JournalError(f"{self.path}: {self.fault}")
        for entry in entries:
            self._keep(entry)

    def intend(self, values: Iterable[tuple[Entry, bytes]]) -> None:
        """Note values that are about to be written. Never fails: without the note an undo after a crash would take
        the value for somebody else's and leave it, which is told by `fault`."""
        fresh = [(entry, data) for entry, data in values if self.has(entry) and data not in entry.ours]
        for entry, data in fresh:
            entry.ours.append(data)
            if len(entry.ours) > OURS_MAX:
                del entry.ours[1]  # the first one is settled
        if fresh:
            self._append(_line({"ours": [[entry.id, _text(data)] for entry, data in fresh]}))

    def settle(self, values: Iterable[tuple[Entry, bytes]], done: Iterable[Entry] = ()) -> None:
        """Note what the files read back as now, and which are no longer our concern. Never fails."""
        record: dict[str, Any] = {}
        settled = [(entry, data) for entry, data in values if self.has(entry) and entry.ours != [data]]
        if settled:
            record["settled"] = [[entry.id, _text(data)] for entry, data in settled]
        for entry, data in settled:
            entry.ours[:] = [data]
        ended = [entry for entry in done if self.has(entry)]
        if ended:
            record["done"] = [entry.id for entry in ended]
        for entry in ended:
            self._drop(entry)
        if record:
            self._append(_line(record))

    def check(self) -> None:
        """Write the file anew when somebody has removed it: what only an unlinked file holds is lost with us."""
        if self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:
            log.error("journal.removed", path=str(self.path))
            self._heal()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, data: bytes, *, durable: bool = False) -> bool:
        """False and a `fault` when it failed; the file then ends where it ended before."""
        if self.fault or self._fd < 0 or self._size_bytes > self._compact_at_bytes:
            self._heal()
        else:
            self.check()
        if self._fd < 0 or self.fault:
            return False
        try:
            _write_all(self._fd, data)
            if durable:
                os.fsync(self._fd)
        except OSError as error:
            self._fail(error)
            return False
        self._size_bytes += len(data)
        return True

    def _heal(self) -> None:
        """Start a new file with what is alive; on success there is no fault any more."""
        data = HEADER + b"".join(map(self._original, self._live.values()))
        fresh = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, data)
                os.fsync(fd)
                os.rename(fresh, self.path)
                _sync_directory(self.path.parent)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            self._fail(error)
            return
        self.close()
        self._fd, self._size_bytes = fd, len(data)
        self._compact_at_bytes = max(COMPACT_BYTES, 4 * len(data))
        if self.fault:
            log.info("journal.works_again", path=str(self.path))
        self.fault = ""

    def _fail(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self.fault:
            log.error("journal.write_failed", path=str(self.path), errno=error.errno, error=reason)
        self.fault = reason
        if self._fd >= 0:
            with suppress(OSError):  # the next success starts a new file anyway
                os.ftruncate(self._fd, self._size_bytes)

    def _load(self) -> None:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from error
        if not lines[0].startswith(b"#") and any(lines):
            self.damaged += 1  # not even our header: not a line of ours
        for line in lines[:-1]:  # after the last newline there is nothing, or a line that was cut short
            if line.startswith(b"#"):
                continue
            try:
                self._replay(_parse(line))
            except (ValueError, KeyError, TypeError):
                self.damaged += 1
        if self.damaged:
            log.error("journal.damaged", path=str(self.path), lines=self.damaged)

    def _replay(self, record: dict[str, Any]) -> None:
        if "original" in record:
            self._next_id = max(self._next_id, record["id"] + 1)
            if record["boot"] == self._boot_id and record["knob"] in _KNOBS:
                self._keep(
                    Entry(
                        target=record["target"],
                        knob=Knob(record["knob"]),
                        path=record["path"],
                        inode=record["inode"],
                        original=_bytes(record["original"]),
                        ours=[_bytes(text) for text in record["ours"]],
                        id=record["id"],
                        owner=str(record.get("owner", "")),
                        reason=str(record.get("reason", ""))[:REASON_MAX],
                    )
                )
            return
        for number, text in record.get("ours", ()):
            if number in self._live and _bytes(text) not in self._live[number].ours:
                self._live[number].ours.append(_bytes(text))
        for number, text in record.get("settled", ()):
            if number in self._live:
                self._live[number].ours[:] = [_bytes(text)]
        for number in record.get("done", ()):
            if number in self._live:
                self._drop(self._live[number])

    def _keep(self, entry: Entry) -> None:
        self._live[entry.id] = entry
        self._by_file[entry.target, entry.knob, entry.inode] = entry

    def _drop(self, entry: Entry) -> None:
        del self._live[entry.id]
        key = (entry.target, entry.knob, entry.inode)
        if self._by_file.get(key) is entry:  # another may have taken its place
            del self._by_file[key]

    def _original(self, entry: Entry) -> bytes:
        return _line(
            {
                "original": _text(entry.original),
                "id": entry.id,
                "target": entry.target,
                "knob": entry.knob,
                "path": entry.path,
                "inode": entry.inode,
                "boot": self._boot_id,
                "ours": [_text(data) for data in entry.ours],
                **({"owner": entry.owner} if entry.owner else {}),
                **({"reason": entry.reason} if entry.reason else {}),
            }
        )


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> dict[str, Any]:
    """Raises ValueError for a damaged line."""
    crc, _, text = line.partition(b" ")
    if crc != b"%08x" % zlib.crc32(text):
        raise ValueError("CRC does not match")
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    return record


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
