"""Tasks and the group each belongs to: (CLOSID, RMID), as two fields of the kernel's task struct.

The tasks are the real ones of this machine, plus those a test makes up. A made-up task inherits its parent's group at
fork, as in the kernel. Forks of real tasks are not seen: their children start in the default group, which is the one
difference to a kernel; write them to `tasks` as the agent would.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(slots=True)
class Invented:
    """A task that exists only here. Ids above the kernel's pid limit (4194304) never meet a real one."""

    uid: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    closid: int
    rmid: int
    start: str  # tells a task from a later one that got the same id


@dataclass(frozen=True, slots=True)
class Caller:
    """Who writes: the thread and its effective user."""

    tid: int = 0
    uid: int = 0


class Tasks:
    def __init__(self, real: bool = True) -> None:
        self.real = real
        self.invented: dict[int, Invented] = {}
        self.dead: set[int] = set()
        self.marks: dict[int, Mark] = {}

    def fork(self, tid: int, parent: int | None = None, uid: int = 0) -> None:
        """Make up a task, in its parent's group if it has one."""
        self.invented[tid] = Invented(uid)
        self.dead.discard(tid)
        self.marks.pop(tid, None)
        if parent is not None:
            self.move(tid, *self.ids(parent))

    def exit(self, tid: int) -> None:
        """From now on that task is gone (a real one too, as far as this file system knows)."""
        self.invented.pop(tid, None)
        self.dead.add(tid)
        self.marks.pop(tid, None)

    def start(self, tid: int) -> str | None:
        """Something that changes when the id is used again; None for no such task."""
        if tid in self.dead:
            return None
        if tid in self.invented:
            return "invented"
        if not self.real:
            return None
        try:
            return (PROC / str(tid) / "stat").read_text().rpartition(")")[2].split()[19]
        except (OSError, IndexError):
            return None

    def may_move(self, tid: int, caller: Caller) -> bool:
        """rdtgroup_task_write_permission(): root, or the task's real or saved user."""
        if caller.uid == 0:
            return True
        if tid in self.invented:
            return caller.uid == self.invented[tid].uid
        for line in (PROC / str(tid) / "status").read_text().splitlines():
            if line.startswith("Uid:"):
                real, _effective, saved, _fs = line.split()[1:]
                return str(caller.uid) in (real, saved)
        return False

    def ids(self, tid: int) -> tuple[int, int]:
        """(CLOSID, RMID); (0, 0) is the default group, where every task begins."""
        mark = self.marks.get(tid)
        if mark is None or mark.start != self.start(tid):
            return 0, 0
        return mark.closid, mark.rmid

    def move(self, tid: int, closid: int, rmid: int) -> None:
        start = self.start(tid)
        if start is None:
            raise OSError(errno.ESRCH, str(tid))
        self.marks[tid] = Mark(closid, rmid, start)

    def all(self) -> list[int]:
        found = set(self.invented)
        if self.real:
            for process in PROC.iterdir():
                if process.name.isdigit():
                    try:
                        found.update(int(t.name) for t in (process / "task").iterdir())
                    except OSError:
                        continue
        return sorted(found - self.dead)
