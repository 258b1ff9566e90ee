"""The kernel's way to read numbers and CPU lists (lib/kstrtox.c, lib/bitmap-str.c), whose limits users meet."""

from __future__ import annotations

import errno
import re
import string
from collections.abc import Iterable

_DIGITS = {8: string.octdigits, 10: string.digits, 16: string.hexdigits}
_SPACE = " \t\n\v\f\r"


def strim(text: str) -> str:
    return text.strip(_SPACE)


def number(text: str, base: int = 10, bits: int = 64, signed: bool = False) -> int:
    """kstrto*(): digits only, one sign, one newline at the end; ValueError for anything else or too large.

    Base 0 takes 0x and a leading 0 as the C language does; base 16 takes an optional 0x.
    """
    body = text[:-1] if text.endswith("\n") else text
    negative = signed and body.startswith("-")
    if negative or body.startswith("+"):
        body = body[1:]
    if base == 0:
        base = 16 if re.match(r"0[xX][0-9a-fA-F]", body) else 8 if body.startswith("0") else 10
    if base == 16 and re.match(r"0[xX]", body):
        body = body[2:]
    if not body or any(c not in _DIGITS[base] for c in body):
        raise ValueError(text)
    value = -int(body, base) if negative else int(body, base)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise ValueError(text)
    return value


def cpu_list(text: str, bits: int) -> set[int]:
    """bitmap_parselist(): "0-3,7". OSError EINVAL for other forms, ERANGE beyond the machine's CPUs."""
    cpus: set[int] = set()
    for part in re.split(r"[,\s]+", strim(text)):
        if not part:
            continue
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise OSError(errno.EINVAL, part)
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise OSError(errno.EINVAL, part)
        if last >= bits:
            raise OSError(errno.ERANGE, part)
        cpus.update(range(first, last + 1))
    return cpus


def cpu_mask(text: str, bits: int) -> set[int]:
    """bitmap_parse(): groups of up to eight hex digits. OSError EINVAL, or EOVERFLOW beyond the machine's CPUs."""
    body = strim(text)
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{1,8})*", body):
        raise OSError(errno.EINVAL, body)
    value = 0
    for group in body.split(","):
        value = value << 32 | int(group, 16)
    if value >> bits:
        raise OSError(errno.EOVERFLOW, body)
    return {n for n in range(bits) if value >> n & 1}


def show_mask(cpus: Iterable[int], bits: int) -> str:
    """printk's %*pb: 32 bits per group, the first one as wide as the machine needs."""
    value = sum(1 << n for n in cpus)
    groups = range((bits - 1) // 32, -1, -1)
    return ",".join(f"{value >> 32 * g & 0xFFFFFFFF:0{-(-min(32, bits - 32 * g) // 4)}x}" for g in groups)


def show_list(cpus: Iterable[int]) -> str:
    """printk's %*pbl: "0-3,7", empty for none."""
    runs: list[list[int]] = []
    for n in sorted(cpus):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
