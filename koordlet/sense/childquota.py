"""`ChildQuotas`: finite CFS quotas of the groups below a best-effort root, where the kernel compares them with it.

On cgroup v1 a parent's quota below a child's is refused with EINVAL, so a cap on the root has to know them. On v2 the
smaller of both simply holds and nothing is read. A new directory is read at once, after ten calls and then more and
more seldom (who makes it writes its quota a moment later), every 300 calls in the end; one that has a quota every ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import knob_path, parse
from koordlet.model.knob import Knob
from koordlet.sense.betree import Levels

_ROTATION: Final = 10
_MAX_TURNS: Final = 30


@dataclass(slots=True)
class _Group:
    """quota_us: 0 without one. wait: turns of the rotation until the next look, pause: the last such wait."""

    file: Path | None
    quota_us: int
    pause: int
    wait: int


class ChildQuotas:
    """One root's. `read` returns the same tuple while nothing changed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[str, _Group] = {}
        self._groups: tuple[_Group, ...] = ()
        self._levels: Levels = ()
        self._at = 0
        self._found: tuple[tuple[str, int], ...] = ()

    def read(self, levels: Levels) -> tuple[tuple[str, int], ...]:
        """(path, quota in us of its own period) of every group below the root that has one, sorted."""
        if self._host.version is not CgroupVersion.V1:
            return ()
        changed = levels is not self._levels
        if changed:
            self._take(levels)
        if self._rotate() or changed:
            self._found = tuple(sorted((path, group.quota_us) for path, group in self._known.items() if group.quota_us))
        return self._found

    def forget(self) -> None:
        """The next question reads all of it anew."""
        self._levels, self._known = (), {}

    def _take(self, levels: Levels) -> None:
        before, first = self._known, not self._levels
        paths = [path for level in levels[1:] for path in level]
        self._levels = levels
        self._known = {path: before.get(path) or self._new(path, number, first) for number, path in enumerate(paths)}
        self._groups = tuple(self._known.values())

    def _new(self, path: str, number: int, first: bool) -> _Group:
        """first: it was there before us, so it has the quota that it shall have; the looks are spread."""
        file = knob_path(self._host, path, Knob.CPU_QUOTA)
        pause, wait = (_MAX_TURNS, 1 + number // _ROTATION % _MAX_TURNS) if first else (0, 1)
        return _Group(file, self._quota_us(file), pause, wait)

    def _rotate(self) -> bool:
        """Looks at those of this call's tenth whose turn it is; whether anything changed."""
        changed = False
        for group in self._groups[self._at :: _ROTATION]:
            group.wait -= 1
            if group.wait > 0:
                continue
            now_us = self._quota_us(group.file)
            changed |= now_us != group.quota_us
            group.quota_us = now_us
            group.pause = 1 if now_us else min(group.pause + 1, _MAX_TURNS)
            group.wait = group.pause
        self._at = (self._at + 1) % _ROTATION
        return changed

    def _quota_us(self, file: Path | None) -> int:
        """0 for none, and where it cannot be read: nothing to get in the way."""
        try:
            value = parse(self._host.version, Knob.CPU_QUOTA, file.read_text("ascii", "replace")) if file else None
        except (OSError, KernelFileError):
            return 0
        return value if isinstance(value, int) and value > 0 else 0
