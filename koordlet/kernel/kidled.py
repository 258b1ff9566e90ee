"""kidled of Anolis kernels: how much page cache nobody touched for long, by cgroup (cgroup v1 only).

`memory.idle_page_stats` has a row per kind of page and a column per time that it lay idle, in scans. Source: the
kernel's Documentation/vm/kidled.rst, spec/collect 1.6.
"""

from __future__ import annotations

from typing import Final

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host

FILE: Final = "memory.idle_page_stats"
DIRECTORY: Final = "kernel/mm/kidled"
COLUMNS: Final = 8
FIRST_COLD: Final = 5
"""Column of [60,120) scans: idle for 300 s and longer."""
_ROWS: Final = frozenset({"cfei", "dfei", "cfui", "dfui"})
"""Inactive file pages: clean and dirty, evictable and not."""


def is_there(host: Host) -> bool:
    """The kernel counts idle pages, or would if it were switched on."""
    files = (host.sys_root / DIRECTORY / name for name in ("scan_period_in_seconds", "use_hierarchy"))
    return host.version is CgroupVersion.V1 and all(file.is_file() for file in files)


def read_cold_bytes(host: Host, cgroup: str) -> int:
    """Cold page cache of a cgroup and those below; "" is the whole node. Raises OSError, KernelFileError."""
    path = host.dir("memory", cgroup) / FILE
    try:
        return parse_cold_bytes(path.read_text("ascii", "replace"))
    except KernelFileError as error:
        raise error.at(path) from None


def parse_cold_bytes(text: str) -> int:
    """W-15. Raises KernelFileError where a row is missing or is none: a part would be taken for the whole."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, *columns = line.split() or [""]
        if name in _ROWS:
            if len(columns) != COLUMNS or not all(one.isascii() and one.isdigit() and len(one) < 20 for one in columns):
                raise KernelFileError(FILE, f"expected {COLUMNS} numbers", line)
            found[name] = sum(map(int, columns[FIRST_COLD:]))
    if found.keys() != _ROWS:
        raise KernelFileError(FILE, f"no row {', '.join(sorted(_ROWS - found.keys()))}", text)
    return sum(found.values())
