"""`ChildQuotas`: finite CFS quotas of the groups below a best-effort root, where the kernel compares them with it.

On cgroup v1 a parent's quota below a child's is refused with EINVAL, so a cap on the root has to know them. On v2 the
smaller of both simply holds and nothing is read. A new directory is read at once, after ten seconds and then more and
more seldom (who makes it writes its quota a moment later), every 300 s in the end; one that has a quota every ten.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import knob_path
from koordlet.kernel.knobtext import parse
from koordlet.model.knob import Knob
from koordlet.sense.betree import Levels
from koordlet.sense.kept import read_once

_OFTEN_S: Final = 10
_SELDOM_S: Final = 300


@dataclass(slots=True, eq=False)
class _Group:
    """quota_us: 0 without one. pause_s: between two looks."""

    path: str
    file: str
    quota_us: int
    pause_s: int


class ChildQuotas:
    """One root's. `read` returns the same tuple while nothing changed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[str, _Group] = {}
        self._due: defaultdict[int, list[_Group]] = defaultdict(list)
        self._levels: Levels = ()
        self._now_s = 0
        self._found: tuple[tuple[str, int], ...] = ()

    def read(self, levels: Levels, now_s: float) -> tuple[tuple[str, int], ...]:
        """(path, quota in us of its own period) of every group below the root that has one, sorted."""
        if self._host.version is not CgroupVersion.V1:
            return ()
        self._now_s = int(now_s)
        changed = levels is not self._levels
        if changed:
            self._take(levels)
        if self._look_again() or changed:
            self._found = tuple(sorted((path, group.quota_us) for path, group in self._known.items() if group.quota_us))
        return self._found

    def forget(self) -> None:
        """The next question reads all of it anew."""
        self._levels, self._known = (), {}
        self._due.clear()

    def _take(self, levels: Levels) -> None:
        before, first = self._known, not self._levels
        paths = [path for level in levels[1:] for path in level]
        self._levels = levels
        self._known = {path: before.get(path) or self._new(path, number, first) for number, path in enumerate(paths)}

    def _new(self, path: str, number: int, first: bool) -> _Group:
        """first: it was there before us, so it has the quota that it shall have; the looks are spread."""
        file = str(knob_path(self._host, path, Knob.CPU_QUOTA))
        quota_us = self._quota_us(file)
        group = _Group(path, file, quota_us, _SELDOM_S if first and not quota_us else _OFTEN_S)
        self._due[self._now_s + (1 + number % group.pause_s if first else group.pause_s)].append(group)
        return group

    def _look_again(self) -> bool:
        """At those that are due now; whether anything changed."""
        changed = False
        due = [group for at_s in sorted(self._due) if at_s <= self._now_s for group in self._due.pop(at_s)]
        for group in due:
            if self._known.get(group.path) is not group:
                continue
            now_us = self._quota_us(group.file)
            changed |= now_us != group.quota_us
            group.quota_us = now_us
            group.pause_s = _OFTEN_S if now_us else min(group.pause_s + _OFTEN_S, _SELDOM_S)
            self._due[self._now_s + group.pause_s].append(group)
        return changed

    def _quota_us(self, file: str) -> int:
        """0 for none, and where it cannot be read: nothing to get in the way."""
        try:
            value = parse(self._host.version, Knob.CPU_QUOTA, read_once(file).decode("ascii", "replace"))
        except (OSError, KernelFileError):
            return 0
        return value if isinstance(value, int) and value > 0 else 0
