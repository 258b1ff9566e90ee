"""`CacheMeter`: cache occupancy and memory bandwidth of the classes and of pods that have a group, from resctrl.

Counters are cumulative; a rate needs two readings of the same directory (a group that was made anew starts again).
A word instead of a number (Unavailable, Error, Unassigned) is no reading, and its neighbours still count.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from koordlet.kernel.errors import is_gone
from koordlet.kernel.resctrl import count_delta, group_dirs, read_monitoring
from koordlet.model.resctrl import CLASS_GROUPS, POD_PREFIX, CacheReadings, DomainReading, GroupReading

log = structlog.get_logger(__name__)

ROOT: Final = "root"


class CacheMeter:
    """root: the mount point. every_s: a reading may be due a little early, so that a jittering tick keeps its pace."""

    def __init__(self, root: Path, every_s: float = 10.0) -> None:
        self._root, self._every_s = root, every_s
        self.latest: CacheReadings | None = None
        self._before: dict[tuple[str, int], GroupReading] = {}
        self._fault = ""

    def collect(self, now_s: float) -> CacheReadings | None:
        """New readings when they are due, else the latest."""
        if self.latest is not None and now_s - self.latest.at_s < self._every_s * 0.95:
            return self.latest
        classes: dict[str, GroupReading] = {}
        pods: dict[str, GroupReading] = {}
        seen: dict[tuple[str, int], GroupReading] = {}
        try:
            for path, name in self._groups():
                reading = self._read(path, now_s, seen)
                if reading is None:
                    continue
                if name.startswith(POD_PREFIX):
                    pods[name.removeprefix(POD_PREFIX)] = reading
                else:
                    classes[name] = reading
        except OSError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.warning("resctrl.monitoring_failed", error=self._fault)
            return self.latest
        self._fault = ""
        self._before = seen
        self.latest = CacheReadings(now_s, classes, pods)
        return self.latest

    def _groups(self) -> list[tuple[str, str]]:
        """(path, name) of the root, the class groups, pods' groups, and pods' monitoring groups in any of ours."""
        found = [("", ROOT)]
        found += [(n, n) for n in group_dirs(self._root) if n in CLASS_GROUPS or n.startswith(POD_PREFIX)]
        for path, name in list(found):
            if name.startswith(POD_PREFIX):
                continue
            try:
                inner = os.listdir(self._root / path / "mon_groups")
            except OSError as error:
                if not is_gone(error):
                    raise
                continue
            found += [(f"{path}/mon_groups/{n}".lstrip("/"), n) for n in inner if n.startswith(POD_PREFIX)]
        return found

    def _read(self, path: str, now_s: float, seen: dict[tuple[str, int], GroupReading]) -> GroupReading | None:
        try:
            key = (path, os.stat(self._root / path).st_ino)
            domains, nodes = read_monitoring(self._root / path)
        except OSError as error:
            if is_gone(error):
                return None
            raise
        before = self._before.get(key)
        reading = GroupReading(now_s, domains, nodes)
        if before is not None and now_s > before.at_s:
            passed_s = now_s - before.at_s
            reading = GroupReading(
                now_s,
                {n: _rated(before.domains.get(n), row, passed_s) for n, row in domains.items()},
                {n: _rated(before.nodes.get(n), row, passed_s) for n, row in nodes.items()},
            )
        seen[key] = reading
        return reading


def _rated(before: DomainReading | None, now: DomainReading, passed_s: float) -> DomainReading:
    if before is None:
        return now
    total = count_delta(before.total_bytes, now.total_bytes)
    local = count_delta(before.local_bytes, now.local_bytes)
    return replace(
        now,
        total_rate=None if total is None else total / passed_s,
        local_rate=None if local is None else local / passed_s,
    )
