"""The online load: a schedule that depends on its seed alone, and latency from the intended moment."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from koordlet._native import ffi, lib
from koordlet.load.errors import LoadError
from koordlet.load.online import OnlineLoad, quantile, run_online, schedule, summarize

MS = 1_000_000


def test_equal_seeds_give_equal_schedules() -> None:
    load = OnlineLoad(rate_per_s=500, duration_s=4, seed=9)
    assert schedule(load) == schedule(load)
    assert schedule(load) != schedule(OnlineLoad(rate_per_s=500, duration_s=4, seed=10))


def test_schedule_is_poisson() -> None:
    """Count, ascending order, and the exponential gaps' mean and variance (equal to the mean squared)."""
    offsets = schedule(OnlineLoad(rate_per_s=2000, duration_s=20, warmup_s=0, seed=3))
    assert len(offsets) == pytest.approx(40_000, rel=0.02)
    assert offsets == sorted(offsets)
    assert offsets[0] >= 0
    assert offsets[-1] < 20 * 1000 * MS
    gaps = [after - before for before, after in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.5 * MS, rel=0.02)
    assert variance == pytest.approx(mean**2, rel=0.05)


def test_schedule_that_does_not_fit_is_an_error() -> None:
    out = ffi.new("int64_t[]", 10)
    assert lib.kl_load_schedule(1, 1000.0, 1000 * MS, out, 10) == -28  # ENOSPC
    assert lib.kl_load_schedule(1, 0.0, 1000 * MS, out, 10) == -22  # EINVAL


def test_a_stalled_server_is_charged_for_everybody_who_waited() -> None:
    """One worker; the first request takes about 20 ms, nine more are due meanwhile, 1 ms apart.

    Measured from the moment of sending they would all look fast. Here the one due at i ms waits for all before it.
    """
    count, rounds = 10, lib.kl_load_calibrate(20 * MS)
    offsets = ffi.new("int64_t[]", [at * MS for at in range(count)])
    latency = ffi.new("int64_t[]", count)
    start_ns = time.monotonic_ns()
    config = ffi.new("struct kl_load_online *", (start_ns, start_ns + 60_000 * MS, rounds, 1))
    assert lib.kl_load_online_run(config, offsets, latency, count) == count
    ends = [at * MS + latency[at] for at in range(count)]
    assert ends == sorted(ends)  # one server, first come first served
    for at in range(1, count):
        # Its own service and the rest of everybody's before it; a slow machine only makes it longer.
        assert latency[at] > latency[at - 1] + 5 * MS


def test_requests_given_up_count_with_the_time_they_waited() -> None:
    offsets = ffi.new("int64_t[]", [0, 10 * MS])
    latency = ffi.new("int64_t[]", 2)
    start_ns = time.monotonic_ns() - 500 * MS  # both were due half a second ago, and so is the deadline
    config = ffi.new("struct kl_load_online *", (start_ns, start_ns + 100 * MS, 1, 1))
    assert lib.kl_load_online_run(config, offsets, latency, 2) == 0
    assert latency[0] >= 500 * MS
    assert latency[1] >= 490 * MS


def test_a_short_run_serves_what_was_due() -> None:
    load = OnlineLoad(rate_per_s=200, duration_s=0.3, warmup_s=0.1, work_us=50, workers=2, drain_s=30)
    result = run_online(load, time.monotonic_ns())
    assert result.given_up == 0
    assert result.count == sum(1 for offset in schedule(load) if offset >= 100 * MS)
    assert sum(slot.count for slot in result.slots) == len(schedule(load))
    assert 0 < result.p50_us <= result.p99_us <= result.p999_us <= result.max_us


def test_summary_leaves_out_the_warm_up() -> None:
    load = OnlineLoad(rate_per_s=10, duration_s=0.3, warmup_s=0.1)
    offsets = [50 * MS, 150 * MS, 160 * MS, 250 * MS]
    result = summarize(load, offsets, [900 * MS, 1 * MS, 2 * MS, 3 * MS])
    assert (result.count, result.p50_us, result.max_us) == (3, 2000, 3000)
    assert [(slot.at_s, slot.count, slot.max_us) for slot in result.slots] == [
        (0.0, 1, 900_000),
        (0.1, 2, 2000),
        (0.2, 1, 3000),
    ]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100), (0.0, 1), (0.01, 1), (0.011, 2)],
)
def test_quantile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert quantile(range(1, 101), share) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_per_s": 0.0},
        {"duration_s": 0.0},
        {"workers": 0},
        {"workers": 5000},
        {"work_us": 0},
        {"rate_per_s": 1e6, "duration_s": 60.0},
    ],
    ids=lambda wrong: ",".join(wrong),
)
def test_unreasonable_loads_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LoadError):
        OnlineLoad(**{"rate_per_s": 100.0, "duration_s": 1.0, **wrong})
