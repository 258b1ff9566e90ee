"""How numbers are said to people: cores, sizes, ages, and the stages of a decision. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

NONE: Final = "-"
"""Shown where there is no reading; never 0."""


def cores(mcpu: float | None) -> str:
    return NONE if mcpu is None else f"{mcpu / 1000:.2f}"


def size(count: float | None) -> str:
    """Bytes in the binary unit that leaves one to four digits: 1.5 GiB."""
    if count is None:
        return NONE
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def percent(part: float | None, whole: float | None) -> str:
    return NONE if part is None or not whole else f"{100 * part / whole:.0f} %"


def age(age_s: float | None) -> str:
    if age_s is None:
        return "never"
    if age_s < 60:
        return f"{age_s:.1f} s"
    if age_s < 3600:
        return f"{age_s / 60:.0f} min"
    return f"{age_s / 3600:.0f} h" if age_s < 172_800 else f"{age_s / 86400:.0f} d"


def count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def value_of(reading: Mapping[str, Any] | None) -> float | None:
    return None if reading is None else reading["value"]


def why(stages: Mapping[str, Any]) -> str:
    """`capacity 8.00 cores, threshold 65 %, ...`: the unit at the end of a stage's name becomes words."""
    return ", ".join(_stage(name, value) for name, value in stages.items())


def _stage(name: str, value: Any) -> str:
    if isinstance(value, (int, float)):
        for suffix, say in _UNITS.items():
            if name.endswith(suffix):
                return f"{name.removesuffix(suffix).replace('_', ' ')} {say(value)}"
    return f"{name.replace('_', ' ')} {value}"


_UNITS: Final[dict[str, Callable[[float], str]]] = {
    "_mcpu": lambda v: f"{cores(v)} cores",
    "_bytes": size,
    "_percent": lambda v: f"{v:g} %",
    "_permyriad": lambda v: f"{v / 100:g} %",
    "_us": lambda v: f"{v:g} us",
    "_ms": lambda v: f"{v:g} ms",
    "_s": lambda v: f"{v:g} s",
}
