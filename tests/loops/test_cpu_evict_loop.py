"""CPU suppression and eviction by satisfaction together, in virtual time: throttled before anybody is evicted, nobody
on old or absent figures, no more than is needed, calm at constant load."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.decide.cpu_evict import SATISFACTION
from koordlet.decide.freshness import FRESH_INTERVALS
from koordlet.model.slo import SuppressPolicy
from koordlet.model.view import Policy
from tests.loops.evict_plant import EvictPlant, Job
from tests.loops.plant import Tick
from tests.loops.test_suppress_loop import turns
from tests.unit.decide.build import T16, policy

CORES = 16
CEILING = 0.65 * CORES
LOWER, UPPER = 40, 60
KINDS = [SuppressPolicy.CFS_QUOTA, SuppressPolicy.CPUSET]
SETTLED_S = 10.0
NOISE = 0.01 * CORES
SLACK = 5 * NOISE + 0.01 * CORES
"""What noise and the dead band of suppression cost best effort at most, once settled."""


def rule(kind: SuppressPolicy = SuppressPolicy.CFS_QUOTA, window_s: int = 10) -> Policy:
    base = policy(kind)
    assert base.slo is not None
    threshold = replace(
        base.slo.threshold,
        cpu_evict_be_satisfaction_lower_percent=LOWER,
        cpu_evict_be_satisfaction_upper_percent=UPPER,
        cpu_evict_time_window_s=window_s,
    )
    return replace(base, slo=replace(base.slo, threshold=threshold), gates=base.gates | {SATISFACTION})


def jobs(*requests: float) -> list[Job]:
    """Each would use far more than it requests."""
    return [Job(f"job-{number}", request, 2 * request) for number, request in enumerate(requests)]


def allowances(ticks: list[Tick]) -> list[float]:
    return [float(CORES) if tick.allowance is None else tick.allowance for tick in ticks]


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_evicted_where_the_throttled_rest_satisfies(kind: SuppressPolicy) -> None:
    """8.4 CPUs are left of a request of 16: more than 40 %."""
    plant = EvictPlant(CORES, lambda s: 2.0, rule(kind), T16, jobs=jobs(4, 4, 4, 4))
    ticks = list(plant.run(120))
    assert plant.evicted == []
    assert turns(allowances(ticks)) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_starved_best_effort_is_evicted_and_no_further_than_its_upper_line(kind: SuppressPolicy) -> None:
    """So that the test above can fail: 3.4 CPUs are left of a request of 16."""
    plant = EvictPlant(CORES, lambda s: 7.0, rule(kind), T16, jobs=jobs(*[1.0] * 16))
    ticks = list(plant.run(180))
    limit = ticks[-1].allowance
    assert limit is not None
    assert plant.requested * LOWER / 100 < limit <= (plant.requested + 1.0) * UPPER / 100
    assert plant.rounds[-1].now_s < 90
    assert len({tick.allowance for tick in ticks if tick.now_s > SETTLED_S}) == 1


def test_idle_best_effort_is_never_starved() -> None:
    """A request of 16 CPUs, hardly any left, but nobody wants them."""
    plant = EvictPlant(CORES, lambda s: 7.0, rule(), jobs=[Job("idle", 16.0, 1.0)])
    list(plant.run(120))
    assert plant.evicted == []


def test_a_burst_shorter_than_the_window_evicts_nobody() -> None:
    plant = EvictPlant(CORES, lambda s: 14.0 if 60 <= s < 65 else 2.0, rule(window_s=60), jobs=jobs(4, 4, 4, 4))
    ticks = list(plant.run(120))
    assert min(allowances(ticks)) < 0.1
    assert plant.evicted == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window_s", [1, 10])
def test_blindness_and_what_comes_after_it_evict_nobody(kind: SuppressPolicy, window_s: int) -> None:
    """Samples stay away for a minute; best effort goes to its safe floor, and climbs back when they come again."""
    plant = EvictPlant(
        CORES, lambda s: 2.0, rule(kind, window_s), T16, lost=lambda tick: 40 <= tick < 100, jobs=jobs(4, 4, 4, 4)
    )
    ticks = list(plant.run(160))
    assert min(allowances(ticks)) <= 2.0
    assert allowances(ticks)[-1] >= 8.0
    assert plant.evicted == []


def test_a_surge_that_nobody_saw_evicts_nobody() -> None:
    plant = EvictPlant(
        CORES,
        lambda s: 2.0 if s < 40 else 15.0,
        rule(window_s=1),
        lost=lambda tick: tick >= 40,
        sentinel=False,
        jobs=jobs(4, 4, 4, 4),
    )
    list(plant.run(120))
    assert plant.evicted == []


def test_best_effort_that_was_not_measured_is_not_evicted() -> None:
    plant = EvictPlant(CORES, lambda s: 7.0, rule(), absent=lambda tick: True, jobs=jobs(*[1.0] * 16))
    list(plant.run(120))
    assert plant.evicted == []


LOADS = {
    "online": st.floats(0.0, 0.6),
    "requests": st.lists(st.floats(0.25, 6.0), min_size=1, max_size=8),
    "kind": st.sampled_from(KINDS),
    "window_s": st.sampled_from([1, 10, 30]),
    "noise": st.floats(0.0, NOISE),
    "loss": st.floats(0.0, 0.4),
    "absence": st.floats(0.0, 0.4),
    "late": st.integers(0, 2),
    "seed": st.integers(0, 2**16),
}


@settings(max_examples=60, deadline=None)
@given(**LOADS)
def test_whoever_is_evicted_was_starved_on_fresh_figures(
    online: float,
    requests: list[float],
    kind: SuppressPolicy,
    window_s: int,
    noise: float,
    loss: float,
    absence: float,
    late: int,
    seed: int,
) -> None:
    """Constant online load, samples noisy, lost, late or incomplete: who is evicted had less than the lower line even
    if throttled no more than noise explains; what stays requests what the upper line wants, but for one pod."""
    dice = random.Random(seed)
    plant = EvictPlant(
        CORES,
        lambda s: online * CORES,
        rule(kind, window_s),
        T16,
        noise=lambda tick: dice.uniform(-noise, noise),
        lost=lambda tick: dice.random() < loss,
        late=lambda tick: dice.randint(0, late),
        absent=lambda tick: dice.random() < absence,
        jobs=jobs(*requests),
    )
    asked = plant.requested
    ticks = list(plant.run(120))
    slack = SLACK + (1.0 if kind is SuppressPolicy.CPUSET else 0.0)
    least = max(CEILING - online * CORES - slack, 2.0 if kind is SuppressPolicy.CPUSET else 0.02)
    for one in plant.rounds:
        assert one.age_s <= FRESH_INTERVALS
        assert one.known
    if plant.rounds:
        assert least * 100 <= asked * LOWER
        largest = max(requests)
        assert plant.requested + largest >= min(least * 100 / UPPER, asked) - 0.01
    calm = [tick for tick in ticks if tick.now_s > SETTLED_S]
    for start_s in range(10, 60, 5):
        minute = [tick for tick in calm if start_s < tick.now_s <= start_s + 60]
        assert turns(allowances(minute)) <= 1
