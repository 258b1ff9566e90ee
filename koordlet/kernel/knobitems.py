"""Files that hold one line per block device, or one word per scheduler feature: the part that one knob means.

A device without a line counts as `unset`, so that taking a limit away again reads as the original. Pure.
"""

from __future__ import annotations

from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobs import KNOBS, Item
from koordlet.model.knob import Knob


def select(version: CgroupVersion, knob: Knob, target: str, raw: bytes) -> bytes | None:
    """This knob's part of a file's content; None where the file knows no such item (a scheduler feature)."""
    row, item = KNOBS[knob], target.rpartition("/")[2]
    if row.item is Item.NONE:
        return raw
    text = raw.decode("ascii", "replace")
    if row.item is Item.FEATURE:
        words = text.split()
        return b"1" if item in words else b"0" if f"NO_{item}" in words else None
    rest = next((found for found in map(_line, text.splitlines()) if found[0] == item), (item, ""))[1]
    if row.v2_field and version is CgroupVersion.V2:
        fields = dict(field.partition("=")[::2] for field in rest.split())
        rest = fields.get(row.v2_field, "")
    return (rest or row.unset[version is CgroupVersion.V2]).encode()


def address(version: CgroupVersion, knob: Knob, target: str, data: bytes) -> bytes:
    """What to write so that this item, and no other, gets `data`."""
    row, item = KNOBS[knob], target.rpartition("/")[2]
    if row.item is Item.NONE:
        return data
    if row.item is Item.FEATURE:
        return (item if data.strip() == b"1" else f"NO_{item}").encode()
    field = f"{row.v2_field}=" if row.v2_field and version is CgroupVersion.V2 else ""
    return f"{item} {field}".encode() + data


def _line(line: str) -> tuple[str, str]:
    device, _, rest = line.strip().partition(" ")
    return device, rest.strip()
