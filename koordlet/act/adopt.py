"""Files that hold a value of ours although we never wrote them: a runtime did, for the sake of our reply.

Such a container had no value before ours, but there is one that it would have had: what the runtime was asked for when
it asked us, or what any new group has where nobody asked for anything. That is its original, and from the moment that
it stands in the journal the container is given back like all others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from koordlet.act.journal import Entry, Journal
from koordlet.act.look import Look
from koordlet.act.newborn import parents
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import V1_UNLIMITED_BYTES
from koordlet.kernel.knobtext import KnobValueError, encode, same
from koordlet.model.knob import Knob, KnobValue
from koordlet.model.units import UNLIMITED, WEIGHT_DEFAULT, shares_to_weight, shares_to_weight_log

REASON: Final = "in the runtime's reply"
_AT_BIRTH: Final = {Knob.CPU_SHARES: 1024, Knob.CPU_QUOTA: UNLIMITED, Knob.MEMORY_LIMIT: UNLIMITED}


@dataclass(frozen=True, slots=True)
class Told:
    """ours: what a reply said. asked: what the runtime was asked for, None when for nothing. anew: it was told for a
    group that existed already, whose recorded original `asked` replaces."""

    ours: KnobValue
    asked: KnobValue | None
    anew: bool = False


class Replies(Protocol):
    """What travelled in replies, by the directory in which the container lives by now (doors/replies.py)."""

    def find(self, target: str, knob: Knob) -> Told | None: ...
    def drop(self, target: str, knob: Knob) -> None: ...


class NoReplies:
    """Nobody asks us."""

    def find(self, target: str, knob: Knob) -> Told | None:
        return None

    def drop(self, target: str, knob: Knob) -> None: ...


def adopted(host: Host, journal: Journal, target: str, knob: Knob, found: Look, told: Told, owner: str) -> Entry | None:
    """The entry that the journal should have for this file; None when the file says something else by now."""
    original = _original(host, journal, target, knob, found, told)
    if original is None:
        return None
    path = os.fspath(found.path)
    return Entry(target, knob, path, found.inode, original, [found.raw], owner=owner, reason=REASON)


def _original(host: Host, journal: Journal, target: str, knob: Knob, found: Look, told: Told) -> bytes | None:
    version = host.version
    if knob is Knob.CPU_SHARES and version is CgroupVersion.V2:
        return _weight(found.text, told)
    if not same(version, knob, told.ours, found.text):
        return None
    asked = _AT_BIRTH.get(knob) if told.asked is None else told.asked
    if asked is None:
        return parents(host, journal, target, knob)
    if knob is Knob.MEMORY_LIMIT and _below_swap_limit(found.path, asked):
        return None
    try:
        return encode(version, knob, asked) + b"\n"
    except KnobValueError:  # what was asked for could not have been had
        return None


def _below_swap_limit(path: Path, asked: KnobValue) -> bool:
    """cgroup v1 takes no memory limit above that of memory and swap, which NRI sets to our value along with it."""
    try:
        limit = int(path.with_name("memory.memsw.limit_in_bytes").read_bytes())
    except (OSError, ValueError):  # no swap accounting, or cgroup v2
        return False
    return isinstance(asked, int) and (asked == UNLIMITED or asked > limit) and limit < V1_UNLIMITED_BYTES


def _weight(text: str, told: Told) -> bytes | None:
    """Runtimes turn shares into a weight by one of two rules; the file shows which one this runtime has."""
    for rule in (shares_to_weight, shares_to_weight_log):
        if isinstance(told.ours, int) and str(rule(told.ours)) == text:
            return b"%d\n" % (rule(told.asked) if isinstance(told.asked, int) else WEIGHT_DEFAULT)
    return None
