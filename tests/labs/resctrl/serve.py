"""The mounted file system: `python -m tests.labs.resctrl.serve MOUNT SOCKET SHAPE`, one process per mount.

FUSE hands each open, read and write to `tree`; here are only the habits of kernfs (fs/kernfs/file.c) that every file
shares. Tests drive what hardware would do over the socket, one JSON object per line: see `Control`.
Ends on SIGTERM, and when the process that started it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import mfusepy  # type: ignore[import-untyped]

from tests.labs.resctrl import shapes
from tests.labs.resctrl.model import Group, Machine
from tests.labs.resctrl.tasks import Caller, Tasks
from tests.labs.resctrl.tree import Dir, File, Tree

PAGE_BYTES = 4096
PR_SET_PDEATHSIG = 1


@dataclass
class Handle:
    file: File
    text: bytes = b""


class Resctrl(mfusepy.Operations):  # type: ignore[misc]
    use_ns = True
    flag_nopath = flag_nullpath_ok = True  # an open file whose directory is gone has no path any more

    def __init__(self, shape: str) -> None:
        self.busy = threading.Lock()
        self.handles: dict[int, Handle] = {}
        self.directories: dict[int, str] = {}
        self.next_handle = 1
        self.machine: Machine = None  # type: ignore[assignment]
        self.reset(shape)

    def reset(self, shape: str, era: str | None = None) -> None:
        """Mount again: another machine, or the same one as after boot. Files still open are of removed groups."""
        machine = Machine(shapes.of(shape, era), Tasks())
        if self.machine is not None:
            for group in self.machine.groups:
                for gone in (group, *group.children):
                    gone.deleted = True
        self.machine = machine
        self.tree = Tree(self.machine)
        self.mounted_ns = time.time_ns()

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        with self.busy:
            node = self.handles[fh].file if path is None and fh else self.tree.look_up(path or "/")
        mode = stat.S_IFREG | node.mode if isinstance(node, File) else stat.S_IFDIR | 0o755
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self.mounted_ns)
        return {"st_mode": mode, "st_nlink": 1 if isinstance(node, File) else 2, "st_size": 0, **times}

    def opendir(self, path: str) -> int:
        number, self.next_handle = self.next_handle, self.next_handle + 1
        self.directories[number] = path
        return number

    def readdir(self, path: str | None, fh: int) -> list[str]:
        with self.busy:
            node = self.tree.look_up(self.directories[fh])
        return [".", "..", *node.entries] if isinstance(node, Dir) else []

    def releasedir(self, path: str | None, fh: int) -> int:
        del self.directories[fh]
        return 0

    def open(self, path: str, flags: int) -> int:
        """KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK: the mode binds root too, so a read-only file cannot be opened to write."""
        with self.busy:
            node = self.tree.look_up(path)
            if isinstance(node, Dir):
                raise OSError(errno.EISDIR, path)
            access = flags & os.O_ACCMODE
            if access != os.O_RDONLY and (node.write is None or not node.mode & 0o222):
                raise OSError(errno.EACCES, path)
            if access != os.O_WRONLY and not node.mode & 0o444:
                raise OSError(errno.EACCES, path)
            number, self.next_handle = self.next_handle, self.next_handle + 1
            self.handles[number] = Handle(node)
            return number

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        """The text is made anew by each read from the start (seq_file), so a kept descriptor sees the present."""
        with self.busy:
            handle = self.handles[fh]
            if not handle.file.alive():
                raise OSError(errno.ENODEV, "the group is gone")
            if offset == 0 or not handle.text:
                handle.text = handle.file.show().encode()
            return handle.text[offset : offset + size]

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        """One write call is one command, wherever the file position is; E2BIG beyond a page."""
        with self.busy:
            file = self.handles[fh].file
            if len(data) > PAGE_BYTES:
                raise OSError(errno.E2BIG, "write")
            if not file.alive():
                raise OSError(errno.ENODEV, "the group is gone")
            uid, _gid, tid = mfusepy.fuse_get_context()
            assert file.write is not None
            file.write(data.decode("latin-1"), Caller(tid, uid))
            return len(data)

    def release(self, path: str | None, fh: int) -> int:
        with self.busy:
            self.handles.pop(fh, None)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        with self.busy:
            self.tree.mkdir(path)
        return 0

    def rmdir(self, path: str) -> int:
        with self.busy:
            self.tree.rmdir(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        with self.busy:
            self.tree.rename(old, new)
        return 0

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        return 0  # "> schemata" truncates first; kernfs lets it pass

    def create(self, path: str, mode: int, fi: int | None = None) -> int:
        raise OSError(errno.EACCES, path)

    def refuse(self, *_: object) -> int:
        raise OSError(errno.EPERM, "not in resctrl")

    mknod = unlink = symlink = link = refuse


class Control:
    """What a test may do behind the kernel's back. `do` takes {"op": name, ...} and gives a JSON value."""

    def __init__(self, fs: Resctrl) -> None:
        self.fs = fs

    def do(self, order: dict[str, Any]) -> Any:
        op = order.pop("op")
        method = getattr(self, f"op_{op}", None)
        if method is None:
            raise ValueError(f"no operation {op!r}")
        with self.fs.busy:
            return method(**order)

    def op_reset(self, shape: str, era: str | None = None) -> list[str]:
        """Another machine, freshly mounted; gives its mount options."""
        self.fs.reset(shape, era)
        return list(self.fs.machine.shape.options)

    def op_counter(self, group: str, domain: int, event: str, value: int | str, add: bool = False) -> None:
        """Set or raise a counter of that group alone (its MON groups have their own). `value` may be a word."""
        monitor = self.fs.machine.monitor
        if monitor is None:
            raise ValueError("this machine has no monitoring")
        monitor.put(self._group(group).rmid, domain, event, value, add)

    def op_drain(self) -> None:
        """The occupancy of removed groups falls to nothing: their RMIDs can be used again."""
        if self.fs.machine.monitor is not None:
            self.fs.machine.monitor.drain()

    def op_fork(self, tid: int, parent: int | None = None, uid: int = 0) -> None:
        self.fs.machine.tasks.fork(tid, parent, uid)

    def op_exit(self, tid: int) -> None:
        self.fs.machine.tasks.exit(tid)

    def _group(self, path: str) -> Group:
        node = self.fs.tree.look_up(path)
        if isinstance(node, File) or node.kind != "group" or node.group is None:
            raise ValueError(f"{path!r} is no group")
        return node.group

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                try:
                    answer = {"ok": self.do(json.loads(line))}
                except Exception as e:
                    answer = {"error": f"{type(e).__name__}: {e}"}
                lines.write(json.dumps(answer) + "\n")
                lines.flush()


def main() -> None:
    mount, address, shape = sys.argv[1:4]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    fs = Resctrl(shape)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        listener.bind(address)
        listener.listen()
        threading.Thread(target=Control(fs).serve, args=(listener,), daemon=True).start()
        with contextlib.suppress(RuntimeError):  # how mfusepy tells of the end by a signal
            mfusepy.FUSE(
                fs, mount, foreground=True, nothreads=True, fsname="resctrl", subtype="resctrl", allow_other=True,
                default_permissions=True, direct_io=True, attr_timeout=0, entry_timeout=0, negative_timeout=0,
                ac_attr_timeout=0,
            )  # fmt: skip


if __name__ == "__main__":
    main()
