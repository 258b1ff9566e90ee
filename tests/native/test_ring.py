"""Rings and aggregates: worked examples of the specification, field case, and the Python twin on random samples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet._native import ffi, lib
from tests.native import twin

if TYPE_CHECKING:
    from koordlet._native import CData


CASES = Path(__file__).parents[1] / "cases"
EVER = 2**62


def new_rings() -> CData:
    return ffi.gc(lib.kl_rings_new(), lib.kl_rings_free)


def aggregate(rings: CData, series: int, from_ms: int = -EVER, to_ms: int = EVER) -> dict[str, float] | None:
    out = ffi.new("struct kl_aggregate *")
    if lib.kl_rings_aggregate(rings, series, from_ms, to_ms, out) <= 0:
        return None
    names = ("count", "avg", "min", "max", "latest", "first_ms", "latest_ms", "p50", "p90", "p95", "p99")
    return {name: getattr(out, name) for name in names}


def of_values(values: list[float]) -> dict[str, float]:
    rings = new_rings()
    series = lib.kl_rings_open(rings, max(len(values), 1))
    for i, value in enumerate(values):
        assert lib.kl_rings_push(rings, series, i, value) == 0
    found = aggregate(rings, series)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("values", "percentiles"),
    [
        (range(1, 11), (5, 9, 9, 9)),
        ([10, 20], (10, 10, 10, 10)),
        ([1, 2, 3], (1, 2, 2, 2)),
        ([42], (42, 42, 42, 42)),
        (range(1, 301), (150, 270, 285, 297)),
        (range(1, 1801), (900, 1620, 1710, 1782)),
    ],
    ids=["1..10", "two", "three", "one", "1..300", "1..1800"],
)
def test_percentiles(values: list[float], percentiles: tuple[float, ...]) -> None:
    found = of_values([float(value) for value in values])
    assert tuple(found[f"p{p}"] for p in (50, 90, 95, 99)) == percentiles
    assert found["avg"] == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize(
    ("count", "indexes"),
    [
        (4, (1, 2, 2, 2)),
        (5, (1, 3, 3, 3)),
        (20, (9, 17, 18, 18)),
        (60, (29, 53, 56, 58)),
        (99, (48, 88, 93, 97)),
        (100, (49, 89, 94, 98)),
        (3600, (1799, 3239, 3419, 3563)),
    ],
)
def test_percentile_indexes(count: int, indexes: tuple[int, ...]) -> None:
    found = of_values([float(value) for value in reversed(range(count))])
    assert tuple(found[f"p{p}"] for p in (50, 90, 95, 99)) == indexes


def test_percentiles_of_the_field_case() -> None:
    case = CASES / "aggregated-usage-avg-and-percentiles"
    values = json.loads((case / "samples.json").read_text())["values"]
    expected = json.loads((case / "expected.json").read_text())
    found = of_values([float(value) for value in values])
    assert {key: found[key] for key in expected} == expected


def test_window_ends_are_inside() -> None:
    rings = new_rings()
    series = lib.kl_rings_open(rings, 10)
    for at_ms in (1000, 2000, 3000):
        lib.kl_rings_push(rings, series, at_ms, at_ms)
    found = aggregate(rings, series, 1000, 2000)
    assert found is not None
    assert (found["count"], found["first_ms"], found["latest"]) == (2, 1000, 2000)
    assert aggregate(rings, series, 1001, 1999) is None


def test_what_is_not_a_sample_is_refused() -> None:
    rings = new_rings()
    series = lib.kl_rings_open(rings, 4)
    assert lib.kl_rings_push(rings, series, 5, 1.0) == 0
    for at_ms, value in ((5, 2.0), (4, 2.0), (6, math.nan), (6, math.inf)):
        assert lib.kl_rings_push(rings, series, at_ms, value) < 0
    for unknown in (-1, 99, series + 1):
        assert lib.kl_rings_push(rings, unknown, 7, 1.0) < 0
    assert lib.kl_rings_open(rings, 0) < 0


def test_numbers_of_closed_series_come_back_empty() -> None:
    rings = new_rings()
    first, second = (lib.kl_rings_open(rings, 4) for _ in range(2))
    lib.kl_rings_push(rings, first, 1, 1.0)
    assert lib.kl_rings_close(rings, first) == 0
    assert lib.kl_rings_close(rings, first) < 0
    again = lib.kl_rings_open(rings, 4)
    assert again == first != second
    assert aggregate(rings, again) is None


def test_a_year_of_milliseconds_does_not_wrap() -> None:
    rings = new_rings()
    series = lib.kl_rings_open(rings, 4)
    year_ms = 365 * 86_400_000
    for at_ms in (year_ms, year_ms + 1000, 2 * year_ms):
        lib.kl_rings_push(rings, series, at_ms, 1.0)
    found = aggregate(rings, series)
    assert found is not None
    assert (found["count"], found["first_ms"]) == (1, 2 * year_ms)


STEP = st.integers(-5, 3000) | st.sampled_from([2**31, 2**32, 2**33])
VALUE = st.floats(-1e12, 1e12, allow_nan=False) | st.sampled_from([0.0, 1.0, math.nan])


@given(st.integers(1, 12), st.lists(st.tuples(STEP, VALUE), max_size=40), STEP, STEP)
def test_rings_say_what_their_twin_says(
    capacity: int, steps: list[tuple[int, float]], before_ms: int, width_ms: int
) -> None:
    rings, ring = new_rings(), twin.Ring(capacity)
    series = lib.kl_rings_open(rings, capacity)
    at_ms = 10_000
    for step_ms, value in steps:
        at_ms += step_ms
        assert (lib.kl_rings_push(rings, series, at_ms, value) == 0) == ring.push(at_ms, value)
    for window in ((-EVER, EVER), (at_ms - before_ms, at_ms - before_ms + width_ms)):
        expected = ring.aggregate(*window)
        found = aggregate(rings, series, *window)
        assert found == (expected and pytest.approx(expected, rel=1e-9, abs=1e-6))


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "push"]), st.integers(0, 99)), min_size=60, max_size=200))
def test_many_series_side_by_side_keep_apart(actions: list[tuple[str, int]]) -> None:
    rings = new_rings()
    rows: dict[int, twin.Ring] = {}
    for at_ms, (action, which) in enumerate(actions):
        if action == "open" or not rows:
            capacity = 3 + which % 2
            rows[lib.kl_rings_open(rings, capacity)] = twin.Ring(capacity)
            continue
        series = sorted(rows)[which % len(rows)]
        if action == "close":
            assert lib.kl_rings_close(rings, series) == 0
            del rows[series]
        else:
            assert lib.kl_rings_push(rings, series, at_ms, which) == 0
            rows[series].push(at_ms, which)
    for series, row in rows.items():
        expected = row.aggregate(-EVER, EVER)
        assert aggregate(rings, series) == (expected and pytest.approx(expected))
