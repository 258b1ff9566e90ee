"""Memory eviction: a node too full, a ledger overdrawn. Pure. (spec 6)

Usage is MemTotal - MemAvailable, so page cache is not usage. A victim gives back its anonymous and unevictable memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from koordlet.decide.allocatable import ledger_task
from koordlet.decide.evict import EMPTY, Amounts, Book, Task, fresh, step, threshold_of
from koordlet.decide.victims import best_effort, memory_used, up_to_priority
from koordlet.model.pod import Pod
from koordlet.model.slo import Threshold
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.model.why import stages

NAME: Final = "memory_evict"
BEST_EFFORT, ALLOCATABLE, NODE = "BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"
FEATURES: Final = frozenset({BEST_EFFORT, ALLOCATABLE, NODE})
LOWER_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class State:
    """faults: told already."""

    book: Book = EMPTY
    faults: tuple[str, ...] = ()


class MemoryEvict:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        threshold = threshold_of(policy, FEATURES)
        if threshold is None:
            return _OFF
        capacity = view.node.capacity_bytes or 0
        faults = tuple(f"{feature}: {text}" for feature, text in _faults(threshold, policy))
        ready = capacity > 0 and fresh(view.usage.node_memory_bytes, view) is not None
        book = step(
            state.book,
            view,
            policy,
            lambda: _tasks(view, policy, threshold, capacity) if ready else (),
            owner=NAME,
            cool_s=policy.memory_evict_cool_s,
        )
        notes = tuple(fault for fault in faults if fault not in state.faults)
        return Outcome((), replace(state, book=book, faults=faults), notes=notes, effects=book.wanted)


MEMORY_EVICT: Final = MemoryEvict()
_OFF: Final = Outcome((), State())


def lower_percent(threshold: Threshold) -> int:
    lower = threshold.memory_evict_lower_percent
    return threshold.memory_evict_threshold_percent - LOWER_GAP if lower is None else lower


def node_release_bytes(used: float, capacity: int, threshold: int, lower: int) -> int:
    """Bytes down to the lower line, 0 below the threshold. Whole percents, as the reference counts."""
    percent = int(used) * 100 // capacity
    return capacity * (percent - lower) // 100 if percent >= threshold else 0


def _tasks(view: NodeView, policy: Policy, threshold: Threshold, capacity: int) -> Iterator[Task]:
    broken = dict(_faults(threshold, policy))
    found: tuple[tuple[str, Callable[[], Task | None]], ...] = (
        (BEST_EFFORT, lambda: _node(view, threshold, capacity, BEST_EFFORT)),
        (ALLOCATABLE, lambda: _allocatable(view, threshold, capacity)),
        (NODE, lambda: _node(view, threshold, capacity, NODE)),
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


def _node(view: NodeView, threshold: Threshold, capacity: int, feature: str) -> Task | None:
    used = fresh(view.usage.node_memory_bytes, view)
    upper, lower = threshold.memory_evict_threshold_percent, lower_percent(threshold)
    release = 0 if used is None else node_release_bytes(used.value, capacity, upper, lower)
    if used is None or release <= 0:
        return None
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
