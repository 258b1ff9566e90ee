"""The agent's own heap on large pages. (Documentation/admin-guide/mm/transhuge.rst, madvise(2) MADV_COLLAPSE)

A tick touches a little of everything once a second, when nothing of it is in the caches any more. On small pages each
touch also walks the page tables, twice in a virtual machine; that was a fifth of a tick's time (bench/tick.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from koordlet._native import lib

LARGE: Final = 2 << 20


def collapse_heap() -> int:
    """Bytes that lie on large pages from now on; 0 on a kernel before 6.1. Nothing else changes."""
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
            ranges = list(heap_ranges(file.read()))
    except OSError:
        return 0
    return sum(end - start for start, end in ranges if lib.kl_pages_collapse(start, end - start) == 0)


def heap_ranges(maps: str) -> Iterator[tuple[int, int]]:
    """Whole large pages in private writable memory without a file (proc(5): /proc/pid/maps)."""
    for line in maps.splitlines():
        addresses, mode, _, _, inode, *name = line.split(maxsplit=5)
        if not mode.startswith("rw-p") or inode != "0" or (name and not name[0].startswith(("[heap]", "[anon:"))):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if start < end:
            yield start, end
