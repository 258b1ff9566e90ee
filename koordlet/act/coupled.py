"""Knobs that the kernel ties together, so that one cannot be changed without minding the other.

cpu.idle and the weight: while idle is set the weight cannot be written, and clearing idle resets it to the default.
Quota and burst: the kernel refuses a quota below the burst, even when it comes from unlimited.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from koordlet.act.job import Job, restore_job
from koordlet.act.journal import Entry, Journal
from koordlet.act.look import Look, Missing, look, value_of
from koordlet.act.order import Key
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.knob import Knob

WEIGHT_AFTER_IDLE: Final = {CgroupVersion.V1: (b"1024", b"3"), CgroupVersion.V2: (b"100", b"0", b"1")}
"""What the kernel itself puts into the weight file when cpu.idle is cleared or set: counts as ours."""


def weights_at_risk(host: Host, journal: Journal, jobs: Mapping[Key, Job]) -> list[tuple[Job, Entry]]:
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


def add_weights(host: Host, journal: Journal, jobs: dict[Key, Job]) -> None:
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


def burst_for(host: Host, journal: Journal | None, target: str, quota_us: int, lowered: bool) -> int | None:
    """Burst, in us, that must stand beside this quota: the group's own, or the quota if that is less.

    None: leave it alone, it fits. lowered: it was lowered by us before, so it is followed upwards too.
    """
    try:
        found = look(host, target, Knob.CPU_BURST)
    except OSError:
        return None
    if isinstance(found, Missing):
        return None
    entry = journal.find(target, Knob.CPU_BURST, found.inode) if journal is not None else None
    own = value_of(host.version, Knob.CPU_BURST, entry.original if entry is not None else found.raw)
    if not isinstance(own, int) or (own <= quota_us and not lowered):
        return None
    return min(own, quota_us)
