"""Groups that were made while their parent's CPU set was narrowed by us (cgroup v1).

A runtime copies the parent's CPUs into a new v1 group, so without care the group would stay narrow for ever. On v2 a
new group's set is empty, which means the parent's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from koordlet.act.job import Job, Standing, restore_job, standing
from koordlet.act.journal import Entry, Journal
from koordlet.act.look import Look, look
from koordlet.act.order import Key
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.knob import Knob


def inherited(host: Host, journal: Journal | None, target: str, knob: Knob, found: Look) -> bytes | None:
    """The true original of a group that was made inside a CPU set that we had narrowed: its parent's. Else None."""
    parent = target.rpartition("/")[0]
    if knob not in (Knob.CPUSET, Knob.CPUSET_MEMS) or host.version is CgroupVersion.V2 or journal is None or not parent:
        return None
    above = glance(host, parent, knob)
    entry = journal.find(parent, knob, above.inode) if above is not None else None
    if above is None or entry is None or above.text != found.text:
        return None
    return entry.original if standing(host.version, entry, above.text) is Standing.OURS else None


def parents(host: Host, journal: Journal, target: str, knob: Knob) -> bytes | None:
    """The CPU set that a group made here would have without us; None where the group above is gone."""
    if host.version is CgroupVersion.V2:
        return b"\n"
    parent = target.rpartition("/")[0]
    above = glance(host, parent, knob) if parent else None
    if above is None:
        return None
    entry = journal.find(parent, knob, above.inode)
    ours = entry is not None and standing(host.version, entry, above.text) is Standing.OURS
    return entry.original if ours and entry is not None else above.raw


def newborns(host: Host, journal: Journal, jobs: Mapping[Key, Job]) -> list[Job]:
    """Jobs for groups that were made inside a set that is widened again now, and that we never wrote to.

    A group of a different set was given it by somebody, and so were those below it.
    """
    found: list[Job] = []
    if host.version is CgroupVersion.V2:
        return found
    base = os.fspath(host.dir("cpuset", ""))
    for job in jobs.values():
        if job.knob in (Knob.CPUSET, Knob.CPUSET_MEMS) and job.restoring:
            ours = job.look.text
            below = [job.target]
            while below:
                for target in children(base, below.pop()):
                    seen = glance(host, target, job.knob)
                    if seen is None or seen.text != ours or (target, job.knob) in jobs:
                        continue
                    if journal.find(target, job.knob, seen.inode) is None:
                        path = os.fspath(seen.path)
                        entry = Entry(target, job.knob, path, seen.inode, job.original, [seen.raw])
                        found.append(restore_job(host, entry, seen))
                        below.append(target)
    return found


def children(base: str, target: str) -> list[str]:
    """base: the hierarchy's root directory."""
    directory = f"{base}/{target}"
    try:
        if os.stat(directory).st_nlink == 2:
            return []  # a directory's links are its own two and one per child, where the file system counts them
        with os.scandir(directory) as entries:
            return [f"{target}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def glance(host: Host, target: str, knob: Knob) -> Look | None:
    try:
        seen = look(host, target, knob)
    except OSError:
        return None
    return seen if isinstance(seen, Look) else None
