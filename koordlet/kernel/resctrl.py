"""The resctrl file system: what the machine offers (info/, mount options), schemata lines, monitoring. Reads only.

Source: Documentation/filesystems/resctrl.rst. The kernel ends these files with a newline, pads values on older
releases, and lists lines in an order that changed; nothing here depends on either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import KernelFileError, is_gone
from koordlet.kernel.host import Host
from koordlet.model.resctrl import (
    CLASS_GROUPS,
    POD_PREFIX,
    BandwidthLine,
    BandwidthUnit,
    CacheLine,
    DomainReading,
    Monitoring,
    Resctrl,
)

FIXED_DIRS: Final = frozenset(("info", "mon_groups", "mon_data"))
AMD_FULL: Final = 2048
MBPS_FULL: Final = 0xFFFFFFFF
STATUS_BYTES: Final = 512


def resctrl_root(host: Host) -> Path:
    return host.sys_fs_root / "resctrl"


def is_mounted(root: Path) -> bool:
    return (root / "info").is_dir() and ((root / "schemata").exists() or (root / "mon_data").is_dir())


def mount_options(host: Host) -> frozenset[str]:
    """Options of the mounted resctrl (`cdp`, `mba_MBps` ...); all mounts of it share one."""
    try:
        rows = (host.proc_root / "mounts").read_text().splitlines()
    except OSError:
        return frozenset()
    for row in rows:
        fields = row.split()
        if len(fields) >= 4 and fields[2] == "resctrl":
            return frozenset(fields[3].split(","))
    return frozenset()


def read_resctrl(host: Host) -> Resctrl | None:
    """None when it is not mounted. Raises OSError, KernelFileError."""
    root = resctrl_root(host)
    if not is_mounted(root):
        return None
    ids = schemata_ids(_text(root / "schemata"))
    options = mount_options(host)
    caches: list[CacheLine] = []
    bandwidths: list[BandwidthLine] = []
    classes: list[int] = []
    monitoring = None
    for directory in sorted(p for p in (root / "info").iterdir() if p.is_dir()):
        name = directory.name
        if name.endswith("_MON"):
            if name == "L3_MON":
                monitoring = _monitoring(directory)
            continue
        if name not in ids:
            continue
        classes.append(_number(directory / "num_closids", 10))
        if (directory / "cbm_mask").exists():
            caches.append(_cache(directory, ids[name]))
        elif (directory / "bandwidth_gran").exists():
            bandwidths.append(_bandwidth(directory, ids[name], "mba_MBps" in options))
    foreign, rmids = _foreign(root)
    return Resctrl(
        caches=tuple(caches),
        bandwidths=tuple(bandwidths),
        # The kernel takes the smallest number: each group has one id in all resources.
        classes=min(classes, default=0),
        monitoring=monitoring,
        foreign=foreign,
        foreign_rmids=rmids,
    )


def parse_schemata(text: str) -> dict[str, dict[int, str]]:
    """Line name -> cache id -> value as written, blanks removed. Raises KernelFileError."""
    found: dict[str, dict[int, str]] = {}
    for line in text.splitlines():
        name, colon, rest = line.strip().partition(":")
        if not name:
            continue
        if not colon:
            raise KernelFileError("schemata", "a line without ':'", line)
        cells = {}
        for cell in rest.split(";"):
            if not cell.strip():
                continue
            number, equals, value = cell.partition("=")
            if not equals or not number.strip().isdecimal():
                if rest.strip() == "uninitialized":  # a group that is being pseudo-locked
                    break
                raise KernelFileError("schemata", "no id=value", line)
            cells[int(number)] = value.strip()
        found[name.strip()] = cells
    return found


def schemata_ids(text: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(cells) for name, cells in parse_schemata(text).items()}


def format_line(name: str, values: Mapping[int, str]) -> str:
    """`L3:0=f;1=f;`, as the reference writes it; the kernel takes the last ";" or leaves it."""
    return f"{name}:" + "".join(f"{number}={value};" for number, value in values.items())


def full_lines(info: Resctrl) -> tuple[str, ...]:
    """Lines that take every limit away."""
    caches = [format_line(line.name, dict.fromkeys(line.ids, f"{line.full:x}")) for line in info.caches]
    return (*caches, *(format_line(b.name, dict.fromkeys(b.ids, str(b.full))) for b in info.bandwidths))


def same_line(wanted: str, found: Mapping[str, Mapping[int, str]]) -> bool:
    """Does a group's schemata say what a line of ours asks for? Masks may be padded with zeros."""
    ((name, cells),) = parse_schemata(wanted).items()
    has = found.get(name, {})
    return all(number in has and _as_int(name, value) == _as_int(name, has[number]) for number, value in cells.items())


def last_status(root: Path) -> str:
    """What the kernel says about the last refused command, one line; "" when it says nothing."""
    try:
        with (root / "info/last_cmd_status").open("rb") as file:
            text = file.read(STATUS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    line = "; ".join(part.strip() for part in text.splitlines() if part.strip())
    return "" if line == "ok" else line


def parse_tasks(text: str) -> set[int]:
    return {int(line) for line in text.split() if line.isdecimal()}


def group_dirs(root: Path) -> list[str]:
    """Names of all control groups but the root. Raises OSError."""
    with os.scandir(root) as found:
        return sorted(e.name for e in found if e.name not in FIXED_DIRS and e.is_dir(follow_symlinks=False))


def is_ours(name: str) -> bool:
    return name.startswith(POD_PREFIX) or name in CLASS_GROUPS


def parse_count(text: str) -> int | None:
    """A monitoring file: a number, or a word (Unavailable, Error, Unassigned) that is no reading."""
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def read_monitoring(group: Path) -> tuple[dict[int, DomainReading], dict[int, DomainReading]]:
    """(by cache id, by SNC node) of a group's mon_data. A file that cannot be read is no reading. Raises OSError when
    the group is gone."""
    domains: dict[int, DomainReading] = {}
    nodes: dict[int, DomainReading] = {}
    base = os.fspath(group / "mon_data")
    for name in os.listdir(base):
        match = _DOMAIN.fullmatch(name)
        if match is None:
            continue
        domains[int(match[1])] = _domain(f"{base}/{name}")
        if len(os.listdir(f"{base}/{name}")) > len(_EVENTS):
            for inner in os.listdir(f"{base}/{name}"):
                node = _NODE.fullmatch(inner)
                if node is not None:
                    nodes[int(node[1])] = _domain(f"{base}/{name}/{inner}")
    return domains, nodes


def count_delta(before: int | None, after: int | None) -> int | None:
    """Growth of a 64-bit byte counter. None without two readings, and when it went back because the group was made
    anew or lost a monitoring group."""
    if before is None or after is None:
        return None
    if after >= before:
        return after - before
    return after - before + (1 << 64) if before > 3 << 62 and after < 1 << 62 else None


def _domain(path: str) -> DomainReading:
    return DomainReading(*(_count(f"{path}/{event}") for event in _EVENTS))


def _count(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_count(os.read(fd, 64).decode("ascii", "replace"))
    except OSError as error:
        if is_gone(error):
            raise
        return None
    finally:
        os.close(fd)


def _cache(directory: Path, ids: tuple[int, ...]) -> CacheLine:
    full = _number(directory / "cbm_mask", 16)
    if full == 0 or full & (full + 1):
        raise KernelFileError(directory / "cbm_mask", "not all ones from bit 0", f"{full:x}")
    return CacheLine(
        name=directory.name,
        ids=ids,
        full=full,
        min_bits=max(1, _number(directory / "min_cbm_bits", 10, 1)),
        shareable=_number(directory / "shareable_bits", 16, 0),
        sparse=_number(directory / "sparse_masks", 10, 0) == 1,
    )


def _bandwidth(directory: Path, ids: tuple[int, ...], mbps: bool) -> BandwidthLine:
    minimum, step = _number(directory / "min_bandwidth", 10, 10), _number(directory / "bandwidth_gran", 10, 10)
    linear = _number(directory / "delay_linear", 10, 1) == 1
    if mbps and directory.name == "MB":
        unit, full = BandwidthUnit.MBPS, MBPS_FULL
    elif minimum == 0 and not linear:  # only AMD's absolute scale starts at 0
        unit, full = BandwidthUnit.EIGHTH_GBPS, AMD_FULL
    else:
        unit, full = BandwidthUnit.PERCENT, 100
    return BandwidthLine(directory.name, ids, unit, minimum, max(1, step), full)


def _monitoring(directory: Path) -> Monitoring:
    words = _text(directory / "mon_features").split()
    return Monitoring(_number(directory / "num_rmids", 10), tuple(word for word in words if word in _EVENTS))


def _foreign(root: Path) -> tuple[tuple[str, ...], int]:
    """Others' control groups, and how many monitoring ids others hold."""
    names = [name for name in group_dirs(root) if not is_ours(name)]
    rmids = len(names)
    for name in ["", *names]:
        try:
            rmids += sum(not inner.startswith(POD_PREFIX) for inner in os.listdir(root / name / "mon_groups"))
        except OSError:
            continue
    return tuple(names), rmids


def _number(path: Path, base: int, default: int | None = None) -> int:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        if default is not None:
            return default
        raise
    try:
        return int(text, base)
    except ValueError:
        raise KernelFileError(path, f"no number of base {base}", text) from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _as_int(name: str, value: str) -> int | str:
    try:
        return int(value, 16 if name.startswith(("L2", "L3")) else 10)
    except ValueError:
        return value


def threads(directory: Path, name: str) -> Iterable[int]:
    """Ids of every thread in a cgroup directory and all below it. A directory that went away has none."""
    stack = [os.fspath(directory)]
    while stack:
        path = stack.pop()
        try:
            with os.scandir(path) as found:
                stack.extend(entry.path for entry in found if entry.is_dir(follow_symlinks=False))
            with open(f"{path}/{name}", "rb") as file:
                yield from map(int, file.read().split())
        except OSError as error:
            if not is_gone(error):
                raise


_EVENTS: Final = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_DOMAIN: Final = re.compile(r"mon_L3_([0-9]{1,5})")
_NODE: Final = re.compile(r"mon_sub_L3_([0-9]{1,5})")
