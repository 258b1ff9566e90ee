"""The memory loop in virtual time: throttled before anybody is killed, calm at constant load, never on old data, and
faster than the kernel's own killer."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.decide.freshness import FRESH_INTERVALS
from koordlet.model.slo import NodeSlo, Threshold
from koordlet.model.view import Policy
from tests.loops.memory_plant import BatchPod, MemoryPlant, Tick

LADDER = Policy(
    slo=NodeSlo(threshold=Threshold(enable=True, memory_evict_threshold_percent=80)),
    gates=frozenset({"BEMemoryEvict"}),
    memory_ladder=True,
)
POLLING = Policy(slo=LADDER.slo, gates=LADDER.gates, memory_ladder=False, memory_watch=False)
"""What the reference does: a look per second, and a kill."""
UPPER, LOWER = 80.0, 78.0


def caps(ticks: list[Tick]) -> list[float]:
    return [100.0 if tick.high is None else tick.high for tick in ticks]


def turns(values: list[float]) -> int:
    moves = [b > a for a, b in pairwise(values) if a != b]
    return sum(a != b for a, b in pairwise(moves))


@pytest.mark.parametrize("rate", [0.5, 2.0, 5.0, 15.0])
def test_best_effort_that_wants_it_all_is_held_below_the_threshold(rate: float) -> None:
    plant = MemoryPlant(LADDER, [BatchPod("a", rate=rate), BatchPod("b", rate=rate / 4)])
    ticks = list(plant.run(300))
    assert plant.evicted == []
    assert max(tick.used for tick in ticks) < UPPER
    assert ticks[-1].used > LOWER - 4
    assert turns(caps(ticks)) <= 1


def test_it_settles_within_ten_ticks() -> None:
    plant = MemoryPlant(LADDER, [BatchPod("a", rate=4.0)])
    ticks = list(plant.run(120))
    begun = next(tick.now_s for tick in ticks if tick.high is not None)
    after = [tick for tick in ticks if tick.now_s > begun + 10]
    assert len({tick.high for tick in after}) == 1
    assert max(tick.used for tick in after) - min(tick.used for tick in after) < 0.01


def test_page_cache_is_given_up_before_anything_else() -> None:
    plant = MemoryPlant(LADDER, [BatchPod("a", anon=30, wish=52, rate=1.0, cache=20)])
    ticks = list(plant.run(60))
    reclaimed = [effect for tick in ticks for effect in tick.outcome.effects if effect.kind == "reclaim"]
    first = next(tick for tick in ticks if any(effect.kind == "reclaim" for effect in tick.outcome.effects))
    assert reclaimed
    assert first.high is None
    assert plant.evicted == []


def test_the_cap_asks_for_no_more_than_page_cache() -> None:
    """The write itself would try in vain to reclaim anonymous memory, while the shortage goes on."""
    plant = MemoryPlant(LADDER, [BatchPod("a", anon=40, wish=40, cache=10)], online=lambda s: min(20 + 4 * s, 60))
    capped = [tick.high for tick in plant.run(20) if tick.high is not None and not tick.evicted]
    assert capped
    assert min(capped) >= 40


def test_the_cap_is_given_back_after_a_quiet_time() -> None:
    plant = MemoryPlant(LADDER, [BatchPod("a", rate=5.0)], online=lambda s: 20.0 if s < 60 else 5.0)
    list(plant.run(60))
    assert plant.high is not None
    plant.batch[0].wish = 10.0
    plant.batch[0].anon = 10.0
    ticks = list(plant.run(90))
    assert ticks[-1].high is None
    assert ticks[-1].level == 0
    given_back = next(tick.now_s for tick in ticks if tick.high is None)
    assert given_back >= 60 + 30


@pytest.mark.parametrize("rate", [1.0, 5.0, 10.0, 20.0])
def test_the_online_side_gets_the_memory_before_the_kernel_kills(rate: float) -> None:
    """A node filled by best effort; online allocates at up to a fifth of the node per second."""
    batch = [BatchPod("big", anon=30, wish=30), BatchPod("small", anon=15, wish=15), BatchPod("mid", anon=20, wish=20)]
    plant = MemoryPlant(LADDER, batch, online=lambda s: min(10 + max(s - 5, 0) * rate, 70.0))
    list(plant.run(90))
    assert not plant.killed_by_kernel
    assert plant.evicted[0] == "big"


def test_polling_once_per_second_comes_too_late() -> None:
    """So that the test above can fail: the reference's loop with its pause of 4 s, at the same speed."""
    batch = [BatchPod("big", anon=30, wish=30), BatchPod("small", anon=15, wish=15), BatchPod("mid", anon=20, wish=20)]
    plant = MemoryPlant(POLLING, batch, online=lambda s: min(10 + max(s - 5, 0) * 20.0, 70.0))
    list(plant.run(90))
    assert plant.killed_by_kernel


def test_at_a_high_threshold_a_steep_surge_is_met_before_it() -> None:
    """3 % are left above the threshold, less than half a second; a victim takes 0.3 s to end."""
    batch = [BatchPod(str(number), anon=10, wish=10) for number in range(8)]
    threshold = Threshold(enable=True, memory_evict_threshold_percent=97)
    policy = replace(LADDER, slo=NodeSlo(threshold=threshold))
    plant = MemoryPlant(policy, batch, online=lambda s: min(8 + max(s - 5, 0) * 8.0, 40.0), grace_s=0.3)
    ticks = list(plant.run(30))
    assert not plant.killed_by_kernel
    assert max(tick.used for tick in ticks) < 98.5
    assert len(plant.evicted) == 3  # 25 % are missing; nobody goes for nothing


def test_blindness_evicts_nobody_and_keeps_what_is_throttled() -> None:
    plant = MemoryPlant(LADDER, [BatchPod("a", rate=5.0)], sentinel=False)
    list(plant.run(40))
    held = plant.high
    assert held is not None
    plant.lost = lambda tick: True
    plant.online = lambda s: 60.0  # the node is full now, but nobody has seen it
    ticks = list(plant.run(60))
    blind = [tick for tick in ticks if tick.now_s > 40 + FRESH_INTERVALS]
    assert plant.evicted == []
    assert {tick.high for tick in blind} == {held}


@settings(max_examples=60, deadline=None)
@given(
    online=st.floats(5, 50),
    rates=st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    noise=st.floats(0, 0.4),
    loss=st.floats(0, 0.3),
    late=st.integers(0, 1),
    seed=st.integers(0, 2**16),
)
def test_nobody_is_evicted_while_throttling_suffices(
    online: float, rates: list[float], noise: float, loss: float, late: int, seed: int
) -> None:
    """Constant online load: the cap alone keeps the node below the threshold, whatever the samples are like."""
    dice = random.Random(seed)
    batch = [BatchPod(str(number), rate=rate / len(rates)) for number, rate in enumerate(rates)]
    plant = MemoryPlant(
        LADDER,
        batch,
        online=lambda s: online,
        noise=lambda tick: dice.uniform(-noise, noise),
        lost=lambda tick: dice.random() < loss,
        late=lambda tick: dice.randint(0, late),
    )
    ticks = list(plant.run(180))
    assert plant.evicted == []
    assert turns(caps(ticks)) <= 2  # in three minutes, the first filling included


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(0.5, 20),
    sizes=st.lists(st.floats(3, 25), min_size=2, max_size=5),
    loss=st.floats(0, 0.5),
    seed=st.integers(0, 2**16),
)
def test_whatever_is_evicted_was_needed(rate: float, sizes: list[float], loss: float, seed: int) -> None:
    """An online surge: the node never runs out. At every eviction a fresh reading was above the threshold, or the surge
    so steep that nothing would be left before the end of a victim shows."""
    dice = random.Random(seed)
    batch = [BatchPod(str(number), anon=size, wish=size) for number, size in enumerate(sizes)]
    start = max(77.0 - sum(sizes), 1.0)
    batch_top = sum(sizes)
    plant = MemoryPlant(
        LADDER,
        batch,
        online=lambda s: min(start + max(s - 5, 0) * rate, 90.0),
        lost=lambda tick: tick > 0 and dice.random() < loss,  # who has never seen anything evicts nobody
    )
    if batch_top + start > 77.5:
        return
    known = 0
    for tick in plant.run(60):
        if len(tick.evicted) > known:
            known = len(tick.evicted)
            used = dict(next(e for e in reversed(tick.outcome.effects) if e.kind == "evict").why)["used_bytes"]
            assert used / 2**30 >= UPPER or used / 2**30 + rate >= 98.9
    assert not plant.killed_by_kernel
