"""What the executor remembers about one knob that somebody wants, or that is on its way back."""

from __future__ import annotations

import math
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from koordlet.act.journal import Entry
from koordlet.act.look import CONTENT_MAX, Look, as_text
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobtext import KnobValueError, encode
from koordlet.model.knob import Decision, Restore
from koordlet.model.status import Held, HeldState

HOT_BYTES: Final = 4096
AT_ONCE: Final = -math.inf
NEVER: Final = math.inf


@dataclass(slots=True, eq=False)
class Slot:
    """due_s: when to look at the file next. confirmed: the file held the present wish once, so a difference is drift.

    since_s: when state became so, negative before the first look.
    releasing: on its way back to the original. implied: a burst lowered only because its quota asks for it.
    inode/original/entry: the file as first seen and its journal entry. raw: its content when last in order. path: of
    the file then, "" where it holds more than this knob or lies outside the cgroups.
    fd: kept open while hot and held, else -1. told: the wish that --observe has audited. drift_due_s: when a
    repair is logged again. note: for the next record.
    """

    decision: Decision
    due_s: float = AT_ONCE
    releasing: bool = False
    implied: bool = False
    confirmed: bool = False
    state: HeldState = HeldState.FAILED
    since_s: float = -1.0
    error: str = ""
    fails: int = 0
    told: str = ""
    drift_due_s: float = AT_ONCE
    note: str = ""
    inode: int = -1
    original: bytes = b""
    entry: Entry | None = None
    raw: bytes = b""
    path: str = ""
    fd: int = -1
    held: Held | None = None

    def phase(self) -> float:
        """0..1, the same on every node and run: spreads forced checks over their interval."""
        return zlib.crc32(f"{self.decision.target}/{self.decision.knob}".encode()) % 1024 / 1024

    def become(self, state: HeldState, now_s: float, error: str = "") -> None:
        if state is not self.state or error != self.error or self.held is None:
            if state is not self.state or self.since_s < 0:
                self.since_s = now_s
            self.state, self.error, self.held = state, error, None

    def warm(self, found: Look) -> None:
        """Keep a descriptor for reading back each tick."""
        if self.fd < 0:
            with suppress(OSError):
                self.fd = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)

    def cool(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def stands(self) -> bool:
        """What nearly every periodic look finds, for a third of its cost: the same file, and in it what was in order.
        Not for a slot that somebody hurried: there is more to it than its file."""
        if not (self.path and self.confirmed) or self.releasing or self.due_s == AT_ONCE:
            return False
        if self.state is not HeldState.HELD:
            return False
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.fstat(fd).st_ino == self.inode and os.read(fd, CONTENT_MAX) == self.raw
            finally:
                os.close(fd)
        except OSError:
            return False

    def moved(self) -> bool:
        """True if the kept descriptor no longer reads as it should; closed if the cgroup is gone for good."""
        try:
            return os.pread(self.fd, HOT_BYTES, 0) != self.raw[:HOT_BYTES]
        except OSError:  # ENODEV, even if a new cgroup has the name
            self.cool()
            return True

    def report(self, version: CgroupVersion) -> Held:
        if self.held is None:
            decision = self.decision
            self.held = Held(
                target=decision.target,
                knob=decision.knob,
                wanted=self._wanted(version),
                original=as_text(self.original),
                owner=decision.owner,
                why=decision.why,
                state=self.state,
                since_s=self.since_s,
                error=self.error,
            )
        return self.held

    def _wanted(self, version: CgroupVersion) -> str:
        if self.releasing or isinstance(self.decision.value, Restore):
            return as_text(self.original)
        try:
            return as_text(encode(version, self.decision.knob, self.decision.value))
        except KnobValueError:
            return str(self.decision.value)
