"""Annotation node.koordinator.sh/resctrl -> `PodResctrl` (spec/api 2.2.3). Raises PolicyError: a bad part voids it."""

from __future__ import annotations

from typing import Any, Final

from koordlet.config.schema import PERCENT, At, Int, ListOf, Record
from koordlet.model.resctrl import PodResctrl, Range

RESCTRL: Final = "node.koordinator.sh/resctrl"


def pod_resctrl(document: Any) -> PodResctrl:
    at = At(RESCTRL)
    found = _DOCUMENT.check(document, at)
    llc, mb = found.get("llc", {}), found.get("mb", {})
    ranges: dict[int, Range] = {}
    for index, row in enumerate(llc.get("schemataPerCache", ())):
        where = at.below("llc").below("schemataPerCache").below(index)
        ranges[_cache_id(row, where, ranges)] = _range(row.get("range"), where.below("range"))
    percents: dict[int, int] = {}
    for index, row in enumerate(mb.get("schemataPerCache", ())):
        where = at.below("mb").below("schemataPerCache").below(index)
        number = _cache_id(row, where, percents)
        if row.get("percent"):  # 0 is "not said"
            percents[number] = row["percent"]
    whole = llc.get("schemata", {}).get("range")
    return PodResctrl(
        llc=None if whole is None else _range(whole, at.below("llc").below("schemata").below("range")),
        llc_per_cache=tuple(sorted(ranges.items())),
        mb_percent=mb.get("schemata", {}).get("percent") or None,
        mb_per_cache=tuple(sorted(percents.items())),
    )


def _range(value: list[int] | None, at: At) -> Range:
    if value is None or len(value) != 2 or value[0] >= value[1]:
        raise at.error(value, "two percents, the first less than the second")
    return Range(value[0], value[1])


def _cache_id(row: dict[str, Any], at: At, known: dict[int, Any]) -> int:
    number: int = row["cacheID"]
    if number in known:
        raise at.below("cacheID").error(number, "a cache named once")
    return number


_CACHE_ID: Final = Int(0, 65535)
_RANGE: Final = ListOf(PERCENT, 2)
_DOCUMENT: Final = Record(
    {
        "llc": Record(
            {
                "schemata": Record({"range": _RANGE}, open=True),
                "schemataPerCache": ListOf(
                    Record({"cacheID": _CACHE_ID, "range": _RANGE}, required=("cacheID", "range"), open=True), 1024
                ),
            },
            open=True,
        ),
        "mb": Record(
            {
                "schemata": Record({"percent": PERCENT}, open=True),
                "schemataPerCache": ListOf(
                    Record({"cacheID": _CACHE_ID, "percent": PERCENT}, required=("cacheID",), open=True), 1024
                ),
            },
            open=True,
        ),
    },
    open=True,
)
