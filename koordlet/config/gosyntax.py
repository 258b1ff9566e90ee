"""Texts as Go's strconv and time packages read them: booleans, integers, durations. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INT: Final = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]*|[1-9][0-9]*)")
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_NS: Final = {
    "ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000,
    "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9,
}  # fmt: skip
_MAX_TEXT: Final = 64
_INT64_MAX: Final = 2**63 - 1


def parse_bool(text: str) -> bool:
    """strconv.ParseBool. Raises ValueError."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("true or false")


def parse_int(text: str) -> int:
    """strconv.ParseInt with base 0 and 64 bits, without underscores. Raises ValueError."""
    found = _INT.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if found is None:
        raise ValueError("an integer")
    sign, digits = found.groups()
    if len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567":
        digits = "0o" + digits[1:]
    value = int(digits, 0) * (-1 if sign == "-" else 1)
    if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise ValueError("an integer of 64 bits")
    return value


def parse_duration_ns(text: str) -> int:
    """time.ParseDuration in nanoseconds: "300s", "1h30m", "1.5s", "-1s", "0". Raises ValueError."""
    sign, rest = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if rest == "0":
        return 0
    total, position = Decimal(0), 0
    while position < len(rest) <= _MAX_TEXT:
        found = _PART.match(rest, position)
        if found is None:
            break
        total += Decimal(found[1]) * _NS[found[2]]
        position = found.end()
    if not rest or position != len(rest) or total > _INT64_MAX:
        raise ValueError("a duration such as 300ms, 10s, 1h30m")
    return int(total) * (-1 if sign == "-" else 1)
