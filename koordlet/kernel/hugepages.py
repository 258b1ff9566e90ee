"""Huge pages set aside per NUMA node (Documentation/admin-guide/mm/hugetlbpage.rst)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import KernelFileError, is_gone
from koordlet.kernel.host import Host


def read_hugepages(host: Host, nodes: Iterable[int]) -> dict[int, dict[int, int]]:
    """NUMA node -> page size in bytes -> bytes set aside. Sizes that a node does not have are left out.

    A machine without NUMA directory has one node, whose pages are the machine's. Raises OSError, KernelFileError.
    """
    found: dict[int, dict[int, int]] = {}
    for node in nodes:
        base = host.sys_root / f"devices/system/node/node{node}"
        found[node] = _sizes(base / "hugepages" if base.is_dir() else host.sys_root / "kernel/mm/hugepages")
    return found


def _sizes(base: Path) -> dict[int, int]:
    try:
        names = [entry.name for entry in base.iterdir()]
    except OSError as error:
        if is_gone(error):
            return {}
        raise
    sizes = {}
    for name in names:
        if size := _SIZE.fullmatch(name):
            path = base / name / "nr_hugepages"
            text = path.read_text("ascii", "replace").strip()
            if not _NUMBER.fullmatch(text):
                raise KernelFileError(path, "no number of pages", text)
            bytes_each = int(size[1]) * 1024
            sizes[bytes_each] = int(text) * bytes_each
    return sizes


_SIZE: Final = re.compile(r"hugepages-([0-9]{1,12})kB")
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
