"""Checking documents written by people: types, ranges, key names, with errors that name file, key and value.

Rules of spec/api 0.1: keys match without regard to case (an exact match is preferred), null is absent, integers
are integer literals only, a wrong type refuses the whole document. Unknown keys are collected as warnings, or
refused where strict.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from koordlet.config.errors import PolicyError
from koordlet.model.quantity import parse_quantity

INT64_MAX: Final = 2**63 - 1
MAX_ITEMS: Final = 4096
"""Longest list or map accepted."""


@dataclass(frozen=True, slots=True)
class At:
    """Where in which document we are. warnings is shared by the whole document."""

    file: str
    key: str = ""
    strict: bool = False
    warnings: list[str] = field(default_factory=list)

    def below(self, name: str | int) -> At:
        step = f"[{name}]" if isinstance(name, int) else f".{name[:80]}" if self.key else name[:80]
        return At(self.file, self.key + step, self.strict, self.warnings)

    def error(self, value: object, allowed: str) -> PolicyError:
        return PolicyError(self.file, self.key, value, allowed)

    def unknown(self, name: str, known: list[str]) -> None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        if self.strict:
            raise self.below(name).error(name, f"a known key{hint}")
        self.warnings.append(f"{self.file}: {self.below(name).key}: unknown key, ignored{hint}")


class Shape(Protocol):
    """Checks one value. Returns it cleaned; None means absent. Raises PolicyError."""

    def check(self, value: object, at: At) -> Any: ...


@dataclass(frozen=True, slots=True)
class Bool:
    def check(self, value: object, at: At) -> bool:
        if not isinstance(value, bool):
            raise at.error(value, "true or false")
        return value


@dataclass(frozen=True, slots=True)
class Int:
    low: int = -INT64_MAX - 1
    high: int = INT64_MAX

    def check(self, value: object, at: At) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise at.error(value, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        if self.high == INT64_MAX:
            return "an integer" if self.low < -(2**62) else f"an integer of at least {self.low}"
        return f"an integer {self.low}..{self.high}"


PERCENT: Final = Int(0, 100)
FLAG: Final = Int(0, 1)


@dataclass(frozen=True, slots=True)
class Text:
    """choices: the only texts allowed; "" then counts as absent. required: "" is refused."""

    choices: tuple[str, ...] = ()
    required: bool = False
    longest: int = 4096

    def check(self, value: object, at: At) -> str | None:
        if not isinstance(value, str) or len(value) > self.longest or "\0" in value:
            raise at.error(
                value, " or ".join(self.choices) or f"a text of at most {self.longest} characters, no zero byte"
            )
        if self.choices and value == "":
            return None
        if self.choices and value not in self.choices:
            raise at.error(value, " or ".join(self.choices))
        if self.required and value == "":
            raise at.error(value, "a text that is not empty")
        return value


@dataclass(frozen=True, slots=True)
class Quantity:
    """Resource quantity, not negative; `read` turns its text into an integer of base units."""

    read: Callable[[str], int]

    def check(self, value: object, at: At) -> int:
        allowed = "a quantity such as 500m, 2, 4Gi, not negative"
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise at.error(value, allowed)
        try:
            number = self.read(str(value))
        except (ValueError, ArithmeticError) as error:
            raise at.error(value, allowed) from error
        if not 0 <= number <= INT64_MAX:
            raise at.error(value, allowed)
        return number


@dataclass(frozen=True, slots=True)
class QuantityText:
    """Resource quantity kept as text."""

    def check(self, value: object, at: At) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise at.error(value, "a quantity such as 10G")
        try:
            parse_quantity(str(value))
        except (ValueError, ArithmeticError) as error:
            raise at.error(value, "a quantity such as 10G") from error
        return str(value)


@dataclass(frozen=True, slots=True)
class Anything:
    def check(self, value: object, at: At) -> object:
        return value


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Shape
    longest: int = MAX_ITEMS

    def check(self, value: object, at: At) -> list[Any]:
        if not isinstance(value, list) or len(value) > self.longest:
            raise at.error(value, f"a list of at most {self.longest} items")
        return [self.item.check(item, at.below(index)) for index, item in enumerate(value)]


@dataclass(frozen=True, slots=True)
class MapOf:
    item: Shape

    def check(self, value: object, at: At) -> dict[str, Any]:
        found = _mapping(value, at)
        return {name: self.item.check(item, at.below(name)) for name, item in found.items() if item is not None}


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known keys. required: keys that must be there. open: other keys are nothing to warn about."""

    fields: Mapping[str, Shape]
    required: tuple[str, ...] = ()
    open: bool = False

    def check(self, value: object, at: At) -> dict[str, Any]:
        found = _mapping(value, at)
        folded = {name.lower(): name for name in self.fields}
        given: dict[str, object] = {}
        for name, item in found.items():
            known = name if name in self.fields else folded.get(name.lower())
            if known is None:
                if not self.open:
                    at.unknown(name, list(self.fields))
            elif name == known or known not in found:
                given[known] = item
        clean: dict[str, Any] = {}
        for name, shape in self.fields.items():
            checked = None if given.get(name) is None else shape.check(given[name], at.below(name))
            if checked is not None:
                clean[name] = checked
            elif name in self.required:
                raise at.below(name).error(None, "a value; the key is required")
        return clean


def _mapping(value: object, at: At) -> dict[str, object]:
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise at.error(value, "an object (keys with values)")
    for name in value:
        if not isinstance(name, str):
            raise at.error(name, "keys that are texts (put it in quotes)")
    return value
