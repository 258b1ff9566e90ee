"""The book: every slot the executor keeps, which of them is due next, and the report that others may read."""

from __future__ import annotations

from koordlet.act.look import Look
from koordlet.act.order import Key
from koordlet.act.slot import AT_ONCE, NEVER, Slot
from koordlet.kernel.host import Host
from koordlet.model.status import ApplyReport, HeldState, Shadowed


class Book:
    """slots: by key. next_due_s: monotonic time before which no slot needs a look. last: the report as last made."""

    def __init__(self, host: Host) -> None:
        self.slots: dict[Key, Slot] = {}
        self.next_due_s = NEVER
        self._version = host.version
        self._hot: dict[Key, Slot] = {}
        self._shadowed: tuple[Shadowed, ...] = ()
        self.last = ApplyReport()
        self._stale = False

    def clear(self) -> None:
        """Forget every slot; closes the kept descriptors."""
        for slot in self.slots.values():
            slot.cool()
        self.slots.clear()
        self._hot.clear()
        self.next_due_s, self._shadowed, self._stale = NEVER, (), False
        self.last = ApplyReport()

    def check_hot(self) -> None:
        """Read back the kept descriptors; what no longer reads as it should is due."""
        for slot in list(self._hot.values()):
            if slot.moved():
                self.hurry(slot)

    def hurry(self, slot: Slot) -> None:
        """Look at it in this pass, as if for the first time."""
        slot.due_s = self.next_due_s = AT_ONCE
        slot.fails = 0
        self.touch(slot)

    def touch(self, slot: Slot) -> None:
        """Its row of the report is to be made anew."""
        slot.held, self._stale = None, True

    def warm(self, slot: Slot, found: Look) -> None:
        slot.warm(found)
        if slot.fd >= 0:
            self._hot[slot.decision.key] = slot

    def cool(self, slot: Slot) -> None:
        slot.cool()
        self._hot.pop(slot.decision.key, None)

    def drop(self, slot: Slot) -> None:
        self.cool(slot)
        del self.slots[slot.decision.key]
        self._stale = True

    def shadow(self, shadowed: tuple[Shadowed, ...]) -> None:
        if shadowed != self._shadowed:
            self._shadowed, self._stale = shadowed, True

    def plan_next(self) -> None:
        """After a pass."""
        self.next_due_s = min((slot.due_s for slot in self.slots.values()), default=NEVER)
        self._stale = self._stale or any(slot.held is None for slot in self.slots.values())

    def report(self) -> ApplyReport:
        """Without the counts of a pass. The same object until something changes."""
        if self._stale:
            held = tuple(slot.held or slot.report(self._version) for slot in self.slots.values())
            errors = tuple(f"{row.target}/{row.knob}: {row.error}" for row in held if row.state is HeldState.FAILED)
            self.last, self._stale = ApplyReport(held=held, shadowed=self._shadowed, errors=errors), False
        return self.last
