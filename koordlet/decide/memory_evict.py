"""Memory eviction: a node too full, a ledger overdrawn; and the ladder before it. Pure. (spec 6)

Usage is MemTotal - MemAvailable, so page cache is not usage. A victim gives back its anonymous and unevictable memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from koordlet.decide.allocatable import ledger_task
from koordlet.decide.evict import EMPTY, Amounts, Book, Task, fresh, settle, step
from koordlet.decide.memory_ladder import Ladder, Lines, climb, plan, seen
from koordlet.decide.victims import best_effort, memory_used, up_to_priority
from koordlet.model.effect import Effect
from koordlet.model.knob import Knob
from koordlet.model.pod import Pod
from koordlet.model.slo import Threshold
from koordlet.model.view import NodeView, Outcome, Policy, SurgePlan
from koordlet.model.why import stages

NAME: Final = "memory_evict"
BEST_EFFORT, ALLOCATABLE, NODE = "BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"
FEATURES: Final = frozenset({BEST_EFFORT, ALLOCATABLE, NODE})
LOWER_GAP: Final = 2


DWELL_S: Final = 1.0
"""With the ladder on: how long its last level holds before somebody is evicted, unless memory is about to run out."""
EMPTY_PERCENT: Final = 97
"""Of capacity: where the kernel's own killer is near."""
AHEAD_S: Final = 2.0
FULL_PERCENT: Final = 99
EFFECT_S: Final = 1.0
"""From the decision until the end of a victim shows, with some to spare. Where all memory would be gone by then,
somebody is evicted below the threshold already."""
MARGIN_PERCENT: Final = 0.5


@dataclass(frozen=True, slots=True)
class State:
    """faults: told already. said: the effects of the last outcome, the same object while they are equal."""

    book: Book = EMPTY
    ladder: Ladder = field(default_factory=Ladder)
    faults: tuple[str, ...] = ()
    said: tuple[Effect, ...] = ()


class MemoryEvict:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        ladder_on = policy.memory_ladder and view.support.has(Knob.MEMORY_HIGH) and bool(view.be_roots)
        if policy.slo is None or not policy.slo.threshold.enable or not (ladder_on or FEATURES & policy.gates):
            return _OFF
        threshold = policy.slo.threshold
        capacity = view.node.capacity_bytes or 0
        faults = tuple(f"{feature}: {text}" for feature, text in _faults(threshold, policy))
        notes = tuple(fault for fault in faults if fault not in state.faults)
        used = fresh(view.usage.node_memory_bytes, view)
        lines = Lines.of(capacity, threshold.memory_evict_threshold_percent, lower_percent(threshold))
        watches = policy.memory_watch and bool(view.be_roots) and capacity > 0
        if used is None or capacity <= 0:  # blind: nothing new, what is throttled stays so, the sentinel may still see
            book, _ = settle(state.book, view)
            surge = plan(state.ladder, lines, now_s) if watches else None
            return _outcome(replace(state, book=book, faults=faults), surge, notes)
        ladder = seen(state.ladder, used, ending=bool(state.book.wanted))
        if ladder_on:
            ladder = climb(ladder, view, lines, NAME, frozenset(evict.target for evict in state.book.wanted))
        else:
            ladder = Ladder(used=ladder.used, slope=ladder.slope, slope_known=ladder.slope_known)
        running_out = ladder.seconds_to(lines.part(EMPTY_PERCENT), now_s)
        urgent = policy.memory_watch and running_out <= policy.memory_evict_cool_s
        held = ladder_on and ladder.level >= 3 and now_s - ladder.since_s < DWELL_S and running_out > AHEAD_S
        early = ladder_on and policy.memory_watch and _too_late_at_the_threshold(ladder, lines)
        ahead = int(ladder.slope * EFFECT_S) if urgent else 0
        book = step(
            state.book,
            view,
            policy,
            lambda: () if held else _tasks(_newest(view, ladder), policy, threshold, capacity, ahead, early),
            owner=NAME,
            cool_s=policy.memory_evict_cool_s,
            urgent=urgent,
        )
        if book.wanted != state.book.wanted and ladder.stopped in {evict.target for evict in book.wanted}:
            ladder = climb(ladder, view, lines, NAME, frozenset(evict.target for evict in book.wanted))
        surge = plan(ladder, lines, now_s) if watches else None
        return _outcome(replace(state, book=book, ladder=ladder, faults=faults), surge, notes)


MEMORY_EVICT: Final = MemoryEvict()
_OFF: Final = Outcome((), State(), until_s=math.inf)


def _too_late_at_the_threshold(ladder: Ladder, lines: Lines) -> bool:
    """Whether a victim's end would show only when nothing is left. Best effort is held at the lower line by then: what
    has been growing since, above that line, is not best effort's."""
    assert ladder.used is not None
    above = ladder.used.value >= lines.lower + lines.part(MARGIN_PERCENT)
    return above and ladder.used.value + ladder.held_slope * EFFECT_S >= lines.part(FULL_PERCENT)


def _newest(view: NodeView, ladder: Ladder) -> NodeView:
    """A sample may come later than a younger one of the sentinel's: the past evicts nobody."""
    return replace(view, usage=replace(view.usage, node_memory_bytes=ladder.used))


def _outcome(state: State, surge: SurgePlan | None, notes: tuple[str, ...]) -> Outcome[State]:
    effects: tuple[Effect, ...] = state.book.wanted + state.ladder.reclaim
    said = state.said if effects == state.said else effects
    gauges = (("memory_ladder_level", (), float(state.ladder.level)),)
    return Outcome(state.ladder.decisions, replace(state, said=said), gauges, notes, surge, said)


def lower_percent(threshold: Threshold) -> int:
    lower = threshold.memory_evict_lower_percent
    return threshold.memory_evict_threshold_percent - LOWER_GAP if lower is None else lower


def node_release_bytes(used: float, capacity: int, threshold: int, lower: int) -> int:
    """Bytes down to the lower line, 0 below the threshold. Whole percents, as the reference counts."""
    percent = int(used) * 100 // capacity
    return capacity * (percent - lower) // 100 if percent >= threshold else 0


def _tasks(
    view: NodeView, policy: Policy, threshold: Threshold, capacity: int, ahead: int, early: bool
) -> Iterator[Task]:
    """ahead: bytes that the online side will want until the effect shows. early: best effort need not wait for the
    threshold."""
    broken = dict(_faults(threshold, policy))
    found: tuple[tuple[str, Callable[[], Task | None]], ...] = (
        (BEST_EFFORT, lambda: _node(view, threshold, capacity, BEST_EFFORT, ahead, early)),
        (ALLOCATABLE, lambda: _allocatable(view, threshold, capacity)),
        (NODE, lambda: _node(view, threshold, capacity, NODE, ahead)),
    )
    for feature, make in found:
        task = make() if feature in policy.gates and feature not in broken else None
        if task is not None:
            yield task


def _faults(threshold: Threshold, policy: Policy) -> Iterator[tuple[str, str]]:
    """Features that are on but not usable as configured."""
    t = threshold
    if BEST_EFFORT in policy.gates and lower_percent(t) >= t.memory_evict_threshold_percent:
        yield BEST_EFFORT, "memoryEvictLowerPercent must be below memoryEvictThresholdPercent"
    if ALLOCATABLE in policy.gates:
        upper, lower = t.memory_allocatable_evict_threshold_percent, t.memory_allocatable_evict_lower_percent
        if upper is None or lower is None or t.allocatable_evict_priority_threshold is None:
            yield (
                ALLOCATABLE,
                "memoryAllocatableEvictThresholdPercent, LowerPercent and allocatableEvictPriorityThreshold are needed",
            )
    if NODE in policy.gates and t.evict_enabled_priority_threshold is None:
        yield NODE, "evictEnabledPriorityThreshold is needed"


def _node(
    view: NodeView, threshold: Threshold, capacity: int, feature: str, ahead: int, early: bool = False
) -> Task | None:
    used = fresh(view.usage.node_memory_bytes, view)
    upper, lower = threshold.memory_evict_threshold_percent, lower_percent(threshold)
    from_percent = lower if early else upper
    release = 0 if used is None else node_release_bytes(used.value, capacity, from_percent, lower)
    if early and used is not None:
        release = max(release, 1)
    if used is None or release <= 0:
        return None
    release += ahead
    amount = memory_used(view)

    def gives(pod: Pod) -> Amounts:
        return {"memory": amount(pod) or 0}

    def order() -> list[Pod]:
        if feature == BEST_EFFORT:
            return best_effort(view, feature, amount)
        return up_to_priority(view, feature, threshold.evict_enabled_priority_threshold or 0, amount)

    return Task(
        feature=feature,
        release={"memory": release},
        order=order,
        gives=gives,
        why=stages(
            feature=feature,
            used_bytes=int(used.value),
            capacity_bytes=capacity,
            threshold_percent=upper,
            lower_percent=lower,
            release_bytes=release,
        ),
    )


def _allocatable(view: NodeView, threshold: Threshold, capacity: int) -> Task | None:
    used = fresh(view.usage.node_memory_bytes, view)
    return ledger_task(
        view,
        ALLOCATABLE,
        memory=True,
        threshold=threshold.memory_allocatable_evict_threshold_percent or 0,
        lower=threshold.memory_allocatable_evict_lower_percent or 0,
        limit=threshold.allocatable_evict_priority_threshold or 0,
        short=used is not None and used.value * 100 >= capacity * lower_percent(threshold),
    )
