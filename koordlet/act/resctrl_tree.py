"""Changes of the resctrl tree, one command each; a refusal comes back with the kernel's own words."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from koordlet.kernel.errors import is_gone
from koordlet.kernel.resctrl import (
    FIXED_DIRS,
    group_dirs,
    is_mounted,
    last_status,
    parse_schemata,
    parse_tasks,
)
from koordlet.kernel.write import write_each, write_file
from koordlet.model.resctrl import POD_PREFIX

MS_RELATIME = 1 << 21
T = TypeVar("T")


class Refused(Exception):  # noqa: N818 - an answer
    """code: errno. gone: the group is not there any more."""

    def __init__(self, action: str, error: OSError, status: str = "") -> None:
        self.code = error.errno or 0
        self.gone = is_gone(error)
        reason = os.strerror(self.code) if self.code else str(error)
        super().__init__(f"{action}: {reason}" + (f" ({status})" if status else ""))


class ResctrlTree:
    """`name` is a control group's directory, "" the root. Not thread-safe."""

    def __init__(self, root: Path, writer: Callable[[Path, bytes], None] = write_file) -> None:
        self.root = root
        self._writer = writer

    def mounted(self) -> bool:
        return is_mounted(self.root)

    def groups(self) -> list[str]:
        """Raises Refused."""
        return self._try(f"list {self.root}", lambda: group_dirs(self.root))

    def schemata(self, name: str) -> dict[str, dict[int, str]]:
        return parse_schemata(self.schemata_text(name))

    def schemata_text(self, name: str) -> str:
        return self._try(f"{name}/schemata", lambda: (self.root / name / "schemata").read_text())

    def tasks(self, name: str) -> set[int]:
        return self._try(f"{name}/tasks", lambda: parse_tasks((self.root / name / "tasks").read_text()))

    def make(self, name: str) -> None:
        self._try(f"mkdir {name}", lambda: os.mkdir(self.root / name, 0o755))

    def remove(self, name: str) -> None:
        """Its tasks go to the root, or a monitoring group's to its parent. One that is gone is removed."""
        try:
            self._try(f"rmdir {name}", lambda: os.rmdir(self.root / name))
        except Refused as refused:
            if not refused.gone:
                raise

    def write(self, name: str, line: str) -> None:
        """One schemata line: a bad line voids a whole write, so that each goes alone."""
        self._try(f"{name}/schemata {line}", lambda: self._writer(self.root / name / "schemata", f"{line}\n".encode()))

    def move(self, name: str, tids: Iterable[int]) -> tuple[int, str]:
        """(moved, first refusal). One id per write, as kernels before 6.7 need it; a task that has ended is none."""
        ids = list(tids)
        if not ids:
            return 0, ""
        outcomes = self._try(
            f"{name}/tasks", lambda: write_each(self.root / name / "tasks", (b"%d\n" % tid for tid in ids))
        )
        bad = [
            (tid, error)
            for tid, error in zip(ids, outcomes, strict=True)
            if error is not None and error.errno != errno.ESRCH
        ]
        moved = sum(error is None for error in outcomes)
        if not bad:
            return moved, ""
        tid, error = bad[0]
        return moved, str(Refused(f"{name}/tasks {tid}", error, last_status(self.root)))

    def monitors(self, name: str) -> list[str]:
        """Our monitoring groups below a control group."""
        with suppress(OSError):
            return [
                inner
                for inner in os.listdir(self.root / name / "mon_groups")
                if inner.startswith(POD_PREFIX) and inner not in FIXED_DIRS
            ]
        return []

    def mount(self) -> None:
        """Type resctrl with relatime, as the reference does. Raises Refused."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"resctrl", os.fsencode(self.root), b"resctrl", MS_RELATIME, None):
            code = ctypes.get_errno()
            raise Refused(f"mount {self.root}", OSError(code, os.strerror(code)))

    def unmount(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(self.root), 0):
            code = ctypes.get_errno()
            raise Refused(f"umount {self.root}", OSError(code, os.strerror(code)))

    def _try(self, action: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            raise Refused(action, error, last_status(self.root)) from error
