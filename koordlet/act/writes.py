"""Carrying out a set of changes: laid out in order, noted in the journal, written one by one, read back.

Shared by the executor and by undo, so that a restore obeys the same order and the same journal as a write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from koordlet.act.journal import Entry, Journal, JournalError
from koordlet.act.look import Look, as_text, look, restore_bytes, says, value_of
from koordlet.act.order import Change, Key, Step, plan
from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import encode
from koordlet.model.knob import Knob, KnobValue

Writer = Callable[[Path, bytes], None]

WEIGHT_AFTER_IDLE: Final = {CgroupVersion.V1: (b"1024", b"3"), CgroupVersion.V2: (b"100", b"0", b"1")}
"""What the kernel itself puts into the weight file when cpu.idle is cleared or set: counts as ours."""


@dataclass(slots=True)
class Job:
    """One file to be changed. data: what the last write carries, standing for `value`. original: first bytes of the
    file as far as known, recorded unless the journal has an entry. restoring: on success the journal's entry is done.
    unrecorded: the journal refused. error/errno/gone/after: the outcome."""

    target: str
    knob: Knob
    look: Look
    data: bytes
    value: KnobValue | None
    original: bytes
    entry: Entry | None = None
    restoring: bool = False
    unrecorded: bool = False
    error: str = ""
    errno: int = 0
    gone: bool = False
    after: bytes = b""

    @property
    def key(self) -> Key:
        return (self.target, self.knob)

    @property
    def ok(self) -> bool:
        return not self.error and not self.gone


@dataclass(slots=True)
class _Write:
    job: Job
    data: bytes
    final: bool


def carry_out(host: Host, journal: Journal, jobs: Iterable[Job], writer: Writer) -> list[Job]:
    """Record, write and verify. Returns the jobs with their outcome, and those that had to come along.

    A failing job never stops the others. Exceptions other than OSError pass through; the journal then knows enough
    for an undo.
    """
    known = {job.key: job for job in jobs}
    _with_weights(host, journal, known)
    known |= {job.key: job for job in newborns(host, journal, known)}
    writes = _lay_out(host.version, known)
    _record(host, journal, known, writes)
    for write in writes:
        job = write.job
        if job.ok:
            _write(host.version, write, writer)
    journal.settle(
        [(job.entry, job.after) for job in known.values() if job.ok and job.entry and not job.restoring],
        [job.entry for job in known.values() if job.entry and (job.gone or (job.ok and job.restoring))],
    )
    return list(known.values())


class Standing(Enum):
    """What a recorded file holds now."""

    ORIGINAL = auto()
    OURS = auto()
    FOREIGN = auto()


def standing(version: CgroupVersion, entry: Entry, text: str) -> Standing:
    if says(version, entry.knob, restore_bytes(version, entry.knob, entry.original), text):
        return Standing.ORIGINAL
    if any(says(version, entry.knob, data, text) for data in entry.ours):
        return Standing.OURS
    return Standing.FOREIGN


def restore_job(host: Host, entry: Entry, found: Look) -> Job:
    data = restore_bytes(host.version, entry.knob, entry.original)
    value = value_of(host.version, entry.knob, data)
    return Job(entry.target, entry.knob, found, data, value, entry.original, entry, restoring=True)


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
            job.entry = Entry(job.target, job.knob, path, inode, job.original, values.get(job.key, []))
            fresh.append(job)
    weights = _weights_at_risk(host, journal, jobs)
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


def _weights_at_risk(host: Host, journal: Journal, jobs: Mapping[Key, Job]) -> list[tuple[Job, Entry]]:
    """Weight files of the groups about to become idle: clearing cpu.idle later resets them to the default."""
    found: list[tuple[Job, Entry]] = []
    for (target, knob), idle in jobs.items():
        if knob is not Knob.CPU_IDLE or idle.value != 1:
            continue
        weight = jobs.get((target, Knob.CPU_SHARES))
        if weight is not None and weight.entry is not None:
            found.append((idle, weight.entry))
            continue
        try:
            seen = look(host, target, Knob.CPU_SHARES)
        except OSError as error:
            idle.error = f"not written, the group's weight is unreadable: {error.strerror}"
            continue
        if isinstance(seen, Look):
            fresh_entry = Entry(target, Knob.CPU_SHARES, os.fspath(seen.path), seen.inode, seen.raw)
            found.append((idle, journal.find(target, Knob.CPU_SHARES, seen.inode) or fresh_entry))
    return found


def _with_weights(host: Host, journal: Journal, jobs: dict[Key, Job]) -> None:
    """Where cpu.idle is cleared the recorded weight is written afterwards, unless a wanted one is."""
    for target, knob in list(jobs):
        if knob is Knob.CPU_IDLE and jobs[target, knob].value == 0 and (target, Knob.CPU_SHARES) not in jobs:
            try:
                found = look(host, target, Knob.CPU_SHARES)
            except OSError:
                continue
            entry = journal.find(target, Knob.CPU_SHARES, found.inode) if isinstance(found, Look) else None
            if entry is not None and isinstance(found, Look):
                jobs[target, Knob.CPU_SHARES] = restore_job(host, entry, found)


def _write(version: CgroupVersion, write: _Write, writer: Writer) -> None:
    job = write.job
    try:
        writer(job.look.path, write.data)
        if write.final:
            job.after = job.look.path.read_bytes()
    except OSError as error:
        # A refused stopover is no failure yet: the last write may still be possible, and it decides.
        job.gone = is_gone(error)
        if write.final:
            job.errno, job.error = error.errno or 0, error.strerror or str(error)
        return
    if write.final and not says(version, job.knob, job.data, as_text(job.after)):
        job.error = f"reads back as {as_text(job.after)!r}"


def newborns(host: Host, journal: Journal, jobs: Mapping[Key, Job]) -> list[Job]:
    """Groups made inside a CPU set that we had narrowed and that is widened again now.

    On v1 a runtime copies the parent's CPUs into a new group, so it would stay narrow for ever. A group of a
    different set was given it by somebody, and so were those below it.
    """
    found: list[Job] = []
    if host.version is CgroupVersion.V2:
        return found
    for job in jobs.values():
        if job.knob is Knob.CPUSET and job.restoring:
            ours = job.look.text
            below = [job.target]
            while below:
                for target in _children(host, below.pop()):
                    seen = _glance(host, target)
                    if seen is None or seen.text != ours or (target, Knob.CPUSET) in jobs:
                        continue
                    if journal.find(target, Knob.CPUSET, seen.inode) is None:
                        path = os.fspath(seen.path)
                        entry = Entry(target, Knob.CPUSET, path, seen.inode, job.original, [seen.raw])
                        found.append(restore_job(host, entry, seen))
                        below.append(target)
    return found


def _children(host: Host, target: str) -> list[str]:
    try:
        with os.scandir(host.dir("cpuset", target)) as entries:
            return [f"{target}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _glance(host: Host, target: str) -> Look | None:
    try:
        seen = look(host, target, Knob.CPUSET)
    except OSError:
        return None
    return seen if isinstance(seen, Look) else None
