"""CPU and memory-node sets of groups below one whose set changes, that nobody has a wish for (cgroup v1).

There the kernel takes no set that a child's exceeds (EBUSY), and a container or a declared service may have groups of
its own. They get what their first set and the new one have in common, else all of the new one, and follow it from then
on; they are given back with it. On v2 a child's wider set does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from typing import Final

from koordlet.act.job import Job, Standing, restore_job, standing
from koordlet.act.journal import Journal
from koordlet.act.look import Look, value_of
from koordlet.act.newborn import children, glance, inherited
from koordlet.act.order import Key
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobtext import encode
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob

OWNER: Final = "along"


def along(host: Host, journal: Journal, jobs: Mapping[Key, Job], managed: Container[Key]) -> list[Job]:
    """managed: who has a wish of his own; these and all below them are looked after already."""
    if host.version is CgroupVersion.V2:
        return []
    base = os.fspath(host.dir("cpuset", ""))
    changed = [job for job in jobs.values() if job.knob in (Knob.CPUSET, Knob.CPUSET_MEMS) and job.value]
    return [made for job in changed for made in _below(host, base, journal, job, jobs, managed)]


def _below(
    host: Host, base: str, journal: Journal, job: Job, jobs: Mapping[Key, Job], managed: Container[Key]
) -> Iterator[Job]:
    above = [(job.target, job.value)]
    while above:
        parent, allowed = above.pop()
        for target in children(base, parent):
            if (target, job.knob) in jobs or (target, job.knob) in managed:
                continue
            seen = glance(host, target, job.knob)
            now = None if seen is None else value_of(host.version, job.knob, seen.raw)
            if seen is None or not isinstance(now, CpuSet):
                continue
            made = _one(host, journal, job, target, seen, now, allowed)
            if made is not None:
                yield made
            above.append((target, now if made is None else made.value))


def _one(host: Host, journal: Journal, job: Job, target: str, seen: Look, now: CpuSet, allowed: object) -> Job | None:
    entry = journal.find(target, job.knob, seen.inode)
    if entry is not None and entry.owner != OWNER:
        return None  # left by a predecessor for a wish that will be named again
    ours = entry is not None and standing(host.version, entry, seen.text) is Standing.OURS
    if job.restoring:
        if entry is not None and ours:
            return restore_job(host, entry, seen)
        journal.settle((), [entry] if entry else ())
        return None
    original = entry.original if entry else inherited(host, journal, target, job.knob, seen) or seen.raw
    first = value_of(host.version, job.knob, original) if ours else now  # else somebody chose it meanwhile
    if not now or not isinstance(first, CpuSet) or not isinstance(allowed, CpuSet):
        return None
    wanted = first & allowed or allowed
    if wanted == now:
        return None
    data, reason = encode(host.version, job.knob, wanted), f"within {job.target}"
    return Job(target, job.knob, seen, data, wanted, original, entry, owner=OWNER, reason=reason)
