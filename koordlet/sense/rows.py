"""`Rows`: keeps the native table (native/table.h) in step with what is wanted and what exists.

A wanted cgroup that is not there yet, or went away, is looked for again with a few stat calls per tick. A cgroup that
went away is taken up again only when its path names another directory: the old one never comes back.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from koordlet._native import ffi, lib
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.sense.targets import Key, Target

if TYPE_CHECKING:
    from koordlet._native import CData

log = structlog.get_logger(__name__)

STATS_PER_TICK: Final = 8
RESERVE: Final = 64
"""Descriptors that stay free for sockets, the journal and all else."""
PER_ROW: Final = 4
_SERIES_KIND: Final = {lib.KL_POD: "pod", lib.KL_CONTAINER: "container", lib.KL_HOST: "host"}
_GONE: Final = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)
_OUR_LACK: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_MAX_FAULTS: Final = 256


class Rings(Protocol):
    """Where samples go (store.rings.RingStore). handle: the native object."""

    @property
    def handle(self) -> CData: ...
    def open(self, kind: str, ident: str, metric: str) -> int: ...
    def close(self, kind: str, ident: str) -> None: ...
    def push(self, series: int, at_s: float, value: float) -> None: ...


class Rows:
    """table: for kl_table_pass. lost: rows that went away since the start."""

    def __init__(self, host: Host, rings: Rings | None) -> None:
        made = lib.kl_table_new(1 if host.version is CgroupVersion.V1 else 2)
        if made == ffi.NULL:
            raise MemoryError("no memory for the table of cgroups")
        self.table: CData = ffi.gc(made, lib.kl_table_free)
        self.lost = 0
        self._lack = 0
        # Joined as bytes: for a thousand rows at the start, Path would take longer than the kernel.
        self._tops = [os.fsencode(host.dir(subsystem, "")) for subsystem in ("cpuacct", "cpu", "memory")]
        self._rings = rings
        self._targets: dict[Key, Target] = {}
        self._by_cgroup: dict[str, Target] = {}
        self._rows: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._inodes: dict[Key, int] = {}
        self._missing: deque[Key] = deque()
        self._failed: set[tuple[str, int]] = set()
        self._out = ffi.new("struct kl_row *")

    def want(self, targets: dict[Key, Target]) -> None:
        """Removes what is no longer wanted, tries at once what is new."""
        for key in self._targets.keys() - targets.keys():
            self._forget(key)
        # Several targets may share a series (a container whose cgroup moved); close it with the last one.
        kept = {(target.kind, target.ident) for target in targets.values()}
        for target in self._targets.values():
            if self._rings is not None and (target.kind, target.ident) not in kept and target.kind in _SERIES_KIND:
                self._rings.close(_SERIES_KIND[target.kind], target.ident)
        before, self._targets = self._targets, targets
        self._by_cgroup.clear()
        for key, target in targets.items():
            if key not in before:
                if not self._add(target):
                    self._missing.append(key)
            elif before[key].be != target.be and key in self._rows:
                lib.kl_table_tag(self.table, self._rows[key], target.be)

    def retry(self) -> None:
        """Looks for a few of the missing directories."""
        for _ in range(min(STATS_PER_TICK, len(self._missing))):
            key = self._missing.popleft()
            target = self._targets.get(key)
            if target is None or key in self._rows:
                continue
            inode = self._inode(target)
            if inode is None or inode == self._inodes.get(key) or not self._add(target):
                self._missing.append(key)

    def drop_gone(self, count: int) -> None:
        """Takes the rows that a pass found gone (at most `count`) out of the table."""
        numbers = ffi.new("int[]", count)
        for index in range(lib.kl_table_gone(self.table, numbers, count)):
            key = self._keys.pop(numbers[index])
            lib.kl_table_remove(self.table, self._rows.pop(key))
            self._missing.append(key)
            self.lost += 1

    def throttled(self, since_ns: int, count: int) -> tuple[str, ...]:
        """Cgroups of at most `count` containers that were throttled, as read since then."""
        numbers = ffi.new("int[]", count)
        found = lib.kl_table_throttled(self.table, since_ns, numbers, count)
        return tuple(self._keys[numbers[index]][2] for index in range(found))

    def items(self) -> Iterator[tuple[Target, CData | None]]:
        """Every target with its latest figures (struct kl_row, valid until the next step), None while missing."""
        for key, target in self._targets.items():
            row = self._rows.get(key)
            found = row is not None and lib.kl_table_read(self.table, row, self._out) == 0
            yield target, self._out if found else None

    def find(self, cgroup: str) -> tuple[Target, CData | None] | None:
        """As a pair of `items`, of the workload in that cgroup; None when nothing is watched there."""
        if not self._by_cgroup:
            self._by_cgroup = {t.cgroup: t for t in self._targets.values() if t.kind != lib.KL_ROOT}
        target = self._by_cgroup.get(cgroup)
        if target is None:
            return None
        row = self._rows.get(target.key)
        known = row is not None and lib.kl_table_read(self.table, row, self._out) == 0
        return target, self._out if known else None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def lack(self) -> str:
        """What of our own keeps cgroups from being read, "" when nothing does."""
        if not self._lack or not self.missing:
            self._lack = 0
            return ""
        name = errno.errorcode.get(self._lack, str(self._lack))
        text = f"{self.missing} cgroups are not measured, {name}: {os.strerror(self._lack)} ({self.descriptors} in use)"
        if self._lack != errno.EMFILE:
            return text
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"{text}; the limit of open files is {limit}: raise it (LimitNOFILE= of the unit, ulimit -Hn)"

    @property
    def missing(self) -> int:
        """Wanted cgroups without a row."""
        return len(self._targets) - len(self._rows)

    @property
    def descriptors(self) -> int:
        found: int = lib.kl_table_descriptors(self.table)
        return found

    def close(self) -> None:
        """Closes every descriptor."""
        self.want({})

    def _forget(self, key: Key) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            del self._keys[row]
            lib.kl_table_remove(self.table, row)
        else:
            self._missing = deque(other for other in self._missing if other != key)
        self._inodes.pop(key, None)

    def _inode(self, target: Target) -> int | None:
        try:
            return os.stat(self._dirs(target)[0]).st_ino
        except OSError:
            return None

    def _dirs(self, target: Target) -> list[bytes]:
        """Of the CPU counter, cpu and memory."""
        name = os.fsencode(target.cgroup)
        return [b"%s/%s" % (top, name) for top in self._tops]

    def _add(self, target: Target) -> bool:
        inode = self._inode(target)
        if inode is None:
            return False
        paths = [ffi.new("char[]", path) for path in self._dirs(target)]
        spec = ffi.new("struct kl_row_spec *")
        spec.usage_dir, spec.cpu_dir, spec.memory_dir = paths
        spec.kind, spec.be, spec.whole = target.kind, target.be, target.whole
        spec.pod = self._rows.get(target.parent, -1) if target.parent is not None else -1
        spec.cpu_series, spec.memory_series = self._series(target, "cpu"), self._series(target, "memory")
        row = lib.kl_table_add(self.table, spec) if self._room() else -errno.EMFILE
        if row < 0:
            self._report(target, -row)
            self._lack = -row if -row in _OUR_LACK else self._lack
            return False
        self._rows[target.key] = row
        self._keys[row] = target.key
        self._inodes[target.key] = inode
        return True

    def _room(self) -> bool:
        """Some descriptors stay free: who could not be asked any more could not say what is wrong either. The kernel
        gives the lowest free number, so it tells how many are in use."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return True
        try:
            lowest = os.open("/", os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return False
        os.close(lowest)
        return lowest + PER_ROW <= limit - min(RESERVE, limit // 4)

    def _series(self, target: Target, metric: str) -> int:
        kind = _SERIES_KIND.get(target.kind)
        return -1 if self._rings is None or kind is None else self._rings.open(kind, target.ident, metric)

    def _report(self, target: Target, number: int) -> None:
        """A fault other than "not there" is said once per cgroup, a lack of our own once; and not without end."""
        fault = ("" if number in _OUR_LACK else target.cgroup, number)
        if number in _GONE or fault in self._failed or len(self._failed) >= _MAX_FAULTS:
            return
        self._failed.add(fault)
        log.warning("sampler.cgroup_unreadable", cgroup=target.cgroup, errno=errno.errorcode.get(number, number))
