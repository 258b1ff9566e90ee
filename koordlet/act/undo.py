"""Undo: every file in the journal back to its first bytes, unless somebody else has changed it since.

Used by the `undo` command, by a clean stop, and after a crash for what the next agent does not want.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from koordlet.act.job import Job, Standing, restore_job, standing
from koordlet.act.journal import Entry, Journal
from koordlet.act.look import Missing, as_text, look
from koordlet.act.records import record
from koordlet.act.writes import Writer, carry_out
from koordlet.kernel.host import Host
from koordlet.kernel.write import write_file
from koordlet.model.audit import AuditSink
from koordlet.model.knob import Knob

log = structlog.get_logger(__name__)

ROUNDS: Final = 3
"""A write can be refused because of another cgroup that a later write of the same round puts right."""


class Action(StrEnum):
    RESTORED = "restored"
    ORIGINAL = "already original"
    KEPT = "kept, foreign value"
    LIFTED = "lifted, the kernel refuses an empty list while processes run here"
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class UndoRow:
    """original/current: file text; current is what the file said before the undo, "" where it is gone.

    owner, reason: of the first write, as the journal has them."""

    target: str
    knob: Knob
    path: str
    original: str
    current: str
    action: Action
    error: str = ""
    owner: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UndoReport:
    rows: tuple[UndoRow, ...] = ()

    def count(self, action: Action) -> int:
        return sum(row.action is action for row in self.rows)

    @property
    def restored(self) -> int:
        return self.count(Action.RESTORED)

    @property
    def failed(self) -> int:
        return self.count(Action.FAILED)

    @property
    def lifted(self) -> int:
        return self.count(Action.LIFTED)

    @property
    def kept(self) -> int:
        return self.count(Action.KEPT)


def undo(
    host: Host,
    journal: Journal,
    audit: AuditSink,
    *,
    force: bool = False,
    writer: Writer = write_file,
    why: str = "undo",
    wanted: Container[int] = (),
) -> UndoReport:
    """Restore all that this boot's journal has, but for the entries `wanted` (ids). force: also where the value is not
    ours any more.

    What fails, is kept because it is foreign, or is lifted (unpin.py) stays in the journal, so it can be tried again.
    Never raises for a kernel file. why: goes to the audit.
    """
    rows: dict[tuple[str, Knob, int], UndoRow] = {}
    for _ in range(ROUNDS):
        left = [entry for entry in journal.live() if entry.id not in wanted]
        jobs = [job for entry in left if (job := _examine(host, journal, entry, force, rows)) is not None]
        if not jobs:
            break
        done = carry_out(host, journal, jobs, writer)
        for job in done:
            action = _outcome(job)
            current = "" if job.gone else job.look.text
            rows[job.target, job.knob, job.look.inode] = _row(job.entry, current, action, "" if job.gone else job.error)
        if all(job.error and not job.gone for job in done):
            break
    for row in rows.values():
        _tell(audit, row, why)
    return UndoReport(tuple(rows.values()))


def _examine(
    host: Host, journal: Journal, entry: Entry, force: bool, rows: dict[tuple[str, Knob, int], UndoRow]
) -> Job | None:
    """A job, or a row that says why there is none."""
    key = (entry.target, entry.knob, entry.inode)
    if key in rows and rows[key].action is Action.LIFTED:
        return None
    try:
        found = look(host, entry.target, entry.knob)
    except OSError as error:
        rows[key] = _row(entry, "", Action.FAILED, error.strerror or str(error))
        return None
    if isinstance(found, Missing) or found.inode != entry.inode:
        rows[key] = _row(entry, "", Action.GONE)
        journal.settle((), [entry])
        return None
    now = standing(host.version, entry, found.text)
    if now is Standing.OURS or (now is Standing.FOREIGN and force):
        return restore_job(host, entry, found)
    if now is Standing.FOREIGN:
        rows[key] = _row(entry, found.text, Action.KEPT)
        return None
    rows.setdefault(key, _row(entry, found.text, Action.ORIGINAL))
    journal.settle((), [entry])
    return None


def _outcome(job: Job) -> Action:
    if not job.ok:
        return Action.GONE if job.gone else Action.FAILED
    return Action.LIFTED if job.lifted else Action.RESTORED


def _row(entry: Entry | None, current: str, action: Action, error: str = "") -> UndoRow:
    assert entry is not None  # every job of an undo has one
    original = as_text(entry.original)
    return UndoRow(entry.target, entry.knob, entry.path, original, current, action, error, entry.owner, entry.reason)


def _tell(audit: AuditSink, row: UndoRow, why: str) -> None:
    """Under the name of the strategy that had changed the file, with its reason."""
    owner, set_by = row.owner or "undo", f"set by {row.owner}: {row.reason}" if row.owner else ""
    if row.action is Action.RESTORED:
        audit(record("restore", row.target, row.knob, row.current, row.original, owner=owner, note=_notes(why, set_by)))
    elif row.action is Action.LIFTED:
        lifted = "all CPUs for an empty list, which the kernel refuses while processes run here"
        note = _notes(why, lifted, set_by)
        audit(record("restore", row.target, row.knob, row.current, row.original, owner=owner, note=note))
    elif row.action is Action.KEPT:
        note = _notes(why, "foreign value kept", set_by)
        audit(record("restore", row.target, row.knob, row.current, row.current, owner=owner, note=note))
    elif row.action is Action.FAILED:
        log.warning("undo.failed", path=row.path, value=row.original, error=row.error)
        note = _notes(why, set_by)
        audit(
            record("refused", row.target, row.knob, row.current, row.original, owner=owner, note=note, error=row.error)
        )


def _notes(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
