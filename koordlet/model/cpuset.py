"""`CpuSet`: an immutable set of logical CPU ids and its kernel text form ("0-2,5"). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

MAX_CPU: Final = 4096
"""Largest id accepted from text (spec/api 0.3)."""

_DIGITS: Final = frozenset("0123456789")


class CpuSet:
    """Set of CPU ids held as one bit mask, so set algebra on 512 CPUs is one integer operation."""

    __slots__ = ("_mask",)
    _mask: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        mask = 0
        for cpu in cpus:
            if not 0 <= cpu <= MAX_CPU:
                raise ValueError(f"CPU id {cpu} is outside 0..{MAX_CPU}")
            mask |= 1 << cpu
        self._mask = mask

    @classmethod
    def _of(cls, mask: int) -> CpuSet:
        made = cls()
        made._mask = mask
        return made

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Parse `N`, `A-B` joined by commas; "" is the empty set, `3-1` adds nothing.

        Raises ValueError on blanks, signs, strides, empty members and ids above MAX_CPU. Text read
        from a kernel file must be stripped by the reader.
        """
        mask = 0
        if text == "":
            return cls._of(0)
        for member in text.split(","):
            first, dash, last = member.partition("-")
            low = _number(first, text)
            high = _number(last, text) if dash else low
            if high >= low:
                mask |= ((1 << (high - low + 1)) - 1) << low
        return cls._of(mask)

    def __str__(self) -> str:
        runs: list[str] = []
        mask, base = self._mask, 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            mask >>= skip
            base += skip
            run = ((mask + 1) & ~mask).bit_length() - 1
            runs.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
            mask >>= run
            base += run
        return ",".join(runs)

    def __repr__(self) -> str:
        return f"CpuSet({self!s})"

    def __iter__(self) -> Iterator[int]:
        mask, base = self._mask, 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            base += skip
            yield base
            mask >>= skip + 1
            base += 1

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __bool__(self) -> bool:
        return self._mask != 0

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and bool(self._mask >> cpu & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuSet) and self._mask == other._mask

    def __hash__(self) -> int:
        return hash(self._mask)

    def __or__(self, other: CpuSet) -> CpuSet:
        return self._of(self._mask | other._mask)

    def __and__(self, other: CpuSet) -> CpuSet:
        return self._of(self._mask & other._mask)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return self._of(self._mask & ~other._mask)

    def __le__(self, other: CpuSet) -> bool:
        return self._mask & ~other._mask == 0

    def __ge__(self, other: CpuSet) -> bool:
        return other <= self


def _number(text: str, whole: str) -> int:
    if not text or not _DIGITS.issuperset(text):
        raise ValueError(f"CPU list {whole!r}: {text!r} is not a CPU number")
    value = int(text)
    if value > MAX_CPU:
        raise ValueError(f"CPU list {whole!r}: {value} is above {MAX_CPU}")
    return value
