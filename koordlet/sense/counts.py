"""`CountsMeter`: hardware counters (or software ones where there are none) per container cgroup.

A group of events per cgroup and CPU is opened when a container appears and closed when it goes; a round opens nothing.
Counting is on during a window at the end of each interval, so that counters cost nothing in between; with a window as
long as the interval it stays on. Sums are scaled where the kernel had to time-slice (native/perf.c).

Descriptors: events x CPUs per container. What does not fit into the budget takes turns, one interval each.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from koordlet._native import ffi, lib
from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.cpuset import CpuSet
from koordlet.model.hardware import Counts

if TYPE_CHECKING:
    from koordlet._native import CData

log = structlog.get_logger(__name__)

HARDWARE, SOFTWARE = 0, 1  # PERF_TYPE_*
Event = tuple[str, int, int]
PLANS: Final[tuple[tuple[Event, ...], ...]] = (
    (("cycles", HARDWARE, 0), ("instructions", HARDWARE, 1), ("llc_misses", HARDWARE, 3)),
    (("cycles", HARDWARE, 0), ("instructions", HARDWARE, 1)),
    (
        ("cpu_clock_ns", SOFTWARE, 0),
        ("task_clock_ns", SOFTWARE, 1),
        ("context_switches", SOFTWARE, 3),
        ("page_faults", SOFTWARE, 2),
    ),
)
"""(field of Counts, type, config), the best first."""
DESCRIPTOR_SHARE: Final = 0.5
"""Of the process's limit; the rest is for cgroup files, sockets and what a moment needs."""
_NO_EVENT: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENOSPC)
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM)


@dataclass(slots=True)
class _Slots:
    """Cells of `rooms` cgroups with one cell per CPU each; row: cgroup -> its place."""

    plan: CData
    cells: CData
    sums: CData
    row: dict[str, int]
    free: list[int]
    inode: dict[str, int]


class CountsMeter:
    """interval_s: between two windows of window_s. budget: descriptors it may hold, None for a share of the limit.

    unsupported: why nothing can be counted, "" while it can. Not thread-safe.
    """

    def __init__(
        self,
        host: Host,
        *,
        interval_s: float = 60.0,
        window_s: float = 10.0,
        budget: int | None = None,
        plans: tuple[tuple[Event, ...], ...] = PLANS,
    ) -> None:
        self._host = host
        self._interval_s, self._window_s = max(interval_s, window_s), window_s
        self._budget = budget
        self._all_plans = plans
        self._plans = list(plans)
        self._told: set[str] = set()
        self._cpus: tuple[int, ...] = ()
        self._slots: _Slots | None = None
        self._wanted: tuple[str, ...] = ()
        self._turn = 0
        self._started_s: float | None = None
        self._due_s = float("-inf")
        self._on = False
        self.latest: Mapping[str, Counts] = {}
        self.unsupported = ""
        self.opens = 0

    @property
    def continuous(self) -> bool:
        return self._window_s >= self._interval_s

    @property
    def descriptors(self) -> int:
        slots = self._slots
        return 0 if slots is None else len(slots.row) * len(self._cpus) * int(slots.plan.events)

    @property
    def events(self) -> tuple[str, ...]:
        """What is counted, as fields of Counts."""
        return tuple(name for name, _, _ in self._plans[0]) if self._plans else ()

    def collect(self, now_s: float, cgroups: Iterable[str], online: CpuSet) -> Mapping[str, Counts]:
        """Readings of the last window by cgroup. cgroups: of running containers; online: CPUs, which may change."""
        if self.unsupported:
            return self.latest
        if self._started_s is None:
            if now_s >= self._due_s:
                self._begin(now_s, tuple(dict.fromkeys(cgroups)), tuple(online))
        elif now_s - self._started_s >= self._window_s * 0.95:
            self._end(now_s)
            if self.continuous and self._due_s <= now_s:
                self._begin(now_s, tuple(dict.fromkeys(cgroups)), tuple(online))
        return self.latest

    def close(self) -> None:
        """Closes every descriptor."""
        slots, self._slots = self._slots, None
        if slots is not None:
            lib.kl_perf_close(slots.cells, self._rooms(slots) * len(self._cpus))
        self._started_s, self._on = None, False

    # a window

    def _begin(self, now_s: float, cgroups: tuple[str, ...], cpus: tuple[int, ...]) -> None:
        """Open what is new, close what is gone, and take the counters' marks."""
        if cpus != self._cpus or self._slots is None or len(cgroups) > self._rooms(self._slots):
            self._remake(cpus, len(cgroups))
        slots = self._slots
        if slots is None:
            return
        chosen = self._choose(cgroups)
        self._turn += len(chosen) < len(cgroups)
        for cgroup in [cgroup for cgroup in slots.row if cgroup not in chosen or self._moved(slots, cgroup)]:
            self._drop(slots, cgroup)
        for cgroup in chosen:
            if cgroup not in slots.row and not self._open(slots, cgroup):
                if self.unsupported or self._slots is None:
                    self.close()
                    self._due_s = now_s + self._interval_s
                    return
                if self._slots is not slots:  # another plan: from the start
                    self._begin(now_s, cgroups, cpus)
                    return
        self._switch(True)
        self._read(slots)
        self._started_s = now_s
        self._due_s = now_s + self._interval_s

    def _end(self, now_s: float) -> None:
        slots, started_s = self._slots, self._started_s
        self._started_s = None
        if slots is None or started_s is None:
            return
        self._read(slots)
        if not self.continuous:
            self._switch(False)
        self._due_s = min(self._due_s, started_s + self._interval_s)
        names = self.events
        fresh = dict(self.latest) if len(slots.row) < len(self._wanted) else {}
        for cgroup, place in slots.row.items():
            total = slots.sums[place]
            values = {name: int(total.count[i]) for i, name in enumerate(names)} if total.cpus else {}
            fresh[cgroup] = Counts(now_s, now_s - started_s, **values)
        self.latest = {cgroup: counts for cgroup, counts in fresh.items() if cgroup in set(self._wanted)}

    def _choose(self, cgroups: tuple[str, ...]) -> set[str]:
        """All, or as many as the budget allows, in turns."""
        self._wanted = cgroups
        each = max(1, len(self._cpus) * len(self._plans[0]))
        limit = self._budget
        if limit is None:
            limit = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * DESCRIPTOR_SHARE)
        room = max(1, limit // each)
        if len(cgroups) <= room:
            return set(cgroups)
        first = self._turn * room % len(cgroups)
        return set((cgroups + cgroups)[first : first + room])

    # descriptors

    def _remake(self, cpus: tuple[int, ...], wanted: int) -> None:
        """A new table: CPUs came or went, or it is too small."""
        self.close()
        self._cpus = cpus
        if not cpus:
            return
        rooms = max(16, wanted * 5 // 4)
        events = self._plans[0]
        plan = ffi.new("struct kl_perf_plan *")
        plan.events = len(events)
        for i, (_, kind, config) in enumerate(events):
            plan.type[i], plan.config[i] = kind, config
        cells = ffi.new("struct kl_perf_cell[]", rooms * len(cpus))
        lib.kl_perf_reset(cells, rooms * len(cpus))
        sums = ffi.new("struct kl_perf_sum[]", rooms)
        self._slots = _Slots(plan, cells, sums, {}, list(range(rooms)), {})

    def _open(self, slots: _Slots, cgroup: str) -> bool:
        """False when this one cannot be counted now; sets `unsupported`, or takes the next plan, when none can."""
        directory = self._directory(cgroup)
        if directory is None:
            return False
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if not is_gone(error):
                log.warning("perf.no_cgroup", cgroup=cgroup, error=error.strerror)
            return False
        try:
            inode = os.fstat(fd).st_ino
            place = slots.free.pop()
            self.opens += 1
            cpus = ffi.new("int[]", self._cpus)
            code = -lib.kl_perf_open(fd, slots.plan, cpus, len(self._cpus), self._cells(slots, place))
        finally:
            os.close(fd)
        if code == 0:
            slots.row[cgroup], slots.inode[cgroup] = place, inode
            if self._on:
                lib.kl_perf_enable(self._cells(slots, place), len(self._cpus), 1)
            return True
        slots.free.append(place)
        self._refused(slots, code, cgroup)
        return False

    def _refused(self, slots: _Slots, code: int, cgroup: str) -> None:
        reason = os.strerror(code)
        if code in _FORBIDDEN:
            self.unsupported = f"perf: {reason}; needs CAP_PERFMON, or kernel.perf_event_paranoid at most 0"
            log.warning("perf.unsupported", reason=self.unsupported)
        elif code in _NO_EVENT and not slots.row:
            if self.events[0] not in self._told:
                self._told.add(self.events[0])
                log.info("perf.no_event", events=list(self.events), reason=reason)
            self._plans.pop(0)
            self.close()
            if not self._plans and code == errno.ENOENT:
                # Software events are always there, so it is the cgroup that perf does not know: on v2 none is known
                # until somebody has written to the root's cgroup.subtree_control (seen on 6.1). That may yet come.
                self._plans = list(self._all_plans)
                return
            if not self._plans:
                self.unsupported = f"perf: {reason}; no event can be counted per cgroup here"
                log.warning("perf.unsupported", reason=self.unsupported)
                return
            self._remake(self._cpus, len(self._wanted))
        elif code in _NO_ROOM and slots.row:
            self._budget = self.descriptors
            log.warning("perf.budget", descriptors=self._budget, reason=reason)
        elif not is_gone(OSError(code, reason)):
            log.warning("perf.refused", cgroup=cgroup, reason=reason)

    def _drop(self, slots: _Slots, cgroup: str) -> None:
        place = slots.row.pop(cgroup)
        del slots.inode[cgroup]
        lib.kl_perf_close(self._cells(slots, place), len(self._cpus))
        lib.kl_perf_reset(self._cells(slots, place), len(self._cpus))
        slots.free.append(place)

    def _moved(self, slots: _Slots, cgroup: str) -> bool:
        """The directory is another one than that which was opened, or is gone."""
        directory = self._directory(cgroup)
        try:
            return directory is None or os.stat(directory).st_ino != slots.inode[cgroup]
        except OSError:
            return True

    def _directory(self, cgroup: str) -> str | None:
        """In the hierarchy that perf_event is on: a v1 one of its own, or v2 (on a hybrid host `unified/`)."""
        if self._host.version is CgroupVersion.V1:
            own = self._host.cgroup_root / "perf_event"
            if own.is_dir():
                return os.fspath(own / cgroup)
        found = self._host.unified_dir(cgroup)
        return None if found is None else os.fspath(found)

    def _switch(self, on: bool) -> None:
        slots = self._slots
        if slots is None or on == self._on:
            return
        for place in slots.row.values():
            lib.kl_perf_enable(self._cells(slots, place), len(self._cpus), 1 if on else 0)
        self._on = on

    def _read(self, slots: _Slots) -> None:
        lib.kl_perf_pass(slots.plan, slots.cells, self._rooms(slots), len(self._cpus), slots.sums)

    def _cells(self, slots: _Slots, place: int) -> CData:
        return slots.cells + place * len(self._cpus)

    def _rooms(self, slots: _Slots) -> int:
        return len(slots.row) + len(slots.free)
