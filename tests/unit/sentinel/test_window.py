"""native/window.c: worked sequences, and equality with its slow twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet._native import ffi, lib
from tests.unit.sentinel.twin import Meter, Window, above, rate

CASES = Path(__file__).parents[2] / "cases"
MS = 1_000_000
MCPU = 1000
WIDTH_NS = 40 * MS


def native_window(width_ns: int = WIDTH_NS) -> Any:
    window = ffi.new("struct kl_window *")
    lib.kl_window_reset(window, width_ns)
    return window


def native_growth(window: Any) -> tuple[int, int, bool] | None:
    growth = ffi.new("struct kl_growth *")
    return (growth.delta, growth.span_ns, growth.full) if lib.kl_window_growth(window, growth) else None


def as_struct(growth: tuple[int, int, bool]) -> Any:
    delta, span_ns, full = growth
    return ffi.new("struct kl_growth *", {"delta": delta, "span_ns": span_ns, "full": full})


# Samples (ms, CPU ms used so far) -> (rate in milli-CPU, full), and whether it is above 1000 milli-CPU.
ROWS = {
    "one-sample-says-nothing": ([(0, 0)], None, False),
    "half-a-window": ([(0, 0), (20, 39)], (1950, False), False),
    "half-a-window-at-more-than-twice-the-limit": ([(0, 0), (20, 41)], (2050, False), True),
    "full-window": ([(0, 0), (20, 10), (40, 41)], (1025, True), True),
    "at-the-limit-is-not-above": ([(0, 0), (20, 20), (40, 40)], (1000, True), False),
    "one-period-of-surge-in-a-full-window": ([(0, 0), (20, 0), (40, 0), (60, 41)], (1025, True), True),
    "old-samples-do-not-count": ([(0, 0), (20, 100), (40, 110), (60, 120), (80, 130)], (500, True), False),
    "late-timer-still-sees-the-sample-before": ([(0, 0), (20, 0), (40, 0), (61, 30)], (731, True), False),
    "early-timer-counts-as-full": ([(0, 0), (20, 0), (40, 0), (56, 10), (75, 20)], (571, True), False),
    "starved-for-a-second": ([(0, 0), (20, 0), (1020, 1500)], (1500, True), True),
    "after-starving-a-new-window": ([(0, 0), (20, 0), (1020, 1500), (1040, 1510)], (500, False), False),
    "too-soon-is-ignored": ([(0, 0), (20, 10), (22, 99)], (500, False), False),
    "counter-jitter-is-not-negative": ([(0, 5), (20, 5), (40, 4)], (0, True), False),
    "time-back-starts-anew": ([(100, 0), (120, 0), (90, 9)], None, False),
}


@pytest.mark.parametrize(("samples", "reading", "fires"), ROWS.values(), ids=ROWS.keys())
def test_worked_windows(samples: list[tuple[int, int]], reading: tuple[int, bool] | None, fires: bool) -> None:
    window = native_window()
    for at_ms, used_ms in samples:
        lib.kl_window_push(window, at_ms * MS, used_ms * MS)
    growth = native_growth(window)
    if reading is None:
        assert growth is None
        return
    assert growth is not None
    assert (lib.kl_growth_rate(as_struct(growth), MCPU), growth[2]) == reading
    assert lib.kl_growth_above(as_struct(growth), WIDTH_NS, MCPU, 1000) == fires


STEPS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30 * MS), st.integers(0, 400 * MS), st.just(20 * MS), st.integers(-50 * MS, 0)),
        st.integers(-5 * MS, 400 * MS),
    ),
    max_size=80,
)


@given(steps=STEPS, width_ns=st.sampled_from([1, 1000, 20 * MS, WIDTH_NS, 100 * MS]), limit=st.integers(0, 100_000))
def test_window_equals_its_twin(steps: list[tuple[int, int]], width_ns: int, limit: int) -> None:
    window, oracle = native_window(width_ns), Window(width_ns)
    at_ns, value = 1000 * MS, 0
    for apart_ns, grown in steps:
        at_ns, value = max(at_ns + apart_ns, 0), value + grown
        assert lib.kl_window_push(window, at_ns, value) == oracle.push(at_ns, value)
        growth = native_growth(window)
        assert growth == oracle.growth()
        if growth is not None:
            struct = as_struct(growth)
            assert lib.kl_growth_rate(struct, MCPU) == rate(growth, MCPU)
            assert lib.kl_growth_above(struct, width_ns, MCPU, limit) == above(growth, width_ns, MCPU, limit)


READINGS = st.lists(
    st.tuples(st.integers(1, 60 * MS), st.lists(st.integers(0, 40 * MS), min_size=3, max_size=3), st.integers(0, 11)),
    max_size=40,
)


@given(readings=READINGS)
def test_meter_equals_its_twin(readings: list[tuple[int, list[int], int]]) -> None:
    """fault: 0-2 that counter is not there, 3-5 it was reset, else none."""
    meter, oracle = ffi.new("struct kl_meter *"), Meter(WIDTH_NS)
    lib.kl_meter_reset(meter, WIDTH_NS)
    at_ns, counters = 0, [0, 0, 0]
    for apart_ns, grown, fault in readings:
        at_ns += apart_ns
        counters = [old + new for old, new in zip(counters, grown, strict=True)]
        if 3 <= fault < 6:
            counters[fault - 3] = 0
        shown = [-1 if fault == i else value for i, value in enumerate(counters)]
        assert lib.kl_meter_push(meter, at_ns, ffi.new("int64_t[]", shown), 3) == oracle.push(at_ns, shown)
        assert native_growth(ffi.addressof(meter, "window")) == oracle.window.growth()


def test_counter_reset_gives_no_sample() -> None:
    case = CASES / "cpu-usage-counter-reset"
    samples = json.loads((case / "scenario.json").read_text())["samples"]
    meter = ffi.new("struct kl_meter *")
    lib.kl_meter_reset(meter, 30 * 10**9)
    cores: list[float | None] = []
    for sample in samples:
        lib.kl_meter_push(meter, sample["t"] * 10**9, ffi.new("int64_t[]", [sample["usage"]]), 1)
        growth = native_growth(ffi.addressof(meter, "window"))
        cores.append(None if growth is None else lib.kl_growth_rate(as_struct(growth), MCPU) / MCPU)
    assert cores[1:] == json.loads((case / "expected.json").read_text())["cores"]
