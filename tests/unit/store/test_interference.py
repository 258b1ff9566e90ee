"""The analysis of interference: baselines, and whom the correlation accuses."""

from __future__ import annotations

import random

import pytest

from koordlet.store.interference import MIN_SAMPLES, Activity, Interference, Sample


def feed(
    found: Interference, values: list[float], batch: list[dict[str, float]], signal: str = "cpi", start_s: float = 0.0
):  # type: ignore[no-untyped-def]
    last = None
    for index, (value, active) in enumerate(zip(values, batch, strict=True)):
        rows = {name: Activity(mcpu) for name, mcpu in active.items()}
        last = found.add(start_s + 10.0 * index, [Sample("ns/web", signal, value)], rows)
    return last


def test_no_baseline_before_there_are_samples() -> None:
    online, pairs = feed(Interference(), [1.0] * MIN_SAMPLES, [{}] * MIN_SAMPLES)
    assert online[0].baseline is None
    assert online[0].excess is None
    assert pairs == ()


def test_the_baseline_is_the_quiet_past_not_the_noisy_one() -> None:
    found = Interference()
    feed(found, [1.0] * 10, [{}] * 10)
    (row,), _ = feed(found, [2.0] * 50, [{"ns/job": 2000.0}] * 50, start_s=100)
    assert row.baseline == 1.0
    assert row.excess == pytest.approx(1.0)


def test_without_a_quiet_past_the_best_fifth_stands_in() -> None:
    values = [1.0, 2.0, 2.0, 2.0, 2.0] * 4
    (row,), _ = feed(Interference(), values, [{"ns/job": 2000.0}] * 20)
    assert row.baseline == 1.0


def test_the_culprit_comes_first() -> None:
    """Four suspects; the online side is slow exactly when one of them works."""
    noise = random.Random(5)
    found = Interference()
    feed(found, [1.0 + noise.uniform(-0.02, 0.02) for _ in range(10)], [{}] * 10)
    batch, values = [], []
    for step in range(60):
        works = step // 6 % 2
        batch.append(
            {
                "ns/culprit": 3000.0 if works else 60.0,
                "ns/steady": 2000.0,
                "ns/opposite": 60.0 if works else 3000.0,
                "ns/random": noise.choice([60.0, 3000.0]),
            }
        )
        values.append((1.6 if works else 1.0) + noise.uniform(-0.02, 0.02))
    (row,), pairs = feed(found, values, batch, start_s=100)
    assert next(s.name for s in row.suspects) == "ns/culprit"
    assert row.suspects[0].correlation >= 0.25
    assert row.suspects[-1].name == "ns/opposite"
    assert row.suspects[-1].correlation < 0
    assert {pair.batch for pair in pairs} == {"ns/culprit", "ns/steady", "ns/opposite", "ns/random"}


def test_correlation_by_hand() -> None:
    """Window of one loud and one calm sample: activity 3/4 and 1/4, threshold 1.1.

    0.75 x (1 - 1.1 / 2.2) + 0.25 x (1.0 / 1.1 - 1) = 0.375 - 0.0227
    """
    found = Interference()
    feed(found, [1.0] * 10, [{}] * 10)
    (row,), _ = feed(found, [2.2, 1.0], [{"ns/job": 3000.0}, {"ns/job": 1000.0}], start_s=100)
    assert row.suspects[0].correlation == pytest.approx(0.375 - 0.25 / 11, abs=1e-6)


def test_bandwidth_is_the_better_activity_where_all_have_it() -> None:
    found = Interference()
    feed(found, [1.0] * 10, [{}] * 10)
    for index in range(12):
        loud = index % 2 == 0
        rows = {
            "ns/stream": Activity(1000.0, 8e9 if loud else 1e6),
            "ns/compute": Activity(2000.0 if loud else 100.0, 1e6),
        }
        online, _ = found.add(200.0 + index, [Sample("ns/web", "cpi", 1.5 if loud else 1.0)], rows)
    assert online[0].suspects[0].name == "ns/stream"


def test_pressure_near_zero_is_no_alarm() -> None:
    found = Interference()
    feed(found, [0.001] * 10, [{}] * 10, "psi_cpu")
    (row,), _ = feed(found, [0.004], [{"ns/job": 2000.0}], "psi_cpu", 100)
    assert row.excess is not None
    assert row.excess < 0.05
    (row,), _ = feed(found, [0.2], [{"ns/job": 2000.0}], "psi_cpu", 200)
    assert row.excess is not None
    assert row.excess > 0.5


def test_a_pair_counts_time_together_and_time_without_best_effort() -> None:
    found = Interference()
    feed(found, [1.0] * 10, [{}] * 10)
    feed(found, [1.5] * 9, [{"ns/job": 2000.0}] * 9, start_s=100)
    _, (pair,) = feed(found, [1.0] * 3, [{"ns/job": 0.0}] * 3, start_s=200)
    assert (pair.together, pair.apart) == (9, 3)
    assert pair.change == pytest.approx(0.5)


def test_who_is_gone_is_forgotten() -> None:
    found = Interference(forget_s=60)
    feed(found, [1.0] * 10, [{}] * 10)
    found.add(1e4, [], {})
    (row,), _ = found.add(1e4 + 10, [Sample("ns/web", "cpi", 1.0)], {})
    assert row.samples == 1
