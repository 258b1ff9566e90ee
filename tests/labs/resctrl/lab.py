"""Resctrl lab: a mounted file system that behaves as the kernel's resctrl, and what a test does to its hardware.

Ask for the fixture `resctrl` (fixture.py). By hand: `make lab-resctrl`, or `python -m tests.labs.resctrl.lab SHAPE`.

It differs from a kernel's in these points: the file system type is fuse.resctrl and statfs has FUSE's magic number, so
`mounts` is a table as the kernel would show it; forks of real tasks are not followed; the limbo worker is immediate;
chmod is refused; io_alloc, mbm_assign_mode and its counters (AMD's ABMC) are not there, only their word Unassigned.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.labs.resctrl.shapes import ERAS, SHAPES

ROOT = Path(__file__).resolve().parents[3]
START_S = 15
HINT = """
A resctrl with machine shape {shape} (others: {shapes}) is mounted at
    {mount}
Use it from another shell:
    cd {mount}; cat schemata info/*/*; mkdir g; echo 'L3:0=f' > g/schemata; cat info/last_cmd_status; echo $$ > g/tasks
Type here what hardware would do, Ctrl-D ends the lab:
    counter g 0 mbm_total_bytes 1000000      (group or /, domain, event, number or Unavailable, Error, Unassigned)
    fork 5000001 | exit 5000001 | drain | reset SHAPE [ERA]      (eras: {eras})
"""


def missing() -> str | None:
    """Why the lab cannot run here, or None."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse (run as root; in a container pass the device)"
    if os.geteuid() != 0:
        return "mounting needs root"
    if ctypes.util.find_library("fuse3") is None:
        return "libfuse3 is not installed (apt-get install fuse3)"
    if importlib.util.find_spec("mfusepy") is None:
        return "Python package mfusepy is not installed (pip install mfusepy)"
    return None


class Lab:
    """A running instance. Paths are relative to `mount`; all changes of hardware go through the methods."""

    def __init__(self) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="koordlet-resctrl-"))
        self.work.chmod(0o755)  # other users may look, as at /sys/fs/resctrl
        self.mount = self.work / "resctrl"
        self.mounts = self.work / "mounts"  # the line that /proc/mounts would have
        self.process: subprocess.Popen[bytes] | None = None
        self.lines: Any = None

    def start(self, shape: str = "intel") -> Lab:
        self.mount.mkdir()
        log = (self.work / "log").open("wb")
        address = self.work / "control"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.labs.resctrl.serve", str(self.mount), str(address), shape],
            cwd=ROOT,
            env={**os.environ, "FUSE_LIBRARY_NAME": "fuse3"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        deadline = time.monotonic() + START_S
        while not (address.exists() and os.path.ismount(self.mount)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                text = (self.work / "log").read_text()[-2000:]
                self.stop()
                raise RuntimeError(f"the resctrl lab did not come up:\n{text}")
            time.sleep(0.02)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(address))
        self.lines = connection.makefile("rw")
        connection.close()  # the file keeps it open
        self.reset(shape)
        return self

    def stop(self) -> None:
        """Unmount, end the process, remove the directory; also after a half start."""
        if self.lines is not None:
            self.lines.close()
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if os.path.ismount(self.mount) or self._stale():
            subprocess.run(["umount", "-l", str(self.mount)], check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def _stale(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            try:
                self.mount.stat()
            except OSError as e:
                return not isinstance(e, FileNotFoundError)
        return False

    # the hardware's side

    def reset(self, shape: str = "intel", era: str | None = None) -> None:
        """Another machine, as just mounted; names in shapes.py. About a millisecond, so each test takes its own."""
        options = self._ask("reset", shape=shape, era=era)
        words = ",".join(["rw", "relatime", *options])
        self.mounts.write_text(f"resctrl {self.mount} resctrl {words} 0 0\n")

    def counter(self, group: str, domain: int, event: str, value: int | str, add: bool = False) -> None:
        """Set (or raise by) bytes of one group's own counter, or make its reads say Unavailable, Error, Unassigned.

        `group`: "" for the root, "g", "g/mon_groups/m". `domain`: L3 id, with SNC the node.
        """
        self._ask("counter", group=group, domain=domain, event=event, value=value, add=add)

    def drain(self) -> None:
        """Let the caches forget removed groups, so that their RMIDs leave limbo."""
        self._ask("drain")

    def fork(self, tid: int, parent: int | None = None, uid: int = 0) -> None:
        """A made-up task (id above 4194304), in its parent's group."""
        self._ask("fork", tid=tid, parent=parent, uid=uid)

    def exit(self, tid: int) -> None:
        """That task is dead: writing it gives ESRCH."""
        self._ask("exit", tid=tid)

    def status(self) -> str:
        return (self.mount / "info/last_cmd_status").read_text()

    def _ask(self, op: str, **order: Any) -> Any:
        self.lines.write(json.dumps({"op": op, **order}) + "\n")
        self.lines.flush()
        answer = json.loads(self.lines.readline() or '{"error": "the resctrl lab has ended"}')
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["ok"]


@contextlib.contextmanager
def running(shape: str = "intel") -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab.start(shape)
    finally:
        lab.stop()


def by_hand(lab: Lab, line: str) -> None:
    """One line of the interactive lab."""
    op, *words = line.split() or [""]
    values = words if op == "reset" else [int(w) if w.isdigit() else w for w in words]
    if op not in ("counter", "fork", "exit", "drain", "reset"):
        raise ValueError("one of: counter fork exit drain reset")
    getattr(lab, op)(*values)


def main() -> int:
    reason = missing()
    if reason:
        print(f"resctrl lab: {reason}", file=sys.stderr)
        return 1
    shape = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHAPE", "intel")
    if shape not in SHAPES:
        print(f"resctrl lab: no shape {shape}; there are {' '.join(SHAPES)}", file=sys.stderr)
        return 1
    with running(shape) as lab:
        print(HINT.format(shape=shape, shapes=" ".join(SHAPES), mount=lab.mount, eras=" ".join(ERAS)), flush=True)
        for line in sys.stdin:
            try:
                by_hand(lab, line)
                print("ok", flush=True)
            except (ValueError, TypeError) as e:
                print(e, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
