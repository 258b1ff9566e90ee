"""The executor: brings the kernel to what the strategies want, keeps it there, and gives back what nobody wants.

Cost. A pass in which nothing changed compares tuples by identity and reads back the hot knobs on kept descriptors;
it writes nothing. Everything else is verified once per `force_s`, spread over that time.

One slot per (target, knob). A slot is looked at when its wish is new, when it is due (retry, forced check) or when a
hot file no longer reads as before; `carry_out` then writes all changes of the pass together, in order.

What comes of a look or a write is in act/outcome.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from koordlet.act import along
from koordlet.act.adopt import NoReplies, Replies, adopted
from koordlet.act.book import Book
from koordlet.act.coupled import burst_for
from koordlet.act.job import Job, Standing, restore_job, standing
from koordlet.act.journal import Entry, Journal, JournalError
from koordlet.act.look import Look, Missing, as_text, enough, look
from koordlet.act.merge import merge
from koordlet.act.newborn import inherited
from koordlet.act.order import Key
from koordlet.act.outcome import Counts, Outcomes
from koordlet.act.records import Teller
from koordlet.act.slot import NEVER, Slot
from koordlet.act.undo import undo
from koordlet.act.writes import Observed, Writer, carry_out
from koordlet.kernel.host import Host
from koordlet.kernel.knobs import ensure_target
from koordlet.kernel.knobtext import encode, same
from koordlet.kernel.write import write_file
from koordlet.model.audit import AuditSink
from koordlet.model.cgroup import ancestors
from koordlet.model.knob import RESTORE, Decision, Knob, Restore
from koordlet.model.status import ApplyReport, Held, HeldState
from koordlet.model.why import why_text

log = structlog.get_logger(__name__)

DRIFT_TOLD_S: Final = 60.0
"""One log line per knob in that time; the audit log and the metrics have each repair."""


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
        self._writer, self._observed = writer, observed
        self._taken: dict[str, Sequence[Decision]] = {}
        self._book = Book(host)
        self._done = Outcomes(host, self._journal, self._book, self._tell, force_s)
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
        return self._done.report()

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
                (up, entry.knob) in self._book.slots for up in ancestors(entry.target)
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
        self._book.clear()
        self._taken = {}
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
        moved = old.value != decision.value or old.at_least != decision.at_least
        if moved or slot.releasing != releasing or (decision.hot and not old.hot):
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
                self._done.drop(slot)  # not writable now; the journal has the weight for when cpu.idle is cleared
                return
        if knob is Knob.CPU_BURST and isinstance(wanted.get((target, Knob.CPU_QUOTA)), Decision):
            slot.implied = True  # the original may not fit under the quota
            self._book.hurry(self._book.slots[target, Knob.CPU_QUOTA])
            return
        slot.releasing, slot.confirmed = True, False
        self._book.hurry(slot)

    # one pass

    def _work(self, now_s: float) -> None:
        self._done.counts = Counts()
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
                self._done.conclude(job, now_s)
            self._done.cheer({job.key for job in done if job.ok})
        self._book.plan_next()

    def _stands(self, key: Key, slot: Slot, now_s: float) -> bool:
        told = self._replies.find(*key)
        if (told is not None and (slot.entry is None or told.anew)) or not slot.stands():
            return False
        self._done.look_later(slot, now_s)
        return True

    def _examine(self, key: Key, slot: Slot, now_s: float, *, force: bool = False) -> Job | None:
        """Look at one file; a job if it must be written. force: even if it reads as wanted."""
        (_, knob), value, version = key, slot.decision.value, self._host.version
        try:
            target = ensure_target(slot.decision.target, knob)
            data = b"" if slot.releasing or isinstance(value, Restore) else encode(version, knob, value)
        except ValueError as error:  # only another wish can help
            if slot.releasing:
                self._done.drop(slot)
                return None
            self._done.fail(slot, str(error), now_s, due_s=NEVER, tried=str(value))
            return None
        try:
            found = look(self._host, target, knob)
        except OSError as error:
            self._done.fail(slot, error.strerror or str(error), now_s, errno=error.errno or 0)
            return None
        if isinstance(found, Missing):
            self._done.missing(slot, found, now_s)
            return None
        self._recognise(slot, target, found)
        if slot.releasing or isinstance(value, Restore):
            return self._give_back(slot, found)
        if slot.decision.at_least and enough(version, knob, value, found.raw):
            self._leave(slot, found, now_s)
            return None
        if same(version, knob, value, found.text) and not force:
            self._done.hold(slot, found, now_s)
            return None
        if slot.confirmed and not force:
            self._done.counts.drifted += 1
            slot.confirmed, slot.note = False, "drift"
            if now_s >= slot.drift_due_s:  # somebody who fights us would fill the log
                slot.drift_due_s = now_s + DRIFT_TOLD_S
                log.info("knob.drift", target=target, knob=knob.value, found=found.text, wanted=as_text(data))
        if self._journal is None:
            self._done.observe(slot, found, as_text(data), now_s)
            return None
        decision = slot.decision
        reason = why_text(decision.why)
        return Job(
            *(target, knob, found, data, value, slot.original, slot.entry),
            owner=decision.owner,
            reason=reason,
            at_least=decision.at_least,
        )

    def _recognise(self, slot: Slot, target: str, found: Look) -> None:
        """Is it the cgroup we know? If not, what did it say before us?"""
        if slot.inode != found.inode:
            self._done.forget(slot)
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
        """Record the originals of what runtimes wrote for us, before anything is written. Not durably: they have
        been written, and a runtime may wait for this pass."""
        rows, self._adopted = self._adopted, []
        if self._journal is None:
            return
        try:
            self._journal.add([entry for _, entry, _ in rows], durable=False)
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
        self._done.drop(slot)
        return None

    def _leave(self, slot: Slot, found: Look, now_s: float) -> None:
        """It is enough. If that is not our doing, it is what is to be given back one day."""
        entry = slot.entry
        if entry is not None and standing(self._host.version, entry, found.text) is not Standing.OURS:
            self._done.forget(slot)
        if slot.entry is None:
            slot.original = found.raw
        self._done.hold(slot, found, now_s)

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
