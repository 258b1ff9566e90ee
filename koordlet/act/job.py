"""One file to be changed, and what a file with a journal entry holds now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from koordlet.act.journal import Entry
from koordlet.act.look import Look, restore_bytes, says, value_of
from koordlet.act.order import Key
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.knob import Knob, KnobValue


@dataclass(slots=True)
class Job:
    """One file to be changed. data: what the last write carries, standing for `value`. original: first bytes of the
    file as far as known, recorded unless the journal has an entry. restoring: on success the journal's entry is done.
    unrecorded: the journal refused. error/errno/gone/after: the outcome. lifted: not the original, but what means the
    same (unpin.py); the journal keeps the entry. owner, reason: of the decision, for the journal. at_least: of the
    decision. begun: written, if only a stopover. overtaken: nothing was, since somebody else has meanwhile."""

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
    lifted: bool = False
    after: bytes = b""
    owner: str = ""
    reason: str = ""
    at_least: bool = False
    begun: bool = False
    overtaken: bool = False

    @property
    def key(self) -> Key:
        return (self.target, self.knob)

    @property
    def ok(self) -> bool:
        return not (self.error or self.gone or self.overtaken)


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
