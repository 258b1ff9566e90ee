"""Cleans up after a runtime lab, whatever became of its owner. Runs as a process of its own, started by lab.py.

It holds the lab's mount namespace, so that no mount of containerd's or a container's is ever seen on the machine, and
makes the lab's cgroup. All that the lab starts begins in GROUP/daemon, and containers get cgroups below GROUP: killing
what is in there is complete. It waits for the end of its standard input, which comes too when the owner is killed.

    unshare -m python guard.py WORK GROUP       prints "ready", then "left: ..." or "clean"
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# Hierarchies of v1 that take a process without further setting up (cpuset does not), best first.
PLAIN = ("pids", "freezer", "systemd", "devices")
CLEAN_S = 30
# Short, whatever TMPDIR says: a shim's socket_dir may have 42 characters at most.
FOLDERS, PREFIX = Path("/tmp"), "kl-rt-"
HELD = "held"


def hierarchies() -> list[Path]:
    """Roots of all cgroup hierarchies: one on v2, each controller's on v1."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return sorted({p.parent.resolve() for p in CGROUPS.glob("*/cgroup.procs")})


def daemon_group(group: str) -> Path:
    """Where the lab's daemons begin."""
    roots = {p.name: p for p in hierarchies()}
    root = CGROUPS if CGROUPS in roots.values() else next(roots[n] for n in PLAIN if n in roots)
    return root / group / "daemon"


def trees(group: str) -> list[Path]:
    return [root / group for root in hierarchies() if (root / group).is_dir()]


def pids(group: str) -> Iterator[int]:
    for tree in trees(group):
        for folder in _below(tree):
            with contextlib.suppress(OSError):  # removed meanwhile
                yield from map(int, (folder / "cgroup.procs").read_text().split())


def hold(work: Path) -> int:
    """Descriptor of a lock that says the lab is in use; the owner has it and hands it to its guard."""
    partial = work / "new"
    held = os.open(partial, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_EX)
    partial.rename(work / HELD)  # nobody ever sees it unlocked
    return held


def sweep() -> None:
    """Clean up labs whose owner and guard were killed both."""
    for file in FOLDERS.glob(f"{PREFIX}*/{HELD}"):
        with contextlib.suppress(OSError), file.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
            clean(file.parent, group_of(file.parent))


def group_of(work: Path) -> str:
    """Name of the lab's cgroup."""
    return f"koordlet-lab-runtime-{work.name.removeprefix(PREFIX)}"


def clean(work: Path, group: str) -> list[str]:
    """End, unmount and remove all of the lab. Returns what could not be."""
    end = time.monotonic() + CLEAN_S
    while time.monotonic() < end:
        alive = set(pids(group))
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for tree in trees(group):
            _thaw(tree)
            for folder in reversed(_below(tree)):
                with contextlib.suppress(OSError):  # still has processes
                    folder.rmdir()
        if not alive and not trees(group):
            break
        time.sleep(0.05)
    for mount in reversed(_mounts(work)):
        subprocess.run(["umount", "-l", mount], check=False)
    shutil.rmtree(work, ignore_errors=True)
    left = [f"process {pid}" for pid in pids(group)] + [f"cgroup {tree}" for tree in trees(group)]
    return left + [f"folder {work}"] * work.exists()


def _below(tree: Path) -> list[Path]:
    """The folder and all below it, parents first."""
    return [Path(folder) for folder, _, _ in os.walk(tree)]


def _thaw(tree: Path) -> None:
    """A killed process of a frozen v1 group dies when the group is thawed."""
    for folder in _below(tree):
        with contextlib.suppress(OSError):
            (folder / "freezer.state").write_text("THAWED")


def _mounts(work: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [p for p in points if p == str(work) or p.startswith(f"{work}/")]


def main() -> int:
    work, group = Path(sys.argv[1]), sys.argv[2]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is for the owner, whose end is the signal for this
    try:
        # overlayfs cannot have its upper layer on an overlayfs, which a container's root is.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "koordlet-lab", str(work / "data")], check=True)
        daemon_group(group).mkdir(parents=True)
        print("ready", flush=True)
        sys.stdin.readline()
    finally:
        left = clean(work, group)
    with contextlib.suppress(BrokenPipeError):  # the owner was killed: nobody reads
        os.write(1, (f"left: {', '.join(left)}" if left else "clean").encode())
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
