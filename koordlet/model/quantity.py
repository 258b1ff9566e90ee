"""Kubernetes resource quantities: text -> exact number -> canonical text (spec/api 0.2). Pure."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_FORM: Final = re.compile(
    r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?[0-9]{1,3}))?"
)
_SCALE: Final = {
    "n": Decimal(10) ** -9, "u": Decimal(10) ** -6, "m": Decimal(10) ** -3,
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12, "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40, "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip
_MAX_TEXT: Final = 64
"""Longer texts come from nobody's keyboard; refusing them bounds the work per annotation."""


def parse_quantity(text: str) -> Decimal:
    """Exact value in base units. Raises ValueError naming the text."""
    found = _FORM.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if found is None:
        raise ValueError(f"{text[:_MAX_TEXT]!r} is not a resource quantity such as 500m, 2, 4Gi")
    sign, digits, suffix, exponent = found.groups()
    value = Decimal(digits) * (_SCALE[suffix] if suffix else Decimal(10) ** int(exponent or 0))
    return -value if sign == "-" else value


def parse_mcpu(text: str) -> int:
    """CPU quantity in milli-CPU, rounded up as Kubernetes' MilliValue does."""
    return int((parse_quantity(text) * 1000).to_integral_value(ROUND_CEILING))


def parse_units(text: str) -> int:
    """Whole units (bytes, batch milli-cores), rounded up as Kubernetes' Value does."""
    return int(parse_quantity(text).to_integral_value(ROUND_CEILING))


def format_mcpu(mcpu: int) -> str:
    """Canonical CPU text: 1234 -> "1234m", 2000 -> "2", 1000000 -> "1k"."""
    return _decimal_si(mcpu, -1)


def format_bytes(value: int) -> str:
    """Canonical memory text: 1073741824 -> "1Gi", 1536 -> "1536", 1000 -> "1k"."""
    if abs(value) < 1024:
        return _decimal_si(value, 0)
    step = 0
    while step < 6 and value % 1024 == 0:
        value //= 1024
        step += 1
    return f"{value}{('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')[step]}" if step else _decimal_si(value, 0)


def _decimal_si(value: int, step: int) -> str:
    suffixes = ("m", "", "k", "M", "G", "T", "P", "E")
    if value == 0:
        return "0"
    while value % 1000 == 0 and step < 6:
        value //= 1000
        step += 1
    return f"{value}{suffixes[step + 1]}"
