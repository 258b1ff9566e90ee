"""The agent's own heap on large pages: which parts of /proc/self/maps are meant, and the real call."""

from __future__ import annotations

import mmap

import pytest

from koordlet._native import ffi, lib
from koordlet.kernel.ownpages import LARGE, collapse_heap, heap_ranges

MAPS = """\
00400000-00c00000 r-xp 00000000 fe:00 1048 /usr/bin/python3.11
00e00000-01200000 rw-p 00a00000 fe:00 1048 /usr/bin/python3.11
010ff000-01901000 rw-p 00000000 00:00 0 [heap]
7f0000100000-7f0000500000 rw-p 00000000 00:00 0
7f0001000000-7f00011ff000 rw-p 00000000 00:00 0
7f0002000000-7f0002400000 rw-s 00000000 00:01 7 /dev/zero (deleted)
7f0003000000-7f0003400000 ---p 00000000 00:00 0
7f0004000000-7f0004400000 rw-p 00000000 00:00 0 [anon:a b]
"""


def test_only_whole_large_pages_of_private_memory_count() -> None:
    assert list(heap_ranges(MAPS)) == [
        (0x1200000, 0x1800000),
        (0x7F0000200000, 0x7F0000400000),
        (0x7F0004000000, 0x7F0004400000),
    ]


def test_the_heap_keeps_its_contents() -> None:
    kept = [bytes([number % 251]) * 600 for number in range(20_000)]
    assert collapse_heap() >= 0
    assert all(block == bytes([number % 251]) * 600 for number, block in enumerate(kept))


def test_memory_moves_onto_a_large_page() -> None:
    with mmap.mmap(-1, 2 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        # Flags no neighbour has: the kernel would otherwise count this memory and theirs as one mapping.
        memory.madvise(mmap.MADV_DONTDUMP)
        memory.write(b"x" * len(memory))
        address = int(ffi.cast("uintptr_t", ffi.from_buffer("char[]", memory)))
        start = -(-address // LARGE) * LARGE
        if (rc := lib.kl_pages_collapse(start, LARGE)) != 0:
            pytest.skip(f"MADV_COLLAPSE gives errno {-rc} here (needs Linux 6.1 with transparent huge pages)")
        assert _large_bytes(start) >= LARGE  # more where the kernel gives large pages unasked
        assert memory[:] == b"x" * len(memory)


def _large_bytes(address: int) -> int:
    """AnonHugePages of the mapping that holds the address."""
    inside, found = False, 0
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if "-" in (first := line.split(maxsplit=1)[0]) and not first.endswith(":"):
                low, high = (int(part, 16) for part in first.split("-"))
                inside = low <= address < high
            elif inside and first == "AnonHugePages:":
                found = int(line.split()[1]) << 10
    return found
