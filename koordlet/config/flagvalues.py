"""A flag's text as a typed value, within the range of its row in the table of flags."""

from __future__ import annotations

import math
from pathlib import Path

from koordlet.config.errors import UsageError
from koordlet.config.flagtable import Flag, Kind
from koordlet.config.gosyntax import parse_bool, parse_duration_ns, parse_int

Value = bool | int | float | str


def parsed(flag: Flag, text: str) -> Value:
    """The typed value; durations in seconds, maps as text. Raises UsageError."""
    try:
        value: Value = text
        if flag.kind is Kind.BOOL:
            value = parse_bool(text)
        elif flag.kind is Kind.INT:
            value = parse_int(text)
        elif flag.kind is Kind.DURATION:
            value = parse_duration_ns(text) / 1e9
        elif flag.kind is Kind.FLOAT:
            value = _float(text)
        elif flag.kind is Kind.MAP:
            _check_map(text)
        elif "\0" in text:
            raise ValueError("a text without zero bytes")
        if flag.choices and value not in flag.choices:
            raise ValueError(" or ".join(flag.choices))
        if flag.low is not None and isinstance(value, (int, float)) and value < flag.low:
            unit = " s" if flag.kind is Kind.DURATION else ""
            raise ValueError(f"at least {flag.low:g}{unit}")
        if flag.low is not None and flag.kind is Kind.DURATION and isinstance(value, float) and value > flag.high:
            raise ValueError(f"at most {flag.high:g} s")
    except ValueError as error:
        raise UsageError(f"flag -{flag.name}: {text[:80]!r} is not allowed, expected {error}") from error
    return value


def _float(text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text and text == text.strip() else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a finite number")
    return value


def _check_map(text: str) -> None:
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if item.strip() and (not equals or not name.strip()):
            raise ValueError("name=true,name=false,...")
        if equals:
            parse_bool(value.strip())


class Values:
    """Typed access to the values of the table."""

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        return str(self._values[name])

    def switch(self, name: str) -> bool:
        return self._values[name] is True

    def number(self, name: str, high: int = 2**31 - 1) -> int:
        value = int(self._values[name])
        if value > high:
            raise UsageError(f"flag -{name}: {value} is not allowed, expected at most {high}")
        return value

    def seconds(self, name: str) -> float:
        return float(self._values[name])

    def decimal(self, name: str) -> float:
        return float(self._values[name])

    def path(self, name: str) -> Path:
        found = self.path_or_none(name)
        if found is None:
            raise UsageError(f"flag -{name}: empty, expected a path")
        return found

    def path_or_none(self, name: str) -> Path | None:
        text = self.text(name)
        return Path(text) if text else None

    def addr(self, name: str) -> str:
        text = self.text(name)
        host, colon, port = text.rpartition(":")
        bare = ":" in host and not host.startswith("[")
        if not colon or bare or not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise UsageError(f"flag -{name}: {text[:80]!r} is not allowed, expected host:port, [address]:port or :port")
        return text
