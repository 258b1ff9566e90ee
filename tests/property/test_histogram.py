"""What holds for every histogram: order of percentiles, decay, checkpoints, clocks that jump."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.store.checkpoint import parse, save
from koordlet.store.histogram import CPU, MEMORY, RATIO, Histogram

HALF_LIFE_S = 12 * 3600.0
START_S = 1_767_225_600.0
VALUES = st.floats(0, 2000)
SAMPLES = st.lists(st.tuples(VALUES, st.floats(0, 3 * 86_400)), min_size=1, max_size=60)
SHARES = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


def filled(samples: list[tuple[float, float]], half_life_s: float = HALF_LIFE_S) -> Histogram:
    histogram = Histogram(CPU, half_life_s)
    for value, at_s in samples:
        histogram.add(value, START_S + at_s)
    return histogram


@given(SAMPLES, SHARES)
def test_a_higher_share_never_gives_less(samples: list[tuple[float, float]], shares: list[float]) -> None:
    found = [filled(samples).percentile(share) for share in sorted(shares)]
    assert found == sorted(found)


@given(SAMPLES)
def test_the_maximum_is_the_upper_bound_of_the_highest_sample(samples: list[tuple[float, float]]) -> None:
    highest = max(value for value, _ in samples)
    found = filled(samples).percentile(1.0)
    assert found >= min(highest, CPU.start(CPU.count - 1)) * (1 - 1e-12)
    assert found <= max(highest * RATIO + CPU.first, CPU.first) * (1 + 1e-12)


@given(SAMPLES, st.integers(1, 20))
def test_only_differences_of_time_count(samples: list[tuple[float, float]], half_lives: int) -> None:
    """All samples later by whole half-lives: the same histogram."""
    shift_s = half_lives * HALF_LIFE_S
    later = filled([(value, at_s + shift_s) for value, at_s in samples])
    here = filled(samples)
    assert later.percentile(0.95) == here.percentile(0.95)
    assert later.total == pytest.approx(here.total, rel=1e-6)


@given(VALUES, VALUES, st.floats(2, 30))
def test_what_is_new_outweighs_what_is_old(old: float, new: float, half_lives: float) -> None:
    histogram = filled([(old, 0.0), (new, half_lives * HALF_LIFE_S)])  # a fifth of the weight at most is old
    assert histogram.percentile(0.79) == filled([(new, 0.0)]).percentile(1.0)


@given(SAMPLES, st.sampled_from([0.6, 0.9, 0.95, 0.98]))
def test_a_checkpoint_changes_no_percentile_by_more_than_its_rounding(
    samples: list[tuple[float, float]], share: float
) -> None:
    histogram = filled(samples)
    with tempfile.TemporaryDirectory() as name:
        save(Path(name), "u", histogram, Histogram(MEMORY, HALF_LIFE_S), START_S)
        found = parse((Path(name) / "u").read_text()).cpu
    again = Histogram(CPU, HALF_LIFE_S)
    again.restore(found.weights, found.total_weight, found.reference_s)
    # Each bucket is rounded by half a ten-thousandth of the heaviest one.
    slack = 0.5e-4 * (len(histogram.weights) + 1)
    low, high = histogram.percentile(max(share - slack, 0.0)), histogram.percentile(min(share + slack, 1.0))
    assert low <= again.percentile(share) <= high
    assert again.total == pytest.approx(histogram.total)


@given(st.lists(st.tuples(VALUES, st.floats(-(2**35), 2**35)), min_size=1, max_size=30))
def test_a_clock_that_jumps_by_centuries_breaks_nothing(samples: list[tuple[float, float]]) -> None:
    histogram = filled(samples)
    assert 0 <= histogram.percentile(0.95) < float("inf")
    assert all(0 <= weight < float("inf") for weight in histogram.weights.values())
    # After the clock is right again the present counts at once.
    for _ in range(50):
        histogram.add(1.0, START_S + samples[-1][1] + 1)
    assert histogram.percentile(0.98) > 0
