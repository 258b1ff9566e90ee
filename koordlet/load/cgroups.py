"""Scratch cgroups of our own, on cgroup v1 and v2: made, written, read and removed only here.

A tree is a directory `<name>-<pid>` in each controller's hierarchy with groups below it, and any number of groups
beside it. Leaving the context kills what still runs there and removes it; what a killed process left behind is
removed by the next one.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koordlet.load.errors import LoadError

REQUIRED: Final = ("cpu", "cpuacct")
OPTIONAL: Final = ("cpuset", "memory")
"""Also joined where they exist, so that an agent finds all of a group's files."""
REMOVE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where each controller's root directory is; on v2 all of them are the one unified root."""

    v2: bool
    roots: dict[str, Path]

    @property
    def distinct(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.roots.values()))


def find_hierarchies(base: Path = Path("/sys/fs/cgroup")) -> Hierarchies:
    """The mounted controllers. Raises LoadError saying what is missing and how to get it."""
    controllers = base / "cgroup.controllers"
    if controllers.is_file():
        active = (base / "cgroup.subtree_control").read_text().split()
        if "cpu" not in active:
            raise LoadError(
                f"the cpu controller is not active in {base}: as root, echo +cpu > {base}/cgroup.subtree_control"
            )
        return Hierarchies(True, dict.fromkeys((*REQUIRED, *(c for c in OPTIONAL if c in active)), base))
    mounted = [name for name in (*REQUIRED, *OPTIONAL) if (base / name / "cgroup.procs").exists()]
    roots = {name: (base / name).resolve() for name in mounted}  # cpu and cpuacct often link to one hierarchy
    missing = [name for name in REQUIRED if name not in roots]
    if missing:
        raise LoadError(
            f"no {' and no '.join(missing)} controller below {base}: on a host, mount it (mount -t cgroup -o cpu "
            f"cgroup {base}/cpu); in a container, run it privileged with /sys/fs/cgroup of the host mounted writable"
        )
    return Hierarchies(False, roots)


@dataclass(frozen=True, slots=True)
class Group:
    """One scratch cgroup. path: relative to the hierarchies' roots, no slash at either end."""

    where: Hierarchies
    path: str

    def dir(self, controller: str = "cpu") -> Path:
        return self.where.roots[controller] / self.path

    @property
    def procs_files(self) -> tuple[Path, ...]:
        """What a process must write itself into to be a member everywhere."""
        return tuple(root / self.path / "cgroup.procs" for root in self.where.distinct)

    def usage_ns(self) -> int:
        """CPU time that the group and everything below it has had."""
        return cpu_usage_ns(self.where, self.path)

    def set_shares(self, shares: int) -> None:
        """cpu.shares, on v2 the nearest cpu.weight (1024 shares are weight 100, the kernels' common default)."""
        if self.where.v2:
            self._write("cpu.weight", str(max(1, min(10_000, round(shares * 100 / 1024)))))
        else:
            self._write("cpu.shares", str(shares))

    def set_quota_us(self, quota_us: int | None) -> None:
        """CFS quota per 100 ms, None for none."""
        if self.where.v2:
            self._write("cpu.max", f"{'max' if quota_us is None else quota_us} 100000")
        else:
            self._write("cpu.cfs_quota_us", "-1" if quota_us is None else str(quota_us))

    def set_idle(self, idle: int) -> None:
        self._write("cpu.idle", str(idle))

    def quota_us(self) -> int | None:
        """The quota in the kernel, per 100 ms; None when there is none."""
        if self.where.v2:
            quota, _, period = self._read("cpu.max").partition(" ")
            return None if quota == "max" else int(quota) * 100_000 // int(period)
        quota_us = int(self._read("cpu.cfs_quota_us"))
        return None if quota_us < 0 else quota_us * 100_000 // int(self._read("cpu.cfs_period_us"))

    def weight(self) -> int:
        """cpu.shares or, on v2, cpu.weight as the kernel has it."""
        return int(self._read("cpu.weight" if self.where.v2 else "cpu.shares"))

    def idle(self) -> int | None:
        """cpu.idle, None on kernels before 5.15."""
        try:
            return int(self._read("cpu.idle"))
        except FileNotFoundError:
            return None

    def _read(self, name: str) -> str:
        return (self.dir() / name).read_text().strip()

    def _write(self, name: str, value: str) -> None:
        try:
            (self.dir() / name).write_text(value)
        except OSError as error:
            raise LoadError(f"{self.dir() / name}: {value!r} refused: {error.strerror}") from error


def cpu_usage_ns(where: Hierarchies, path: str = "") -> int:
    """CPU time of a cgroup, "" for the whole machine."""
    if not where.v2:
        return int((where.roots["cpuacct"] / path / "cpuacct.usage").read_text())
    text = (where.roots["cpu"] / path / "cpu.stat").read_text()
    return int(text.split("usage_usec ", 1)[1].split("\n", 1)[0]) * 1000


@dataclass(slots=True)
class ScratchTree:
    """The groups of one process. made: their paths, in the order of making."""

    where: Hierarchies
    name: str
    made: list[str] = field(default_factory=list)

    def group(self, path: str = "") -> Group:
        """The group at that path below the top, made with its parents when it is not there."""
        return self._group(f"{self.name}/{path}" if path else self.name)

    def beside(self, name: str) -> Group:
        """The top-level group `<top>-<name>`."""
        return self._group(f"{self.name}-{name}")

    def _group(self, whole: str) -> Group:
        names = whole.split("/")
        for depth in range(1, len(names) + 1):
            self._make("/".join(names[:depth]))
        return Group(self.where, whole)

    def _make(self, path: str) -> None:
        if path in self.made:
            return
        self.made.append(path)
        for root in self.where.distinct:
            (root / path).mkdir(exist_ok=True)
        if self.where.v2:
            self._delegate(path)
        elif "cpuset" in self.where.roots:
            directory = self.where.roots["cpuset"] / path
            for name in ("cpuset.cpus", "cpuset.mems"):  # a new v1 cpuset is empty and takes no process
                (directory / name).write_text((directory.parent / name).read_text())

    def _delegate(self, path: str) -> None:
        """Activate the controllers in the parent; a no-op for the top, whose parent is the machine's root."""
        parent = path.rpartition("/")[0]
        if parent:
            wanted = " ".join(f"+{name}" for name in self.where.roots if name != "cpuacct")
            (self.where.roots["cpu"] / parent / "cgroup.subtree_control").write_text(wanted)

    def remove(self) -> None:
        """Kill what runs in the groups and remove them everywhere. Raises LoadError when something stays."""
        for top in dict.fromkeys(path.partition("/")[0] for path in self.made):
            for root in self.where.distinct:
                remove_tree(root / top)
        self.made.clear()


@contextmanager
def scratch_tree(prefix: str, where: Hierarchies | None = None) -> Iterator[ScratchTree]:
    """A tree `<prefix>-<pid of this process>`, removed at the end whatever happens.

    Raises LoadError when this process may not make cgroups.
    """
    where = where or find_hierarchies()
    tree = ScratchTree(where, f"{prefix}-{os.getpid()}")
    remove_left_behind(where, prefix)
    try:
        try:
            tree.group()
        except OSError as error:
            raise LoadError(f"cannot make a cgroup: {error}; {_advice(error)}") from error
        yield tree
    finally:
        tree.remove()


def remove_left_behind(where: Hierarchies, prefix: str) -> None:
    """Remove groups `<prefix>-<pid>...` whose maker is gone: it was killed before it could clean up."""
    for root in where.distinct:
        for directory in root.glob(f"{prefix}-*"):
            found = re.fullmatch(rf"{re.escape(prefix)}-(\d+)(-.*)?", directory.name)
            if found and not Path(f"/proc/{found[1]}").exists():
                with suppress(LoadError, OSError):
                    remove_tree(directory)


def remove_tree(top: Path) -> None:
    """Kill the members of a cgroup directory and all below, then remove them, leaves first."""
    deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
    while top.is_dir():
        error = _try_remove(top)
        if error is None:
            return
        if time.monotonic() > deadline_s:
            raise LoadError(f"{top} cannot be removed: {error.strerror}; see its cgroup.procs")
        time.sleep(0.01)  # killed processes stay members until they have been torn down


def _try_remove(top: Path) -> OSError | None:
    below = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    last: OSError | None = None
    for directory in [*below, top]:
        try:
            _kill_members(directory)
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            last = error
    return last


def _kill_members(directory: Path) -> None:
    for pid in (directory / "cgroup.procs").read_text().split():
        if int(pid) not in (0, os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _advice(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return "the cgroup file system is read-only: in a container, run it privileged"
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        return "run it as root: sudo koordlet demo"
    return "run it as root on a host, or in a privileged container"
