"""Quota burst against a plant in virtual time: it settles, does not herd, does not oscillate, obeys old data."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.decide.burst import State
from koordlet.model.burst import BurstPolicy
from koordlet.model.knob import Knob
from koordlet.model.view import Outcome, Policy
from tests.unit.decide.burst_build import burst, container, decide, pod, view, wanted


@dataclass
class Plant:
    """Online containers with a limit and a demand in cores, one per pod, on a node without other load.

    A container uses its demand, at most its quota; it is throttled while it wants more. noise: of the node's reading.
    lost: ticks whose readings are 30 s old; late: seconds by which the node's reading is older than the tick.
    """

    cores: float
    limits: list[float]
    demands: list[float]
    rule: Policy
    background: float = 0.0
    noise: float = 0.0
    lost: frozenset[int] = frozenset()
    late: int = 0
    seed: int = 0
    state: State | None = None
    tick: int = 0
    quotas: list[float] = field(default_factory=list)
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.quotas = list(self.limits)
        self.last: Outcome[State] | None = None

    @property
    def used(self) -> list[float]:
        return [min(quota, demand) for quota, demand in zip(self.quotas, self.demands, strict=True)]

    def step(self) -> list[float]:
        """One second; the quotas after it, in cores."""
        self.tick += 1
        used = self.used
        made = tuple(
            pod(f"p{i}", container("c", round(limit * 1000), throttled=_throttled(demand, quota), used=now))
            for i, (limit, demand, quota, now) in enumerate(
                zip(self.limits, self.demands, self.quotas, used, strict=True)
            )
        )
        self.history.append(min(sum(used) + self.background, self.cores))
        node = self.history[max(len(self.history) - 1 - self.late, 0)] + self.random.uniform(-self.noise, self.noise)
        at_s = self.tick - 30.0 if self.tick in self.lost else None
        seen = view(float(self.tick), self.cores, node=max(node, 0.0), pods=made, at_s=at_s)
        outcome = decide(seen, self.rule, self.state)
        self.state, self.last = outcome.state, outcome
        self.quotas = [
            (wanted(outcome, Knob.CPU_QUOTA, f"p{i}/c") or limit * 100_000) / 100_000
            for i, limit in enumerate(self.limits)
        ]
        for i in range(len(self.limits)):
            whole, inner = (wanted(outcome, Knob.CPU_QUOTA, target) for target in (f"p{i}", f"p{i}/c"))
            assert whole == inner  # one container per pod
        return list(self.quotas)


def _throttled(demand: float, quota: float) -> float:
    return max(0.0, 1 - quota / demand) if demand > quota else 0.0


def turns(values: list[float]) -> int:
    moves = [b > a for a, b in pairwise(values) if a != b]
    return sum(a != b for a, b in pairwise(moves))


RULE = burst(BurstPolicy.QUOTA_ONLY)
WIDE = burst(BurstPolicy.QUOTA_ONLY, share_pool_threshold_percent=100)


def test_one_throttled_container_reaches_its_ceiling_in_ten_ticks_and_stays() -> None:
    """The recording burst-quota-load: 20000, 24000, ... 59719, 60000."""
    plant = Plant(2, [0.2], [0.6], WIDE)
    seen = [plant.step()[0] for _ in range(40)]
    assert [round(quota * 100_000) for quota in seen[:7]] == [24_000, 28_800, 34_560, 41_472, 49_766, 59_719, 60_000]
    assert set(seen[7:]) == {0.6}


def test_many_throttled_containers_share_the_room_instead_of_overshooting_it() -> None:
    """F-25: the reference raises all of them until the node is overloaded and then lowers all of them, for ever."""
    plant = Plant(64, [2.0] * 20, [6.0] * 20, burst(BurstPolicy.QUOTA_ONLY, share_pool_threshold_percent=80))
    totals = []
    for _ in range(120):
        plant.step()
        totals.append(sum(plant.used))
    assert max(totals) <= 0.8 * 64
    assert totals[-1] >= 0.85 * 0.8 * 64, "the room is used"
    assert turns(totals) == 0
    assert len(set(totals[15:])) == 1, "settled"


def test_most_throttled_first() -> None:
    plant = Plant(10, [2.0, 2.0], [2.1, 6.0], RULE, background=0.3)
    plant.step()
    assert plant.quotas[1] > 2.0
    assert plant.quotas[0] == 2.0


def test_an_overload_is_met_within_ten_ticks_by_the_largest_excess_and_not_by_all() -> None:
    plant = Plant(32, [1.0] * 8, [3.0] * 7 + [1.3], burst(BurstPolicy.QUOTA_ONLY, share_pool_threshold_percent=80))
    for _ in range(30):
        plant.step()
    before = list(plant.quotas)
    assert sum(plant.used) > 20
    plant.background = 6.0
    seen = [plant.step() for _ in range(40)]
    assert sum(plant.used) + plant.background < 0.8 * 32
    assert seen[12:] == [seen[12]] * len(seen[12:]), "settled"
    assert seen[-1][7] == before[7], "the small one was left alone"
    assert sum(plant.used) + plant.background > 0.7 * 32, "no more than needed"


def test_back_at_the_base_nothing_is_named() -> None:
    plant = Plant(4, [1.0], [3.0], RULE)
    for _ in range(20):
        plant.step()
    plant.background = 4.0
    for _ in range(30):
        plant.step()
    assert plant.quotas == [1.0]
    assert plant.last is not None
    assert plant.last.decisions == ()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 4.0), st.floats(0.0, 16.0)), min_size=1, max_size=12),
    st.integers(4, 96),
    st.integers(20, 100),
    st.floats(0, 0.5),
    st.integers(0, 2),
    st.integers(0, 10_000),
)
def test_at_constant_load_it_settles_and_keeps_within_bounds(
    pods: list[tuple[float, float]], cores: int, threshold: int, share: float, late: int, seed: int
) -> None:
    limits, demands = [round(limit, 3) for limit, _ in pods], [demand for _, demand in pods]
    rule = burst(BurstPolicy.QUOTA_ONLY, share_pool_threshold_percent=threshold)
    plant = Plant(cores, limits, demands, rule, background=share * cores, noise=0.01 * cores, late=late, seed=seed)
    history = [plant.step() for _ in range(120)]
    for i, limit in enumerate(limits):
        values = [row[i] for row in history]
        assert min(values) >= limit - 1e-9
        assert max(values) <= 3 * limit + 1e-4
        assert turns(values) <= 2, "at most one change of direction per minute"


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(1, 60)), st.integers(0, 1000))
def test_nothing_grows_on_old_readings(lost: set[int], seed: int) -> None:
    plant = Plant(16, [1.0, 2.0], [3.0, 6.0], WIDE, lost=frozenset(lost), seed=seed)
    for tick in range(1, 61):
        before = list(plant.quotas)
        after = plant.step()
        if tick in lost:
            assert all(b <= a for a, b in zip(before, after, strict=True))
