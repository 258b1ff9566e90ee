"""`ChildQuotas`: finite CFS quotas of the groups below a best-effort root, where the kernel compares them with it.

On cgroup v1 a parent's quota below a child's is refused with EINVAL, so a cap on the root has to know them. On v2 the
smaller of both simply holds and nothing is read. A new directory is read at once, then a tenth of them per call.
"""

from __future__ import annotations

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import read_knob
from koordlet.model.knob import Knob
from koordlet.sense.betree import Levels

_ROTATION = 10


class ChildQuotas:
    """One root's. `read` returns the same tuple while nothing changed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[str, int] = {}
        self._levels: Levels = ()
        self._at = 0
        self._found: tuple[tuple[str, int], ...] = ()

    def read(self, levels: Levels) -> tuple[tuple[str, int], ...]:
        """(path, quota in us of its own period) of every group below the root that has one, sorted."""
        if self._host.version is not CgroupVersion.V1:
            return ()
        if levels is not self._levels:
            self._levels = levels
            paths = [path for level in levels[1:] for path in level]
            before, self._known = self._known, {}
            for path in paths:
                self._known[path] = before[path] if path in before else self._quota(path)
        changed = self._rotate()
        if changed or len(self._found) != sum(us > 0 for us in self._known.values()):
            self._found = tuple(sorted((path, us) for path, us in self._known.items() if us > 0))
        return self._found

    def _rotate(self) -> bool:
        paths = list(self._known)[self._at :: _ROTATION]
        self._at = (self._at + 1) % _ROTATION
        changed = False
        for path in paths:
            now = self._quota(path)
            changed |= now != self._known[path]
            self._known[path] = now
        return changed

    def _quota(self, path: str) -> int:
        """0 where it cannot be read: nothing to get in the way."""
        try:
            value = read_knob(self._host, path, Knob.CPU_QUOTA)
        except (OSError, KernelFileError):
            return 0
        return value if isinstance(value, int) else 0
