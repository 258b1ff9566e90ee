"""The executor: brings the kernel to what the strategies want, keeps it there, and gives back what nobody wants.

Cost. A pass in which nothing changed compares tuples by identity and reads back the hot knobs on kept descriptors;
it writes nothing. Everything else is verified once per `force_s`, spread over that time.

One slot per (target, knob). A slot is looked at when its wish is new, when it is due (retry, forced check) or when a
hot file no longer reads as before; `carry_out` then writes all changes of the pass together, in order.

Longer than most files: one state machine over a slot; what could stand alone is in slot, book, writes and records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from koordlet.act import along
from koordlet.act.adopt import NoReplies, Replies, adopted
from koordlet.act.book import Book
from koordlet.act.coupled import burst_for
from koordlet.act.job import Job, Standing, restore_job, standing
from koordlet.act.journal import Entry, Journal, JournalError
from koordlet.act.look import Look, Missing, as_text, look
from koordlet.act.merge import merge
from koordlet.act.newborn import inherited
from koordlet.act.order import Key
from koordlet.act.records import Teller
from koordlet.act.slot import AT_ONCE, NEVER, Slot
from koordlet.act.undo import undo
from koordlet.act.writes import Observed, Writer, carry_out
from koordlet.kernel.host import Host
from koordlet.kernel.knobs import ensure_target, knob_path
from koordlet.kernel.knobtext import encode, same
from koordlet.kernel.write import write_file
from koordlet.model.audit import AuditSink
from koordlet.model.knob import RESTORE, Decision, Knob, Restore
from koordlet.model.status import ApplyReport, Held, HeldState
from koordlet.model.why import why_text

log = structlog.get_logger(__name__)

BACKOFF_MAX_S: Final = 60.0
TOGETHER_SHARE: Final = 1 / 12
"""Of the time between two looks at a file: those that fall due within it are looked at in one pass, so that most ticks
of a full node look at none."""
DRIFT_TOLD_S: Final = 60.0
"""One log line per knob in that time; the audit log and the metrics have each repair."""


@dataclass(slots=True)
class _Counts:
    written: int = 0
    restored: int = 0
    failed: int = 0
    drifted: int = 0


class Executor:
    """Not thread-safe: one thread calls `apply`. `held` may be called from any.

    observe: nothing is written and no journal is needed. writer: how a file is written; tests pass one that enforces
    the kernel's rules on a copied tree. observed: told of each write. replies: what a runtime writes in our name. owes:
    a predecessor left values in force, for `give_back_left` to judge.
    """

    def __init__(
        self,
        host: Host,
        journal: Journal | None,
        audit: AuditSink,
        *,
        observe: bool = False,
        force_s: float = 60.0,
        writer: Writer = write_file,
        replies: Replies | None = None,
        observed: Observed | None = None,
    ) -> None:
        if journal is None and not observe:
            raise ValueError("an executor that writes needs a journal")
        self._host = host
        self._journal = None if observe else journal
        self._audit = audit
        self._tell = Teller(host, audit)
        self._force_s = force_s
        self._writer, self._observed = writer, observed
        self._taken: dict[str, Sequence[Decision]] = {}
        self._book = Book(host)
        self._counts = _Counts()
        self._replies: Replies = replies or NoReplies()
        self._adopted: list[tuple[Slot, Entry, Entry | None]] = []
        self.owes = self._journal is not None and bool(self._journal.live())

    def apply(self, by_owner: Mapping[str, Sequence[Decision]], now_s: float) -> ApplyReport:
        """Make it so. What was wanted before and is not named any more is restored. Never raises for a kernel file.

        now_s: monotonic seconds.
        """
        self._take(by_owner)
        self._book.check_hot()
        if self._book.next_due_s <= now_s:
            self._work(now_s)
        return self._report()

    def held(self) -> tuple[Held, ...]:
        return self._book.last.held

    def degraded(self) -> tuple[str, ...]:
        """Why the agent's health is not fine, as seen from here."""
        if self._journal is None:
            return ()
        self._journal.check()
        return (f"journal: {self._journal.fault}",) if self._journal.fault else ()

    def reprobe(self) -> None:
        """The world may have changed (module, mount, controller): try unsupported knobs once more."""
        for slot in self._book.slots.values():
            if slot.state is HeldState.UNSUPPORTED:
                self._book.hurry(slot)

    def give_back_left(self) -> None:
        """What a predecessor that crashed left in force and nobody wants now, back to its original. To be called once
        the strategies had time to name what they want, so that nothing is lifted for a moment only to be set again."""
        self.owes = False
        if self._journal is None:
            return
        slots = self._book.slots.values()
        wanted = {slot.entry.id for slot in slots if slot.entry is not None}
        for entry in self._journal.live():
            if entry.owner == along.OWNER and any(
                (up, entry.knob) in self._book.slots for up in _ancestors(entry.target)
            ):
                wanted.add(entry.id)  # it goes back with the group that it came along with
        why = "left by a previous run"
        done = undo(self._host, self._journal, self._audit, writer=self._writer, why=why, wanted=wanted)
        for slot in slots:
            if slot.fails:  # it may have been in the way
                self._book.hurry(slot)
        log.info(
            "recovered", taken_over=len(wanted), restored=done.restored, kept_foreign=done.kept, failed=done.failed
        )

    def restore_all(self, now_s: float, why: str) -> ApplyReport:
        """Give everything back, for a clean stop. What fails stays in the journal for the next start or `undo`."""
        self.close()
        self._book, self._taken = Book(self._host), {}
        report = self._book.report()
        if self._journal is None:
            return report
        done = undo(self._host, self._journal, self._audit, writer=self._writer, why=why)
        log.info("restored", why=why, restored=done.restored, lifted=done.lifted, failed=done.failed, foreign=done.kept)
        errors = tuple(f"{row.path}: {row.error}" for row in done.rows if row.error)
        return replace(report, restored=done.restored, failed=done.failed, errors=errors)

    def close(self) -> None:
        """Let go of the kept descriptors; restores nothing."""
        for slot in self._book.slots.values():
            self._book.cool(slot)

    # wishes

    def _take(self, by_owner: Mapping[str, Sequence[Decision]]) -> None:
        taken = self._taken
        if len(taken) == len(by_owner) and all(taken.get(owner) is wish for owner, wish in by_owner.items()):
            return
        equal = taken.keys() == by_owner.keys() and all(taken[owner] == wish for owner, wish in by_owner.items())
        self._taken = dict(by_owner)
        if equal:
            return
        merged = merge(by_owner)
        self._book.shadow(merged.shadowed)
        for key, decision in merged.decisions.items():
            slot = self._book.slots.get(key)
            if slot is None:
                self._book.slots[key] = slot = Slot(decision, releasing=decision.value is RESTORE)
                self._book.hurry(slot)
            elif slot.decision is not decision:
                self._wish(slot, decision)
        for key in [key for key in self._book.slots if key not in merged.decisions]:
            self._unwanted(key, self._book.slots[key], merged.decisions)

    def _wish(self, slot: Slot, decision: Decision) -> None:
        old, releasing = slot.decision, decision.value is RESTORE
        if old == decision and slot.releasing == releasing and not slot.implied:
            slot.decision = decision
            return
        slot.decision = decision
        self._book.touch(slot)
        if old.hot and not decision.hot:
            self._book.cool(slot)
        if old.value != decision.value or slot.releasing != releasing or (decision.hot and not old.hot):
            slot.confirmed = slot.confirmed and old.value == decision.value
            self._book.hurry(slot)
        slot.releasing, slot.implied = releasing, False

    def _unwanted(self, key: Key, slot: Slot, wanted: Mapping[Key, Decision]) -> None:
        target, knob = key
        if slot.releasing or slot.implied:
            return
        if knob is Knob.CPU_SHARES:
            idle = wanted.get((target, Knob.CPU_IDLE))
            if idle is not None and idle.value == 1:
                self._drop(slot)  # not writable now; the journal has the weight for when cpu.idle is cleared
                return
        if knob is Knob.CPU_BURST and isinstance(wanted.get((target, Knob.CPU_QUOTA)), Decision):
            slot.implied = True  # the original may not fit under the quota
            self._book.hurry(self._book.slots[target, Knob.CPU_QUOTA])
            return
        slot.releasing, slot.confirmed = True, False
        self._book.hurry(slot)

    # one pass

    def _work(self, now_s: float) -> None:
        self._counts = _Counts()
        due = {
            key: slot
            for key, slot in self._book.slots.items()
            if slot.due_s <= now_s and not self._stands(key, slot, now_s)
        }
        for (target, knob), slot in list(due.items()):
            if knob is Knob.CPU_QUOTA and target:
                burst = self._imply_burst(target, slot)
                if burst is not None:
                    due[target, Knob.CPU_BURST] = burst
        jobs: dict[Key, Job] = {}
        for key, slot in due.items():
            job = self._examine(key, slot, now_s)
            if job is not None:
                jobs[key] = job
        for target, knob in list(jobs):
            if knob is Knob.CPU_IDLE and jobs[target, knob].value == 0:
                # clearing it resets the weight, whatever the file says now
                key = (target, Knob.CPU_SHARES)
                weight = self._book.slots.get(key)
                job = self._examine(key, weight, now_s, force=True) if weight and key not in jobs else None
                if job is not None:
                    jobs[key] = job
        if self._adopted:
            self._adopt(jobs)
        if self._journal is not None and jobs:
            slots = self._book.slots
            done = carry_out(self._host, self._journal, jobs.values(), self._writer, self._observed, slots)
            for job in done:
                self._conclude(job, now_s)
            self._cheer({job.key for job in done if job.ok})
        self._book.plan_next()

    def _stands(self, key: Key, slot: Slot, now_s: float) -> bool:
        told = self._replies.find(*key)
        if (told is not None and (slot.entry is None or told.anew)) or not slot.stands():
            return False
        self._look_later(slot, now_s)
        return True

    def _examine(self, key: Key, slot: Slot, now_s: float, *, force: bool = False) -> Job | None:
        """Look at one file; a job if it must be written. force: even if it reads as wanted."""
        (_, knob), value, version = key, slot.decision.value, self._host.version
        try:
            target = ensure_target(slot.decision.target, knob)
            data = b"" if slot.releasing or isinstance(value, Restore) else encode(version, knob, value)
        except ValueError as error:  # only another wish can help
            if slot.releasing:
                self._drop(slot)
                return None
            self._fail(slot, str(error), now_s, due_s=NEVER, tried=str(value))
            return None
        try:
            found = look(self._host, target, knob)
        except OSError as error:
            self._fail(slot, error.strerror or str(error), now_s, errno=error.errno or 0)
            return None
        if isinstance(found, Missing):
            self._missing(slot, found, now_s)
            return None
        self._recognise(slot, target, found)
        if slot.releasing or isinstance(value, Restore):
            return self._give_back(slot, found)
        if same(version, knob, value, found.text) and not force:
            self._hold(slot, found, now_s)
            return None
        if slot.confirmed and not force:
            self._counts.drifted += 1
            slot.confirmed, slot.note = False, "drift"
            if now_s >= slot.drift_due_s:  # somebody who fights us would fill the log
                slot.drift_due_s = now_s + DRIFT_TOLD_S
                log.info("knob.drift", target=target, knob=knob.value, found=found.text, wanted=as_text(data))
        if self._journal is None:
            self._observe(slot, found, as_text(data), now_s)
            return None
        decision = slot.decision
        reason = why_text(decision.why)
        return Job(target, knob, found, data, value, slot.original, slot.entry, owner=decision.owner, reason=reason)

    def _recognise(self, slot: Slot, target: str, found: Look) -> None:
        """Is it the cgroup we know? If not, what did it say before us?"""
        if slot.inode != found.inode:
            self._forget(slot)
            slot.inode, slot.confirmed = found.inode, False
            slot.original = inherited(self._host, self._journal, target, slot.decision.knob, found) or found.raw
        if slot.entry is None and self._journal is not None:
            slot.entry = self._journal.find(target, slot.decision.knob, found.inode)
            if slot.entry is not None:
                slot.original = slot.entry.original
        knob, journal = slot.decision.knob, self._journal
        told = self._replies.find(target, knob)
        if told is not None and journal is not None and (slot.entry is None or told.anew):
            entry = adopted(self._host, journal, target, knob, found, told, slot.decision.owner)
            if entry is not None:
                self._adopted.append((slot, entry, slot.entry))
                slot.entry, slot.original, slot.held = entry, entry.original, None

    def _adopt(self, jobs: Mapping[Key, Job]) -> None:
        """Make the originals of what runtimes wrote for us durable, before anything is written."""
        rows, self._adopted = self._adopted, []
        if self._journal is None:
            return
        try:
            self._journal.add([entry for _, entry, _ in rows])
        except JournalError:  # told by `degraded`; the next look tries again
            for slot, _, before in rows:
                slot.entry = before
            for job in jobs.values():
                if job.entry is not None and not self._journal.has(job.entry):
                    job.entry = None
            return
        self._journal.settle((), [before for _, _, before in rows if before is not None])
        for slot, entry, _ in rows:
            self._replies.drop(entry.target, entry.knob)
            self._tell("write", slot.decision, as_text(entry.original), as_text(entry.ours[0]), note=entry.reason)

    def _give_back(self, slot: Slot, found: Look) -> Job | None:
        entry, journal = slot.entry, self._journal
        if entry is not None and journal is not None:
            now = standing(self._host.version, entry, found.text)
            if now is Standing.OURS:
                return restore_job(self._host, entry, found)
            journal.settle((), [entry])
            if now is Standing.FOREIGN:
                self._tell("restore", slot.decision, found.text, found.text, note="foreign value kept")
        self._drop(slot)
        return None

    def _imply_burst(self, target: str, quota: Slot) -> Slot | None:
        """A quota takes a higher burst along when it goes down, and gives it back when it goes up or away."""
        key = (target, Knob.CPU_BURST)
        slot = self._book.slots.get(key)
        if slot is not None and not (slot.implied or slot.releasing):
            return None  # somebody wants a burst of his own
        value = quota.decision.value
        if quota.releasing or not isinstance(value, int) or value < 0:
            if slot is not None:
                slot.releasing, slot.implied, slot.confirmed = True, False, False
            return slot
        burst_us = burst_for(self._host, self._journal, target, value, lowered=slot is not None)
        if burst_us is None:
            return slot
        why = (*quota.decision.why, ("follows", Knob.CPU_QUOTA.value))
        decision = Decision(target, Knob.CPU_BURST, burst_us, why, quota.decision.owner)
        if slot is None:
            slot = self._book.slots[key] = Slot(decision)
        elif slot.decision.value != burst_us or slot.releasing:
            slot.decision, slot.confirmed, slot.held = decision, False, None
        slot.implied, slot.releasing = True, False
        return slot

    # outcomes

    def _hold(self, slot: Slot, found: Look, now_s: float) -> None:
        slot.raw, slot.fails, slot.told, slot.note = found.raw, 0, "", ""
        slot.path = str(found.path) if found.whole else ""
        self._look_later(slot, now_s)
        slot.confirmed = True
        slot.become(HeldState.HELD, now_s)
        if slot.decision.hot:
            self._book.warm(slot, found)

    def _look_later(self, slot: Slot, now_s: float) -> None:
        due_s = now_s + self._force_s * (1.0 if slot.confirmed else max(slot.phase(), 0.02))
        slot.due_s = due_s - due_s % (self._force_s * TOGETHER_SHARE)

    def _conclude(self, job: Job, now_s: float) -> None:
        slot = self._book.slots.get(job.key)
        if job.ok and job.restoring:
            self._counts.restored += 1
            decision = slot.decision if slot is not None else Decision(job.target, job.knob, RESTORE, (), "")
            self._tell("restore", replace(decision, why=()), job.look.text, as_text(job.after))
            if slot is not None and slot.releasing:
                self._drop(slot)
        elif slot is None:  # came along with another job; the journal still has it
            if job.ok and job.owner == along.OWNER and job.value is not None:
                decision = Decision(job.target, job.knob, job.value, (), job.owner)
                self._tell("write", decision, job.look.text, as_text(job.after), note=job.reason)
        elif job.gone:
            self._missing(slot, Missing.GONE, now_s)
        elif not job.ok:
            slot.entry = job.entry or slot.entry
            self._fail(
                slot,
                job.error,
                now_s,
                errno=job.errno,
                before=job.look.text,
                tried=as_text(job.data),
                quiet=job.unrecorded,
            )
        else:
            self._counts.written += 1
            slot.entry = job.entry
            note, slot.since_s, slot.held = slot.note, now_s, None
            self._hold(slot, replace(job.look, raw=job.after), now_s)
            self._tell("write", slot.decision, job.look.text, as_text(job.after), note=note)

    def _cheer(self, written: set[Key]) -> None:
        """Relatives of what went through, that were refused before for the order's sake, may pass now."""
        if not written or not any(slot.fails for slot in self._book.slots.values()):
            return
        above = {(up, knob) for target, knob in written for up in _ancestors(target)}
        for (target, knob), slot in self._book.slots.items():
            if slot.fails and ((target, knob) in above or any((up, knob) in written for up in _ancestors(target))):
                slot.due_s = AT_ONCE

    def _missing(self, slot: Slot, missing: Missing, now_s: float) -> None:
        self._forget(slot)
        slot.inode, slot.confirmed = -1, False
        if slot.releasing:
            self._drop(slot)
        elif missing is Missing.GONE:
            slot.fails += 1
            slot.due_s = now_s if slot.decision.hot else now_s + _backoff_s(slot.fails)
            slot.become(HeldState.GONE, now_s)
        else:
            slot.due_s = NEVER
            slot.become(HeldState.UNSUPPORTED, now_s, "no such file here")
            self._tell.unsupported(slot.decision)

    def _fail(
        self,
        slot: Slot,
        error: str,
        now_s: float,
        *,
        errno: int = 0,
        due_s: float | None = None,
        before: str = "",
        tried: str = "",
        quiet: bool = False,
    ) -> None:
        """One log line and one audit record until it succeeds or something else is wanted; then back-off."""
        self._book.cool(slot)  # else it is found moved, and tried again, in each tick
        self._counts.failed += 1
        slot.fails += 1
        slot.due_s = now_s + _backoff_s(slot.fails) if due_s is None else due_s
        slot.become(HeldState.FAILED, now_s, error)
        if slot.fails == 1 and not quiet:
            decision = slot.decision
            path = decision.target if due_s == NEVER else str(knob_path(self._host, decision.target, decision.knob))
            log.warning("knob.write_failed", knob=decision.knob.value, path=path, value=tried, errno=errno, error=error)
            self._tell("refused", decision, before, tried, error=error)

    def _observe(self, slot: Slot, found: Look, wanted: str, now_s: float) -> None:
        self._book.cool(slot)
        slot.due_s = now_s + self._force_s
        slot.become(HeldState.OBSERVED, now_s)
        if slot.told != wanted:
            slot.told = wanted
            self._tell("observe", slot.decision, found.text, wanted)

    def _forget(self, slot: Slot) -> None:
        """The file is not there any more: nothing to give back."""
        self._book.cool(slot)
        if slot.entry is not None and self._journal is not None:
            self._journal.settle((), [slot.entry])
        slot.entry, slot.held = None, None

    def _drop(self, slot: Slot) -> None:
        self._book.drop(slot)
        target, knob = slot.decision.key
        weight = (target, Knob.CPU_SHARES)
        if knob is Knob.CPU_IDLE and weight not in self._book.slots and self._journal is not None:
            # somebody else may have cleared it, which resets the weight
            owner = slot.decision.owner
            self._book.slots[weight] = Slot(Decision(target, Knob.CPU_SHARES, RESTORE, (), owner), releasing=True)

    def _report(self) -> ApplyReport:
        report, counts = self._book.report(), self._counts
        if counts == _IDLE:
            return report
        self._counts = _Counts()
        return replace(
            report,
            written=counts.written,
            restored=counts.restored,
            failed=counts.failed,
            drifted=counts.drifted,
        )


_IDLE: Final = _Counts()


def _backoff_s(fails: int) -> float:
    return min(2.0 ** min(fails - 1, 10), BACKOFF_MAX_S)


def _ancestors(target: str) -> Iterator[str]:
    while target := target.rpartition("/")[0]:
        yield target
