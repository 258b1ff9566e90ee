"""A knob's value and the text of its file, both ways, by the knob's row in kernel/knobs.py."""

from __future__ import annotations

import re
from typing import Final

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobs import INT64_MAX, KNOBS, PAGE_BYTES, V1_UNLIMITED_BYTES, Unit
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob, KnobValue
from koordlet.model.units import UNLIMITED, shares_to_weight, weight_to_shares


class KnobValueError(ValueError):
    """A value that the knob cannot hold; nothing is written."""

    def __init__(self, knob: Knob, value: object, legal: str) -> None:
        self.knob = knob
        self.value = value
        super().__init__(f"{knob}: {value!r} is not {legal}")


def parse(version: CgroupVersion, knob: Knob, text: str) -> KnobValue:
    """Value of the file's text, in the model's unit. Raises KernelFileError naming the file."""
    row, text = KNOBS[knob], text.strip()
    name = row.v1_file if version is CgroupVersion.V1 else row.v2_file
    match row.unit:
        case Unit.CPUS:
            try:
                return CpuSet.parse(text)
            except ValueError as error:
                raise KernelFileError(name, str(error), text) from None
        case Unit.FREEZER if version is CgroupVersion.V1:
            if text not in _FREEZER:
                raise KernelFileError(name, f"expected one of {', '.join(_FREEZER)}", text)
            return _FREEZER[text]
        case Unit.PARTITION:
            word = text.partition(" ")[0]
            if word not in _PARTITIONS:
                raise KernelFileError(name, f"expected one of {', '.join(_PARTITIONS)}", text)
            return _PARTITIONS.index(word)
        case Unit.SHARES if version is CgroupVersion.V2:
            return weight_to_shares(_integer(name, text))
        case Unit.QUOTA if version is CgroupVersion.V2:
            quota = _cpu_max(name, text)[0]
            return UNLIMITED if quota == "max" else _integer(name, quota)
        case Unit.BYTES_LIMIT:
            value = _bytes(name, text)
            return UNLIMITED if value >= V1_UNLIMITED_BYTES else value
        case Unit.BYTES:
            return min(_bytes(name, text), INT64_MAX)
        case Unit.RATE:
            return UNLIMITED if text in ("max", "0") else _integer(name, text)
        case Unit.IO_WEIGHT if version is CgroupVersion.V2:
            return _integer(name, text) // 100
        case Unit.BFQ_WEIGHT:
            return _integer(name, text) // 10
        case Unit.FIELDS:
            return " ".join(text.split())
        case _:
            return _integer(name, text)


def encode(version: CgroupVersion, knob: Knob, value: KnobValue) -> bytes:
    """Bytes for one write. Raises KnobValueError for a value of the wrong kind or outside the knob's range.

    cpu.max gets its first field only, so the period stays as it is. An empty CPU set is refused: v1 answers
    with an error, v2 silently lets go of the pinning.
    """
    row = KNOBS[knob]
    if row.unit is Unit.CPUS:
        if not isinstance(value, CpuSet) or not value:
            raise KnobValueError(knob, value, "a CPU set with at least one member")
        return str(value).encode()
    if row.unit is Unit.FIELDS:
        if not isinstance(value, str) or not _FIELDS.fullmatch(value):
            raise KnobValueError(knob, value, "a text of key=value fields")
        return value.encode()
    unlimited = row.unit in (Unit.QUOTA, Unit.BYTES_LIMIT, Unit.RATE)
    legal = f"{'-1 or ' if unlimited else ''}an integer in {row.low}..{row.high}"
    if not isinstance(value, int) or not (row.low <= value <= row.high or (unlimited and value == UNLIMITED)):
        raise KnobValueError(knob, value, legal)
    if row.unit is Unit.FREEZER and version is CgroupVersion.V1:
        return b"FROZEN" if value else b"THAWED"
    if row.unit is Unit.PARTITION:
        return _PARTITIONS[value].encode()
    if row.unit is Unit.RATE and value == UNLIMITED:
        return row.unset[version is CgroupVersion.V2].encode()
    if row.unit is Unit.BFQ_WEIGHT or (row.unit is Unit.IO_WEIGHT and version is CgroupVersion.V2):
        return b"%d" % (value * (10 if row.unit is Unit.BFQ_WEIGHT else 100))
    if version is CgroupVersion.V2:
        if row.unit is Unit.SHARES:
            return b"%d" % shares_to_weight(value)
        if (unlimited and value == UNLIMITED) or (row.unit is Unit.BYTES and value == INT64_MAX):
            return b"max"
    return b"%d" % value


def same(version: CgroupVersion, knob: Knob, value: KnobValue, text: str) -> bool:
    """True if the file's text already says `value`, so nothing need be written.

    Compared in the file's unit: the weight (shares -> weight loses digits), the quota without the period, sets
    as sets, memory in the whole pages that the kernel keeps. Garbage is not the same as anything, nor is a partition
    that is not in force.
    """
    row, text = KNOBS[knob], text.strip()
    if row.unit is Unit.PARTITION and not in_force(knob, text):
        return False
    if row.unit is Unit.SHARES and version is CgroupVersion.V2 and isinstance(value, int):
        return text == str(shares_to_weight(value))
    if row.unit in (Unit.IO_WEIGHT, Unit.BFQ_WEIGHT):
        return text.encode() == encode(version, knob, value)
    if row.unit is Unit.FIELDS and isinstance(value, str):
        return _numbered(value).items() <= _numbered(text).items()  # the kernel adds what was not said
    try:
        found = parse(version, knob, text)
    except KernelFileError:
        return False
    if row.unit in (Unit.BYTES, Unit.BYTES_LIMIT) and isinstance(value, int) and isinstance(found, int):
        return found // PAGE_BYTES == value // PAGE_BYTES
    return found == value


def in_force(knob: Knob, text: str) -> bool:
    """False for a cpuset partition that the kernel took note of but cannot make: "isolated invalid (why)"."""
    return KNOBS[knob].unit is not Unit.PARTITION or "invalid" not in text


def _integer(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise KernelFileError(name, "expected an integer", text)
    return int(text)


def _bytes(name: str, text: str) -> int:
    return INT64_MAX if text == "max" else _integer(name, text)


def _cpu_max(name: str, text: str) -> tuple[str, str]:
    fields = text.split()
    if len(fields) != 2:
        raise KernelFileError(name, "expected quota and period", text)
    return fields[0], fields[1]


def _numbered(text: str) -> dict[str, str | float]:
    """Fields by key; numbers as such, since the kernel prints 95 as 95.00."""
    fields = (field.partition("=") for field in text.split())
    return {key: float(value) if _DECIMAL.fullmatch(value) else value for key, _, value in fields}


_DECIMAL: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,6})?")
_FIELDS: Final = re.compile(r"[a-z]+=[a-z0-9.]+( [a-z]+=[a-z0-9.]+)*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")
_PARTITIONS: Final = ("member", "root", "isolated")
_FREEZER: Final = {"THAWED": 0, "FREEZING": 1, "FROZEN": 1}
