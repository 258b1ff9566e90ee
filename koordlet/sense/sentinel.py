"""The sentinel between ticks: a native thread that says when the present best-effort allowance is too large.

While a plan is on it reads a few kept counters every 10-20 ms and makes a descriptor readable once a threshold is
crossed; the loop then calls `take()`, reacts and sets the next plan, which arms it again. It has no opinion: the
thresholds are decide's. Native part: native/sentinel.h. Not thread-safe: one owner.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from koordlet._native import ffi, lib
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.psi import cgroup_psi_path, node_psi_path
from koordlet.model.view import Reading, SurgePlan

if TYPE_CHECKING:
    from koordlet._native import CData

log = structlog.get_logger(__name__)


class Sentinel:
    """Watches non-BE CPU usage (root counter minus the BE roots' counters), the LS groups' CPU pressure, and the node's
    memory usage and pressure.

    period_us: time between two looks, 1 ms to 1 s; window_us: over which usage is averaged, at least a period, at most
    10 s. Pressure is averaged over 100 ms. Raises OSError for other values, and when the thread cannot be made.
    """

    def __init__(self, host: Host, *, period_us: int = 20_000, window_us: int = 40_000) -> None:
        self._host = host
        self._period_us = period_us
        self._window_us = window_us
        self._plan: SurgePlan | None = None
        self._fired = False
        self._watched: tuple[object, ...] = ()
        self._mode = "timer"
        self._seen = ffi.new("struct kl_sentinel_state *")  # the loop's own: others may ask for `stats` meanwhile
        out = ffi.new("struct kl_sentinel **")
        _check(lib.kl_sentinel_create(out))
        self._handle: CData | None = out[0]
        try:
            self.set_plan(SurgePlan())
            _check(lib.kl_sentinel_start(self._handle))
        except OSError:
            self.close()
            raise

    def set_sources(self, be_roots: tuple[str, ...], ls_groups: tuple[str, ...]) -> list[str]:
        """Watches these cgroups (relative paths) instead of the earlier ones; returns what it cannot watch.

        An unwatched BE root counts as non-BE; with more of them than there is room for, no usage is watched, as the
        rest would look like a surge for ever. Nothing happens where the same cgroups are watched already, so it may
        be called each tick. Raises OSError, and then the earlier ones stay watched.
        """
        with ExitStack() as opened:
            missing: list[str] = []
            usage = [self._usage_path(path) for path in ("", *be_roots)]
            if len(be_roots) > lib.KL_SENTINEL_BE_ROOTS:
                missing.append(f"{len(be_roots)} best-effort roots, more than {lib.KL_SENTINEL_BE_ROOTS}")
                usage = []
            root = _open_all(usage[:1], opened, missing)
            roots = _open_all(usage[1:], opened, missing)
            groups = _open_all(self._pressure_paths(ls_groups, missing), opened, missing)
            # Not reported: a kernel without them is told by `koordlet check`.
            meminfo = _open_all([self._host.proc_root / "meminfo"], opened, [])
            stalls = _open_all([node_psi_path(self._host, "memory")], opened, [])
            sources = (*root, *roots, *groups, *meminfo, *stalls)
            watched = (*(source.identity for source in sources), self._state(self._seen).gone)
            if watched != self._watched:
                self._watch(root, roots, groups, meminfo, stalls, opened)
                self._watched = watched
        return missing

    def set_plan(self, plan: SurgePlan) -> None:
        """Arms for this plan. No call into C for the plan that is armed already."""
        if plan == self._plan and not self._fired:
            return
        wanted = {
            "nonbe_mcpu": _threshold(plan.nonbe_mcpu),
            "pressure_permyriad": _threshold(plan.pressure_permyriad),
            "memory_used_bytes": _threshold(plan.memory_used_bytes),
            "memory_pressure_permyriad": _threshold(plan.memory_pressure_permyriad),
            "period_us": self._period_us,
            "window_us": self._window_us,
        }
        _check(lib.kl_sentinel_set_plan(self._handle, ffi.new("struct kl_sentinel_plan *", wanted)))
        self._plan = plan
        self._fired = False

    def fileno(self) -> int:
        """Readable once the plan's threshold was crossed, until `take()`."""
        return lib.kl_sentinel_eventfd(self._handle)

    def take(self) -> bool:
        """Whether it fired since the last call. It stays disarmed until the next `set_plan`."""
        try:
            os.read(self.fileno(), 8)
        except BlockingIOError:
            return False
        self._fired = True
        return True

    def surge(self) -> tuple[Reading | None, Reading | None]:
        """Latest non-BE usage in milli-CPU and latest LS pressure in permyriad, each with its monotonic time."""
        state = self._state(self._seen)
        return (
            _reading(state.nonbe_mcpu, state.nonbe_at_ns),
            _reading(state.pressure_permyriad, state.pressure_at_ns),
        )

    def memory(self) -> tuple[Reading | None, Reading | None]:
        """Latest memory usage of the node in bytes, and its memory pressure in permyriad; None before the first look
        with a memory watch on."""
        state = self._state(self._seen)
        return (
            _reading(state.memory_used_bytes, state.memory_used_at_ns),
            _reading(state.memory_pressure_permyriad, state.memory_pressure_at_ns),
        )

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the present timer period (0: off)."""
        state = self._state(ffi.new("struct kl_sentinel_state *"))
        return {name: getattr(state, name) for name in _STATS}

    @property
    def mode(self) -> str:
        """How it is woken while a plan is on: "timer", "trigger 500 ms + timer", or "off" without a usage counter."""
        return self._mode

    def close(self) -> None:
        """Stops the thread and closes everything; may be called twice."""
        if self._handle is not None:
            lib.kl_sentinel_destroy(self._handle)
            self._handle = None

    def _state(self, state: CData) -> CData:
        lib.kl_sentinel_state_read(self._handle, state)
        return state

    def _usage_path(self, target: str) -> Path:
        if self._host.version is CgroupVersion.V2:
            return self._host.dir("cpu", target) / "cpu.stat"
        return self._host.dir("cpuacct", target) / "cpuacct.usage"

    def _pressure_paths(self, groups: tuple[str, ...], missing: list[str]) -> list[Path]:
        """Pressure files of the first LS groups; v1 cgroups without one are the rule and not reported."""
        paths: list[Path] = []
        for group in groups:
            path = cgroup_psi_path(self._host, group, "cpu")
            if path is not None and len(paths) < lib.KL_SENTINEL_LS_GROUPS:
                paths.append(path)
            elif path is not None or self._host.version is CgroupVersion.V2:
                missing.append(str(path or self._host.dir("cpu", group) / "cpu.pressure"))
        return paths

    def _watch(
        self,
        root: list[_Source],
        roots: list[_Source],
        groups: list[_Source],
        meminfo: list[_Source],
        stalls: list[_Source],
        opened: ExitStack,
    ) -> None:
        triggers = _arm_triggers([node_psi_path(self._host, "cpu"), *(source.path for source in groups)], opened)
        arrays = [ffi.new("int[]", [source.fd for source in sources]) for sources in (roots, groups, triggers)]
        v2 = self._host.version is CgroupVersion.V2
        sources = {
            "root_fd": root[0].fd if root else -1,
            "meminfo_fd": meminfo[0].fd if meminfo else -1,
            "memory_psi_fd": stalls[0].fd if stalls else -1,
            "usage_kind": lib.KL_COUNTER_USAGE_USEC if v2 else lib.KL_COUNTER_NS,
            "be_count": len(roots),
            "ls_count": len(groups),
            "trigger_count": len(triggers),
            "be_fds": arrays[0],
            "ls_fds": arrays[1],
            "trigger_fds": arrays[2],
        }
        _check(lib.kl_sentinel_set_sources(self._handle, ffi.new("struct kl_sentinel_sources *", sources)))
        self._mode = _mode(root or groups, triggers)


@dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    fd: int
    window_us: int = 0

    @property
    def identity(self) -> tuple[str, int, int]:
        """A cgroup made anew under the same name has another inode."""
        stat = os.fstat(self.fd)
        return str(self.path), stat.st_dev, stat.st_ino


_STATS: Final = ("fires", "looks", "wakeups", "hints", "errors", "gone", "timer_us")

_TRIGGERS: Final = ((50_000, 500_000), (100_000, 2_000_000))
"""(stall, window) in us. Without CAP_SYS_RESOURCE Linux 6.18 grants only windows that are multiples of 2 s."""


def _open_all(paths: list[Path], opened: ExitStack, missing: list[str]) -> list[_Source]:
    """Those that can be opened and read (PSI switched off fails at the read)."""
    sources = []
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            os.pread(fd, 64, 0)
        except OSError as error:
            log.debug("sentinel.source_missing", path=str(path), errno=error.errno)
            missing.append(str(path))
        else:
            sources.append(_Source(path, fd))
    return sources


def _arm_triggers(paths: list[Path], opened: ExitStack) -> list[_Source]:
    """The first few files on which the kernel grants a trigger."""
    granted = []
    for path in paths[: lib.KL_SENTINEL_TRIGGERS]:
        for stall_us, window_us in _TRIGGERS:
            fd = _arm(path, f"some {stall_us} {window_us}")
            if fd is not None:
                opened.callback(os.close, fd)
                granted.append(_Source(path, fd, window_us))
                break
    return granted


def _arm(path: Path, trigger: str) -> int | None:
    """Descriptor of the trigger, None where it is refused. The trigger lives until its last descriptor is closed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # A copied file has a size, the kernel's has none: a copy is never written.
        if os.fstat(fd).st_size == 0 and os.write(fd, trigger.encode() + b"\0"):
            return fd
    except OSError as error:
        log.debug("sentinel.trigger_refused", path=str(path), trigger=trigger, errno=error.errno)
    os.close(fd)
    return None


def _mode(watched: list[_Source], triggers: list[_Source]) -> str:
    if not watched:
        return "off"
    windows = sorted({source.window_us for source in triggers})
    return " + ".join([*(f"trigger {window_us // 1000} ms" for window_us in windows), "timer"])


def _threshold(value: int | None) -> int:
    """-1 is C's "off"; a negative threshold means that any usage is too much."""
    return -1 if value is None else max(value, 0)


def _reading(value: int, at_ns: int) -> Reading | None:
    return None if value < 0 else Reading(float(value), at_ns / 1e9)


def _check(rc: int) -> None:
    if rc < 0:
        raise OSError(-rc, f"sentinel: {os.strerror(-rc)}")
