"""Carrying out a set of changes: laid out in order, noted in the journal, written one by one, read back.

Shared by the executor and by undo, so that a restore obeys the same order and the same journal as a write.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from koordlet.act.along import along
from koordlet.act.coupled import WEIGHT_AFTER_IDLE, add_weights, weights_at_risk
from koordlet.act.job import Job
from koordlet.act.journal import REASON_MAX, Entry, Journal, JournalError
from koordlet.act.look import as_text, enough, restore_bytes, says, value_of
from koordlet.act.newborn import newborns
from koordlet.act.order import Change, Key, Step, plan
from koordlet.act.unpin import everything
from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobitems import address, select
from koordlet.kernel.knobs import KNOBS, Hierarchy
from koordlet.kernel.knobtext import encode, in_force

Writer = Callable[[Path, bytes], None]
Observed = Callable[[Job, float, bool], None]
"""The job, how long its write took in milliseconds, and whether the kernel took it."""


@dataclass(slots=True)
class _Write:
    job: Job
    data: bytes
    final: bool


def carry_out(
    host: Host,
    journal: Journal,
    jobs: Iterable[Job],
    writer: Writer,
    observed: Observed | None = None,
    managed: Container[Key] = (),
) -> list[Job]:
    """Record, write and verify. Returns the jobs with their outcome, and those that had to come along. managed: files
    that never come along, because somebody has a wish for them.

    A failing job never stops the others. Exceptions other than OSError pass through; the journal then knows enough
    for an undo.
    """
    known = {job.key: job for job in jobs}
    add_weights(host, journal, known)
    known |= {job.key: job for job in along(host, journal, known, managed)}
    known |= {job.key: job for job in newborns(host, journal, known)}
    writes = _lay_out(host.version, known)
    _record(host, journal, known, writes)
    for write in writes:
        job = write.job
        if job.ok:
            _write(host.version, write, writer, observed)
            if job.errno and job.entry and (data := everything(host, job)):
                journal.intend([(job.entry, data)])
                job.lifted, job.errno, job.error = True, 0, ""
                _write(host.version, replace(write, data=data), writer, observed)
    journal.settle(
        [(job.entry, job.after) for job in known.values() if job.ok and job.entry and not _ended(job)],
        [job.entry for job in known.values() if job.entry and _ended(job)],
    )
    return list(known.values())


def _ended(job: Job) -> bool:
    """The file is not our concern any more."""
    return job.gone or (job.ok and job.restoring and not job.lifted)


def _lay_out(version: CgroupVersion, jobs: Mapping[Key, Job]) -> list[_Write]:
    """What the plan leaves out (garbage that a restore puts back, another spelling of the same value) comes last."""
    changes = {
        key: Change(value_of(version, job.knob, job.look.raw), job.value)
        for key, job in jobs.items()
        if job.value is not None
    }
    steps = [_as_write(version, jobs, step) for step in plan(changes)]
    planned = {write.job.key for write in steps}
    return [*steps, *(_Write(job, job.data, True) for key, job in jobs.items() if key not in planned)]


def _as_write(version: CgroupVersion, jobs: Mapping[Key, Job], step: Step) -> _Write:
    job = jobs[step.target, step.knob]
    return _Write(job, job.data if step.final else encode(version, step.knob, step.value), step.final)


def _record(host: Host, journal: Journal, jobs: Mapping[Key, Job], writes: list[_Write]) -> None:
    """Originals first, durably; then the values on their way. Jobs that could not be recorded fail."""
    values: dict[Key, list[bytes]] = {}
    for write in writes:
        values.setdefault(write.job.key, []).append(write.data)
    fresh: list[Job] = []
    for job in jobs.values():
        if job.entry is None:
            path, inode = os.fspath(job.look.path), job.look.inode
            ours, reason = values.get(job.key, []), job.reason[:REASON_MAX]
            job.entry = Entry(job.target, job.knob, path, inode, job.original, ours, owner=job.owner, reason=reason)
            fresh.append(job)
    weights = weights_at_risk(host, journal, jobs)
    try:
        originals = [job.entry for job in fresh if job.entry is not None]
        journal.add([*originals, *(entry for _, entry in weights if not journal.has(entry))])
    except JournalError as error:
        for job in fresh:
            job.entry, job.unrecorded = None, True
            job.error = f"not written, its original could not be recorded: {error}"
        for idle, entry in weights:
            if not journal.has(entry):
                idle.error, idle.unrecorded = f"not written, its weight could not be recorded: {error}", True
    journal.intend(
        [(write.job.entry, write.data) for write in writes if write.job.ok and write.job.entry]
        + [(entry, data) for idle, entry in weights if idle.ok for data in WEIGHT_AFTER_IDLE[host.version]]
    )


def _write(version: CgroupVersion, write: _Write, writer: Writer, observed: Observed | None) -> None:
    job = write.job
    try:
        if not job.begun and _overtaken(version, job):
            job.overtaken = True
            return
        job.begun = True
        _timed(write, address(version, job.knob, job.target, write.data), writer, observed)
        if write.final:
            job.after = select(version, job.knob, job.target, job.look.path.read_bytes()) or b""
    except OSError as error:
        # A refused stopover is no failure yet: the last write may still be possible, and it decides.
        job.gone = is_gone(error)
        if write.final:
            job.errno, job.error = error.errno or 0, error.strerror or str(error)
        return
    if not write.final:
        return
    after = as_text(job.after)
    if not job.restoring and not in_force(job.knob, after):
        job.error = f"reads back as {after!r}"
        with suppress(OSError):  # or the kernel would never try again, once what is in the way is gone
            writer(job.look.path, restore_bytes(version, job.knob, job.original))
    elif not says(version, job.knob, write.data, after):
        job.error = f"reads back as {after!r}"


def _overtaken(version: CgroupVersion, job: Job) -> bool:
    """True if the kubelet or a runtime has set a limit since the look, for recording may have taken long: one that is
    enough is not lowered, and an older one is not put in its place."""
    if not job.at_least and not (job.restoring and KNOBS[job.knob].hierarchy is not Hierarchy.NONE):
        return False
    raw = select(version, job.knob, job.target, job.look.path.read_bytes()) or b""
    if job.at_least:
        return job.value is not None and enough(version, job.knob, job.value, raw)
    return raw != job.look.raw


def _timed(write: _Write, data: bytes, writer: Writer, observed: Observed | None) -> None:
    """Raises what the writer raises."""
    begun_s, ok = time.perf_counter(), False
    try:
        writer(write.job.look.path, data)
        ok = True
    finally:
        if observed is not None:
            observed(write.job, (time.perf_counter() - begun_s) * 1e3, ok)
