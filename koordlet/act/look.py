"""One look at a knob's file before it is touched: content and identity, or why there is none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from koordlet.act.order import height
from koordlet.kernel.errors import KernelFileError, is_gone
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobitems import select
from koordlet.kernel.knobs import KNOBS, Base, Item, Unit, knob_path
from koordlet.kernel.knobtext import encode, parse, same
from koordlet.model.knob import Knob, KnobValue

CONTENT_MAX: Final = 65_536
"""Bytes kept of a file; a CPU list of 4096 odd ids is a third of it."""


class Missing(Enum):
    GONE = auto()  # the cgroup is not there
    UNSUPPORTED = auto()  # the cgroup is there, this file is not


@dataclass(frozen=True, slots=True)
class Look:
    """inode: kernfs never reuses one within a boot, so it tells a re-created cgroup from the old one; 0 outside the
    cgroups, where the path is the identity. raw: of a file of many items this knob's part. whole: the knob is all that
    this file of a cgroup holds."""

    path: Path
    inode: int
    raw: bytes
    whole: bool = False

    @property
    def text(self) -> str:
        return as_text(self.raw)


def look(host: Host, target: str, knob: Knob) -> Look | Missing:
    """Raises OSError for anything but a missing file or cgroup."""
    path, row = knob_path(host, target, knob), KNOBS[knob]
    if path is None:
        return Missing.UNSUPPORTED
    in_cgroup = row.base is Base.CGROUP
    whole = in_cgroup and row.item is Item.NONE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            inode = os.fstat(fd).st_ino if in_cgroup else 0
            raw = os.read(fd, CONTENT_MAX)
            while row.item is not Item.NONE and len(raw) < CONTENT_MAX and (more := os.read(fd, CONTENT_MAX)):
                raw += more  # the kernel hands such a file over by the page
        finally:
            os.close(fd)
        part = select(host.version, knob, target, raw)
        return Missing.UNSUPPORTED if part is None else Look(path, inode, part, whole)
    except OSError as error:
        if not is_gone(error):
            raise
    if not in_cgroup:
        return Missing.UNSUPPORTED
    if path.parent.is_dir() or not host.dir(KNOBS[knob].subsystem, "").is_dir():
        return Missing.UNSUPPORTED
    return Missing.GONE


def as_text(raw: bytes) -> str:
    return raw.decode("ascii", "replace").strip()


def says(version: CgroupVersion, knob: Knob, data: bytes, text: str) -> bool:
    """True if a file that reads `text` holds what writing `data` would leave there.

    data: bytes of a write or of an earlier read. The kernel answers in its own spelling: rounded memory, merged
    CPU ranges, the period behind a v2 quota.
    """
    wrote, found = as_text(data).split(), text.split()
    if wrote == found:
        return True
    if not wrote or not found:
        return False
    if version is CgroupVersion.V2 and KNOBS[knob].unit is Unit.QUOTA:
        return wrote[0] == found[0]
    if KNOBS[knob].unit is Unit.SHARES:
        return False  # by way of shares, the weights 100 and 101 would be the same
    if KNOBS[knob].unit is Unit.PARTITION:
        return wrote[0] == found[0]  # "isolated invalid (why)" is what became of "isolated"
    value = value_of(version, knob, data)
    return value is not None and same(version, knob, value, text)


def value_of(version: CgroupVersion, knob: Knob, data: bytes) -> KnobValue | None:
    """Model value of a file's bytes; None for garbage (only the order of writes depends on it)."""
    try:
        return parse(version, knob, as_text(data))
    except KernelFileError:
        return None


def enough(version: CgroupVersion, knob: Knob, value: KnobValue, raw: bytes) -> bool:
    """True if the file holds at least this number."""
    found = value_of(version, knob, raw)
    return isinstance(found, int) and height(found) >= height(value)


def restore_bytes(version: CgroupVersion, knob: Knob, original: bytes) -> bytes:
    """What to write so that the file reads `original` again.

    A frozen group is always thawed: FREEZING is no legal value, and nothing may stay frozen for our sake. An empty
    file is written as an empty line, since a write of no bytes does not reach the kernel.
    """
    if knob is Knob.FREEZE:
        return encode(version, knob, 0)
    if knob is Knob.CPUSET_PARTITION:
        return original.partition(b" ")[0]  # "root invalid (why)" is no legal value either
    return original if original.strip() else b"\n"
