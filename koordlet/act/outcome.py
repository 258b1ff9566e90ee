"""What became of a look at a slot's file or of a write to it: the slot's next state, and who is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import structlog

from koordlet.act import along
from koordlet.act.book import Book
from koordlet.act.job import Job
from koordlet.act.journal import Journal
from koordlet.act.look import Look, Missing, as_text
from koordlet.act.order import Key
from koordlet.act.records import Teller
from koordlet.act.slot import AT_ONCE, NEVER, Slot
from koordlet.kernel.host import Host
from koordlet.kernel.knobs import knob_path
from koordlet.model.cgroup import ancestors
from koordlet.model.knob import RESTORE, Decision, Knob
from koordlet.model.status import ApplyReport, HeldState

log = structlog.get_logger(__name__)

BACKOFF_MAX_S: Final = 60.0
TOGETHER_SHARE: Final = 1 / 12
"""Of the time between two looks at a file: those that fall due within it are looked at in one pass, so that most ticks
of a full node look at none."""


@dataclass(slots=True)
class Counts:
    written: int = 0
    restored: int = 0
    failed: int = 0
    drifted: int = 0


class Outcomes:
    """journal: None while nothing is written. counts: of the pass under way, for its report."""

    def __init__(self, host: Host, journal: Journal | None, book: Book, tell: Teller, force_s: float) -> None:
        self._host, self._journal, self._book, self._tell, self._force_s = host, journal, book, tell, force_s
        self.counts = Counts()

    def hold(self, slot: Slot, found: Look, now_s: float) -> None:
        slot.raw, slot.fails, slot.told, slot.note = found.raw, 0, "", ""
        slot.path = str(found.path) if found.whole else ""
        self.look_later(slot, now_s)
        slot.confirmed = True
        slot.become(HeldState.HELD, now_s)
        if slot.decision.hot:
            self._book.warm(slot, found)

    def look_later(self, slot: Slot, now_s: float) -> None:
        due_s = now_s + self._force_s * (1.0 if slot.confirmed else max(slot.phase(), 0.02))
        slot.due_s = due_s - due_s % (self._force_s * TOGETHER_SHARE)

    def conclude(self, job: Job, now_s: float) -> None:
        slot = self._book.slots.get(job.key)
        if job.ok and job.restoring:
            self.counts.restored += 1
            decision = slot.decision if slot is not None else Decision(job.target, job.knob, RESTORE, (), "")
            self._tell("restore", replace(decision, why=()), job.look.text, as_text(job.after))
            if slot is not None and slot.releasing:
                self.drop(slot)
        elif slot is None:  # came along with another job; the journal still has it
            if job.ok and job.owner == along.OWNER and job.value is not None:
                decision = Decision(job.target, job.knob, job.value, (), job.owner)
                self._tell("write", decision, job.look.text, as_text(job.after), note=job.reason)
        elif job.overtaken:
            slot.due_s = AT_ONCE
        elif job.gone:
            self.missing(slot, Missing.GONE, now_s)
        elif not job.ok:
            slot.entry = job.entry or slot.entry
            self.fail(
                slot,
                job.error,
                now_s,
                errno=job.errno,
                before=job.look.text,
                tried=as_text(job.data),
                quiet=job.unrecorded,
            )
        else:
            self.counts.written += 1
            slot.entry = job.entry
            note, slot.since_s, slot.held = slot.note, now_s, None
            self.hold(slot, replace(job.look, raw=job.after), now_s)
            self._tell("write", slot.decision, job.look.text, as_text(job.after), note=note)

    def cheer(self, written: set[Key]) -> None:
        """Relatives of what went through, that were refused before for the order's sake, may pass now."""
        if not written or not any(slot.fails for slot in self._book.slots.values()):
            return
        above = {(up, knob) for target, knob in written for up in ancestors(target)}
        for (target, knob), slot in self._book.slots.items():
            if slot.fails and ((target, knob) in above or any((up, knob) in written for up in ancestors(target))):
                slot.due_s = AT_ONCE

    def missing(self, slot: Slot, missing: Missing, now_s: float) -> None:
        self.forget(slot)
        slot.inode, slot.confirmed = -1, False
        if slot.releasing:
            self.drop(slot)
        elif missing is Missing.GONE:
            slot.fails += 1
            slot.due_s = now_s if slot.decision.hot else now_s + _backoff_s(slot.fails)
            slot.become(HeldState.GONE, now_s)
        else:
            slot.due_s = NEVER
            slot.become(HeldState.UNSUPPORTED, now_s, "no such file here")
            self._tell.unsupported(slot.decision)

    def fail(
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
        self.counts.failed += 1
        slot.fails += 1
        slot.due_s = now_s + _backoff_s(slot.fails) if due_s is None else due_s
        slot.become(HeldState.FAILED, now_s, error)
        if slot.fails == 1 and not quiet:
            decision = slot.decision
            path = decision.target if due_s == NEVER else str(knob_path(self._host, decision.target, decision.knob))
            log.warning("knob.write_failed", knob=decision.knob.value, path=path, value=tried, errno=errno, error=error)
            self._tell("refused", decision, before, tried, error=error)

    def observe(self, slot: Slot, found: Look, wanted: str, now_s: float) -> None:
        self._book.cool(slot)
        slot.due_s = now_s + self._force_s
        slot.become(HeldState.OBSERVED, now_s)
        if slot.told != wanted:
            slot.told = wanted
            self._tell("observe", slot.decision, found.text, wanted)

    def forget(self, slot: Slot) -> None:
        """The file is not there any more: nothing to give back."""
        self._book.cool(slot)
        if slot.entry is not None and self._journal is not None:
            self._journal.settle((), [slot.entry])
        slot.entry, slot.held = None, None

    def drop(self, slot: Slot) -> None:
        self._book.drop(slot)
        target, knob = slot.decision.key
        weight = (target, Knob.CPU_SHARES)
        if knob is Knob.CPU_IDLE and weight not in self._book.slots and self._journal is not None:
            # somebody else may have cleared it, which resets the weight
            owner = slot.decision.owner
            self._book.slots[weight] = Slot(Decision(target, Knob.CPU_SHARES, RESTORE, (), owner), releasing=True)

    def report(self) -> ApplyReport:
        report, counts = self._book.report(), self.counts
        if counts == _IDLE:
            return report
        self.counts = Counts()
        return replace(
            report,
            written=counts.written,
            restored=counts.restored,
            failed=counts.failed,
            drifted=counts.drifted,
        )


_IDLE: Final = Counts()


def _backoff_s(fails: int) -> float:
    return min(2.0 ** min(fails - 1, 10), BACKOFF_MAX_S)
