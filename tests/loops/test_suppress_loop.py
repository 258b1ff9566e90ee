"""The closed loop in virtual time: fast attack, slow decay, calm at constant load, never wider on old data."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.model.knob import Knob
from koordlet.model.slo import NodeSlo, SuppressPolicy
from koordlet.model.topology import Topology
from koordlet.model.view import Policy
from tests.loops.plant import ROOT, Plant, Tick
from tests.unit.decide.build import T16, flat, policy, topology

CPUSET, QUOTA = SuppressPolicy.CPUSET, SuppressPolicy.CFS_QUOTA
T64 = topology((cpu, cpu % 32, cpu % 32 // 16, cpu % 32 // 16) for cpu in range(64))
NODES = [(4, flat(4)), (16, T16), (64, T64)]
KINDS = [QUOTA, CPUSET]


def burst(cores: int, start_s: float = 10.0, end_s: float = 30.0) -> Callable[[float], float]:
    """Online load of 20 % of the node with a burst to 90 %."""
    return lambda now_s: cores * (0.9 if start_s <= now_s < end_s else 0.2)


def floor(kind: SuppressPolicy) -> float:
    return 2.0 if kind is CPUSET else 0.02


def most_growth(kind: SuppressPolicy, cores: int) -> float:
    return -(-cores // 10) if kind is CPUSET else cores / 10 + 1e-9


def allowed(ticks: list[Tick]) -> list[float]:
    assert all(tick.allowance is not None for tick in ticks)
    return [tick.allowance or 0.0 for tick in ticks]


def turns(values: list[float]) -> int:
    """How often the direction of change changed."""
    moves = [b > a for a, b in pairwise(values) if a != b]
    return sum(a != b for a, b in pairwise(moves))


def check_growth(ticks: list[Tick], kind: SuppressPolicy, cores: int) -> None:
    """No step larger than a tenth of the node, no two steps within a tick."""
    grown_at = None
    for before, after in pairwise(ticks):
        if before.allowance is None or after.allowance is None or after.allowance <= before.allowance:
            continue
        assert after.allowance - before.allowance <= most_growth(kind, cores)
        assert grown_at is None or after.now_s - grown_at > 0.85
        grown_at = after.now_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cores", "cpus"), NODES)
def test_an_online_burst_takes_the_node_back_within_two_ticks(kind: SuppressPolicy, cores: int, cpus: Topology) -> None:
    plant = Plant(cores, burst(cores), policy(kind), cpus, sentinel=False)
    ticks = list(plant.run(60))
    assert all(tick.allowance == floor(kind) for tick in ticks if 12.0 <= tick.now_s <= 30.0)
    assert min(allowed(ticks)) >= floor(kind)
    check_growth(ticks, kind, cores)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cores", "cpus"), NODES)
def test_with_the_sentinel_it_takes_a_quarter_of_a_second(kind: SuppressPolicy, cores: int, cpus: Topology) -> None:
    plant = Plant(cores, burst(cores, start_s=10.4), policy(kind), cpus)
    ticks = list(plant.run(60))
    assert all(tick.allowance == floor(kind) for tick in ticks if 10.65 <= tick.now_s <= 30.0)
    check_growth(ticks, kind, cores)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cores", "cpus"), NODES)
def test_it_grows_back_and_settles_within_ten_ticks(kind: SuppressPolicy, cores: int, cpus: Topology) -> None:
    plant = Plant(cores, burst(cores), policy(kind), cpus)
    ticks = list(plant.run(60))
    ideal = cores * 0.65 - cores * 0.2
    settled = [tick.allowance for tick in ticks if tick.now_s >= 40.0 and not tick.surge]
    for value in settled:
        assert value is not None
        assert abs(value - max(ideal, floor(kind))) <= max(cores * 0.01, 1.0 if kind is CPUSET else 0.0) + 1e-6
    assert turns([v or 0.0 for v in settled]) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cores", "cpus"), NODES)
@pytest.mark.parametrize("seed", range(4))
def test_noise_at_constant_load_turns_it_at_most_once_a_minute(
    kind: SuppressPolicy, cores: int, cpus: Topology, seed: int
) -> None:
    """Noise of up to 2 % of the node in every sample, ten minutes."""
    rng = random.Random(seed)
    noise = [rng.uniform(-0.02, 0.02) * cores for _ in range(600)]
    plant = Plant(cores, lambda now_s: cores * 0.3, policy(kind), cpus, noise=lambda tick: noise[tick])
    values = allowed(list(plant.run(600)))
    for start in range(540):
        assert turns(values[start : start + 61]) <= 1, f"{start}: {values[start : start + 61]}"


def test_noise_costs_best_effort_little() -> None:
    rng = random.Random(7)
    noise = [rng.uniform(-0.02, 0.02) * 16 for _ in range(600)]
    plant = Plant(16, lambda now_s: 4.8, policy(), noise=lambda tick: noise[tick])
    values = allowed(list(plant.run(600)))
    assert sum(values) / len(values) >= 16 * (0.65 - 0.3 - 0.05)


def test_a_slow_decline_is_given_to_best_effort() -> None:
    """1 % of the node each 20 s: less than the band at once, far more than it in total."""
    plant = Plant(16, lambda now_s: 16 * max(0.5 - 0.0005 * now_s, 0.1), policy())
    values = allowed(list(plant.run(900)))
    assert values[-1] >= 16 * (0.65 - 0.1 - 0.06)


@pytest.mark.parametrize("kind", KINDS)
def test_old_data_never_widens_and_ends_at_the_safe_floor(kind: SuppressPolicy) -> None:
    """The sampler stops while BE is at its floor and the online side leaves."""
    plant = Plant(16, burst(16), policy(kind), T16, lost=lambda tick: tick >= 25, sentinel=False)
    ticks = [tick for tick in plant.run(90) if tick.now_s >= 25]
    values = allowed(ticks)
    assert all(b <= a for a, b in pairwise(values))
    assert values[-1] == floor(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_old_data_moves_a_wide_allowance_to_the_safe_floor_and_back(kind: SuppressPolicy) -> None:
    plant = Plant(16, lambda now_s: 3.2, policy(kind), T16, lost=lambda tick: 20 <= tick < 60)
    ticks = list(plant.run(90))
    before, blind = ticks[19], [tick for tick in ticks if 20 < tick.now_s <= 60]
    assert {tick.allowance for tick in blind if tick.now_s <= 35} == {before.allowance}
    assert {tick.allowance for tick in blind if tick.now_s > 35.5} == {2.0 if kind is CPUSET else 1.6}
    assert ticks[-1].allowance == before.allowance
    check_growth(ticks[60:], kind, 16)


def test_late_samples_delay_but_do_not_disturb() -> None:
    """Each sample arrives two intervals late: later, but the same values and no oscillation."""
    plant = Plant(16, burst(16), policy(), late=lambda tick: 2, sentinel=False)
    ticks = [tick for tick in plant.run(60) if tick.allowance is not None]
    assert all(tick.allowance == 0.02 for tick in ticks if 14.0 <= tick.now_s <= 30.0)
    assert turns(allowed(ticks)) == 1
    assert ticks[-1].allowance == pytest.approx(7.2, abs=0.16)


def test_half_of_the_samples_lost_is_still_fresh_enough() -> None:
    plant = Plant(16, burst(16), policy(), lost=lambda tick: tick % 2 == 1, sentinel=False)
    ticks = list(plant.run(60))
    assert all(tick.allowance == 0.02 for tick in ticks if 13.0 <= tick.now_s <= 30.0)
    assert ticks[-1].allowance == pytest.approx(7.2, abs=0.16)


def test_what_best_effort_uses_does_not_move_its_own_allowance() -> None:
    """BE demand in steps: no feedback from BE's use to BE's allowance."""
    plant = Plant(16, lambda now_s: 4.8, policy(), be_demand=lambda now_s: 16.0 if int(now_s) % 20 < 10 else 0.0)
    assert len(set(allowed(list(plant.run(120))))) == 1


def test_a_reset_by_systemd_is_healed_on_the_next_tick_f06() -> None:
    plant = Plant(16, lambda now_s: 4.8, policy())
    for tick in plant.run(60):
        assert tick.allowance == pytest.approx(5.6)
        if round(tick.now_s) % 10 == 0:
            plant.kernel[ROOT, Knob.CPU_QUOTA] = -1


def test_switching_off_restores_and_on_starts_again() -> None:
    plant = Plant(16, lambda now_s: 4.8, policy())
    assert allowed(list(plant.run(5)))[-1] == pytest.approx(5.6)
    plant.policy = Policy(slo=NodeSlo(), gates=plant.policy.gates)
    assert next(iter(plant.run(1))).allowance is None
    plant.policy = policy()
    assert next(iter(plant.run(1))).allowance == pytest.approx(5.6)


def test_a_cpuset_migrates_as_little_as_it_can() -> None:
    """Over a day of changing load, no step both takes CPUs away and gives others."""
    rng = random.Random(3)
    steps = [rng.uniform(0.1, 0.9) for _ in range(100)]
    plant = Plant(64, lambda now_s: 64 * steps[min(int(now_s) // 10, 99)], policy(CPUSET), T64)
    ticks = list(plant.run(1000))
    for before, after in pairwise(ticks):
        assert before.cpus is not None
        assert after.cpus is not None
        assert before.cpus <= after.cpus or after.cpus <= before.cpus
        halves = [t for t in T64.siblings().values() if 0 < len(t & after.cpus) < len(t)]
        assert len(halves) <= 1


LOADS = st.lists(st.floats(0.0, 1.0), min_size=4, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    loads=LOADS,
    lost=st.sets(st.integers(0, 60), max_size=40),
    late=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    system=st.floats(0.0, 2.0),
    minimum=st.sampled_from([None, 0, 10, 30]),
    sentinel=st.booleans(),
)
def test_invariants_hold_for_any_load_and_any_sampler(
    kind: SuppressPolicy,
    loads: list[float],
    lost: set[int],
    late: list[int],
    system: float,
    minimum: int | None,
    sentinel: bool,
) -> None:
    """Never below the floor, never above the ceiling, growth by a tenth per tick, old data never widens."""
    plant = Plant(
        16,
        lambda now_s: 16 * loads[min(int(now_s) // 5, len(loads) - 1)],
        policy(kind, minimum=minimum),
        T16,
        system=system,
        lost=lambda tick: tick in lost,
        late=lambda tick: late[tick % len(late)],
        sentinel=sentinel,
    )
    ticks = [tick for tick in plant.run(60) if tick.allowance is not None]
    ceiling = max(16 * 0.65, 16 * (minimum or 0) / 100)
    for tick in ticks:
        assert floor(kind) <= (tick.allowance or 0.0) <= (-(-ceiling // 1) if kind is CPUSET else ceiling + 0.16)
    check_growth(ticks, kind, 16)
    good_at = ticks[0].now_s if ticks else 0.0  # what there was a first allowance from
    for before, after in pairwise(ticks):
        if round(after.now_s) - 1 not in lost and not after.surge:
            good_at = after.now_s
        if after.now_s - good_at > 3.0:
            assert (after.allowance or 0.0) <= (before.allowance or 0.0)
