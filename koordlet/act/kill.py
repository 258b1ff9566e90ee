"""Ending every process of a cgroup, whatever it forks meanwhile.

v2 has `cgroup.kill` (kernel >= 5.14). Elsewhere the members are signalled one by one through pidfds, and looked up
again after they were opened, so that a number that was given to another process is never hit. A group that keeps
forking is frozen for the time of one pass (freeze.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordlet.act.freeze import Freezer
from koordlet.act.reap import Reaper
from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import ensure_target

PASSES: Final = 4
FROZEN_FROM: Final = 2
"""A pass that still finds members after this many freezes them first."""
MAX_CGROUPS: Final = 4096

Write = Callable[[Path, bytes], None]


@dataclass(frozen=True, slots=True)
class Killed:
    """left: members that were still there at the end (they may be dying). error: why nothing could be done."""

    signalled: int = 0
    left: int = 0
    error: str = ""


def members(host: Host, target: str) -> set[int]:
    """Processes in a cgroup and below it, in the hierarchies of CPU and memory. Raises OSError but for "gone"."""
    found: set[int] = set()
    for top in _tops(host, target):
        for directory in _subtree(top):
            try:
                text = (directory / "cgroup.procs").read_text("ascii", "replace")
            except OSError as error:
                if is_gone(error):
                    continue
                raise
            found.update(int(word) for word in text.split())
    return found


def kill(
    host: Host, target: str, writer: Write, freezer: Freezer | None = None, reaper: Reaper | None = None
) -> Killed:
    """SIGKILL to all of them. A few passes, no waiting. Refuses to kill this process or one that runs elsewhere.

    freezer: None freezes nobody, so a group that forks fast enough may escape. reaper: frees their memory right away.
    """
    try:
        target = ensure_target(target)
        before = members(host, target)
        if os.getpid() in before:
            return Killed(0, len(before), "the agent itself runs in this cgroup")
        if 0 in before:
            return Killed(0, len(before), "its processes are not in this PID namespace")
        if not before:
            return Killed()
        pidfds = reaper.open(before) if reaper is not None else []
        try:
            signalled = _signalled(host, target, writer, freezer, before)
        finally:
            if reaper is not None:
                reaper.free(pidfds)
        return Killed(signalled, len(members(host, target)))
    except ValueError as error:
        return Killed(error=str(error))
    except OSError as error:
        return Killed(error=f"{error.filename or target}: {error.strerror}")


def _signalled(host: Host, target: str, writer: Write, freezer: Freezer | None, before: set[int]) -> int:
    if host.version is CgroupVersion.V2 and _whole(host, target, writer):
        return len(before)
    return _one_by_one(host, target, freezer)


def _whole(host: Host, target: str, writer: Write) -> bool:
    """False where the kernel has no such file."""
    path = host.dir("", target) / "cgroup.kill"
    if not path.exists():
        return False
    writer(path, b"1")
    return True


def _one_by_one(host: Host, target: str, freezer: Freezer | None) -> int:
    done: set[int] = set()
    for number in range(PASSES):
        with freezer.hold(target) if freezer is not None and number >= FROZEN_FROM else nullcontext():
            fresh = members(host, target) - done
            if not fresh:
                break
            for pid in fresh:
                if _signal(host, target, pid):
                    done.add(pid)
    return len(done)


def _signal(host: Host, target: str, pid: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _is_member(host, target, pid):
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)
    return True


def _is_member(host: Host, target: str, pid: int) -> bool:
    """By the process's own word, which names its cgroup in each hierarchy."""
    try:
        lines = (host.proc_root / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    places = {line.split(":", 2)[2].strip("/") for line in lines if line.count(":") >= 2}
    return any(place == target or place.startswith(f"{target}/") for place in places)


def _tops(host: Host, target: str) -> list[Path]:
    tops = {host.dir(subsystem, target) for subsystem in ("cpu", "memory")}
    return [top for top in sorted(tops) if top.is_dir()]


def _subtree(top: Path) -> Iterator[Path]:
    waiting, seen = [top], 0
    while waiting and seen < MAX_CGROUPS:
        directory, seen = waiting.pop(), seen + 1
        yield directory
        try:
            with os.scandir(directory) as entries:
                waiting += [directory / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if not is_gone(error):
                raise
