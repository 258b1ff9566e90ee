"""CPU eviction: best effort starved below its satisfaction, a node too busy, a ledger overdrawn. Pure. (spec 5)

Satisfaction is judged on a limit that has settled. One that grows is on its way back, after a burst of the online side
or after blindness, when it had been taken to its safe floor: who is evicted then is evicted for our own ramp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from koordlet.decide.allocatable import ledger_task
from koordlet.decide.evict import EMPTY, Amounts, Book, Task, fresh, step, threshold_of
from koordlet.decide.freshness import FRESH_INTERVALS
from koordlet.decide.victims import best_effort, cpu_used, up_to_priority
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Pod
from koordlet.model.qos import Qos
from koordlet.model.slo import CpuEvictPolicy, Threshold
from koordlet.model.units import DEFAULT_PERIOD_US
from koordlet.model.view import BeRoot, NodeView, Outcome, Policy
from koordlet.model.why import stages

NAME: Final = "cpu_evict"
SATISFACTION, ALLOCATABLE, NODE = "BECPUEvict", "CPUAllocatableEvict", "CPUEvict"
FEATURES: Final = frozenset({SATISFACTION, ALLOCATABLE, NODE})

MAX_SATISFACTION_LOWER: Final = 60
DEFAULT_USAGE_PERCENT: Final = 90
LOWER_GAP: Final = 2
MAX_SAMPLES: Final = 600
"""Of one window; a longer one is sampled more thinly."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One tick, milli-CPU. limit None: no root's limit could be read."""

    at_s: float
    node_mcpu: int
    be_mcpu: int | None
    request_mcpu: int
    limit_mcpu: int | None


@dataclass(frozen=True, slots=True)
class State:
    """started_s: of the first tick. request: (pods.revision, sum of batch-cpu requests of BE pods). settled: best
    effort's limit is no larger than at the sample before, which is not old."""

    started_s: float | None = None
    samples: tuple[Sample, ...] = ()
    request: tuple[int, int] = (-1, 0)
    settled: bool = False
    book: Book = EMPTY
    faults: tuple[str, ...] = field(default=())


class CpuEvict:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        started = now_s if state.started_s is None else state.started_s
        threshold = threshold_of(policy, FEATURES)
        if threshold is None:
            return Outcome((), State(started), until_s=math.inf)
        capacity = view.node.capacity_mcpu or 0
        state = replace(_sampled(replace(state, started_s=started), view, policy, threshold), faults=state.faults)
        faults = tuple(f"{feature}: {text}" for feature, text in _faults(threshold, policy))
        # compat: no CPU eviction in the first cool-down after the start.
        ready = capacity > 0 and now_s - started >= policy.cpu_evict_cool_s and fresh(view.usage.node_mcpu, view)
        book = step(
            state.book,
            view,
            policy,
            lambda: _tasks(view, policy, threshold, capacity, state) if ready else (),
            owner=NAME,
            cool_s=policy.cpu_evict_cool_s,
        )
        notes = tuple(fault for fault in faults if fault not in state.faults)
        return Outcome((), replace(state, book=book, faults=faults), notes=notes, effects=book.wanted)


CPU_EVICT: Final = CpuEvict()


def window_s(view: NodeView, threshold: Threshold) -> float:
    return max(view.interval_s, float(threshold.cpu_evict_time_window_s or 0))


def _sampled(state: State, view: NodeView, policy: Policy, threshold: Threshold) -> State:
    """With this tick's sample, without those that left the window."""
    node = fresh(view.usage.node_mcpu, view)
    if node is None or not policy.gates & {SATISFACTION, NODE}:
        return state
    window = window_s(view, threshold)
    if state.samples and node.at_s - state.samples[-1].at_s < max(0.5 * view.interval_s, window / MAX_SAMPLES):
        return state
    if state.request[0] != view.pods.revision:
        pods = [pod for pod in view.pods.pods if pod.qos is Qos.BE and pod.active]
        state = replace(state, request=(view.pods.revision, sum(pod.batch_request_mcpu for pod in pods)))
    be = fresh(view.usage.be_mcpu, view)
    limit = be_limit_mcpu(view.be_roots)
    if threshold.cpu_evict_policy is CpuEvictPolicy.ALLOCATABLE:
        offered = view.node.allocatable.batch_cpu_mcpu
        limit = None if offered is None else max(offered, 1)
    sample = Sample(node.at_s, int(node.value), None if be is None else int(be.value), state.request[1], limit)
    kept = tuple(old for old in state.samples if old.at_s > node.at_s - window)
    near_s = max(FRESH_INTERVALS * view.interval_s, 2 * window / MAX_SAMPLES)
    settled = bool(state.samples) and _settled(state.samples[-1], sample, near_s)
    return replace(state, samples=(*kept, sample), settled=settled)


def _settled(before: Sample, now: Sample, near_s: float) -> bool:
    if before.limit_mcpu is None or now.limit_mcpu is None:
        return False
    return now.at_s - before.at_s <= near_s and now.limit_mcpu <= before.limit_mcpu


def be_limit_mcpu(roots: tuple[BeRoot, ...]) -> int | None:
    """What best effort may use, from the roots' quotas and CPU sets; None where nothing limits or could be read.

    beyond: not the smallest container's CPU set (F-19): one pinned pod says nothing about the others.
    """
    total = 0
    cpus = CpuSet()
    for root in roots:
        limits = [] if root.cpuset is None else [1000 * len(root.cpuset)]
        if root.quota_us is not None and root.quota_us >= 0:
            limits.append(root.quota_us * 1000 // (root.period_us or DEFAULT_PERIOD_US))
        if not limits:
            return None
        total += min(limits)
        cpus |= root.cpuset or CpuSet()
    if not roots:
        return None
    return min(total, 1000 * len(cpus)) if cpus else total


def satisfaction_release_mcpu(
    used: float, request: float, limit: float, lower: int, upper: int, busy_percent: int
) -> int:
    """Requests to take away so that what is left is satisfied to `upper` percent; 0 while satisfied or idle.

    beyond: a limit below one CPU is no proof of being busy (F-19): the usage gate holds there too.
    """
    if limit <= 0 or request <= 0 or used * 100 < limit * busy_percent or limit * 100 > request * lower:
        return 0
    return max(int((request * upper - limit * 100) / 100), 0)


def node_release_mcpu(used: float, capacity: int, threshold: int, lower: int) -> int:
    percent = int(used) * 100 // capacity
    return capacity * (percent - lower) // 100 if percent >= threshold else 0


def _tasks(view: NodeView, policy: Policy, threshold: Threshold, capacity: int, state: State) -> Iterator[Task]:
    broken = dict(_faults(threshold, policy))
    found: tuple[tuple[str, Callable[[], Task | None]], ...] = (
        (SATISFACTION, lambda: _satisfaction(view, threshold, state.samples) if state.settled else None),
        (ALLOCATABLE, lambda: _allocatable(view, threshold, capacity)),
        (NODE, lambda: _node(view, threshold, capacity, state.samples)),
    )
    for feature, make in found:
        task = make() if feature in policy.gates and feature not in broken else None
        if task is not None:
            yield task


def _faults(threshold: Threshold, policy: Policy) -> Iterator[tuple[str, str]]:
    """Features that are on but not usable as configured."""
    t = threshold
    if SATISFACTION in policy.gates:
        low, high = t.cpu_evict_be_satisfaction_lower_percent, t.cpu_evict_be_satisfaction_upper_percent
        if low is None or high is None:
            yield SATISFACTION, "cpuEvictBESatisfactionLowerPercent and UpperPercent are both needed"
        elif not (0 < low <= MAX_SATISFACTION_LOWER and 0 < high < 100 and high >= low):
            yield SATISFACTION, f"satisfaction {low}..{high} %: the lower must be 1..60, the upper up to 99"
    if ALLOCATABLE in policy.gates:
        upper, lower = t.cpu_allocatable_evict_threshold_percent, t.cpu_allocatable_evict_lower_percent
        if upper is None or lower is None or t.allocatable_evict_priority_threshold is None:
            yield (
                ALLOCATABLE,
                "cpuAllocatableEvictThresholdPercent, LowerPercent and allocatableEvictPriorityThreshold are needed",
            )
    unset = t.cpu_evict_threshold_percent is None or t.evict_enabled_priority_threshold is None
    if NODE in policy.gates and unset:
        yield NODE, "cpuEvictThresholdPercent and evictEnabledPriorityThreshold are needed"


def _satisfaction(view: NodeView, threshold: Threshold, samples: tuple[Sample, ...]) -> Task | None:
    low = threshold.cpu_evict_be_satisfaction_lower_percent or 0
    high = threshold.cpu_evict_be_satisfaction_upper_percent or 0
    busy = threshold.cpu_evict_be_usage_threshold_percent
    busy = DEFAULT_USAGE_PERCENT if busy is None else busy
    whole = [(s.be_mcpu, s.request_mcpu, s.limit_mcpu) for s in samples]
    known = [(used, request, limit) for used, request, limit in whole if used is not None and limit is not None]
    window = window_s(view, threshold)
    last = whole[-1] if whole else (None, 0, None)
    if last[0] is None or last[2] is None or len(known) * view.interval_s < int(window / 3):
        return None
    used, request, limit = (sum(column) / len(known) for column in zip(*known, strict=True))
    release = satisfaction_release_mcpu(used, request, limit, low, high, busy)
    release = min(release, satisfaction_release_mcpu(last[0], last[1], last[2], low, high, busy))
    if release <= 0:
        return None

    def ratio(pod: Pod) -> int | None:
        mcpu = cpu_used(view)(pod)
        return None if mcpu is None or not pod.batch_request_mcpu else mcpu * 1000 // pod.batch_request_mcpu

    return Task(
        feature=SATISFACTION,
        release={"batch-cpu": release},
        order=lambda: best_effort(view, SATISFACTION, ratio),
        gives=lambda pod: {"batch-cpu": pod.batch_request_mcpu},
        why=stages(
            feature=SATISFACTION,
            be_used_mcpu=int(used),
            be_request_mcpu=int(request),
            be_limit_mcpu=int(limit),
            satisfaction_percent=int(limit * 100 / request),
            lower_percent=low,
            upper_percent=high,
            release_mcpu=release,
        ),
    )


def _allocatable(view: NodeView, threshold: Threshold, capacity: int) -> Task | None:
    used = fresh(view.usage.node_mcpu, view)
    return ledger_task(
        view,
        ALLOCATABLE,
        memory=False,
        threshold=threshold.cpu_allocatable_evict_threshold_percent or 0,
        lower=threshold.cpu_allocatable_evict_lower_percent or 0,
        limit=threshold.allocatable_evict_priority_threshold or 0,
        short=used is not None and used.value * 100 >= capacity * threshold.cpu_suppress_threshold_percent,
    )


def _node(view: NodeView, threshold: Threshold, capacity: int, samples: tuple[Sample, ...]) -> Task | None:
    upper = threshold.cpu_evict_threshold_percent or 0
    lower = threshold.cpu_evict_lower_percent
    lower = upper - LOWER_GAP if lower is None else lower
    if not samples or len(samples) * view.interval_s < int(window_s(view, threshold) / 3):
        return None
    used = sum(sample.node_mcpu for sample in samples) / len(samples)
    release = min(
        node_release_mcpu(used, capacity, upper, lower),
        # beyond: what was only a peak of the window is over.
        node_release_mcpu(samples[-1].node_mcpu, capacity, upper, lower),
    )
    if release <= 0:
        return None
    amount = cpu_used(view)

    def gives(pod: Pod) -> Amounts:
        return {"cpu": amount(pod) or 0}

    return Task(
        feature=NODE,
        release={"cpu": release},
        order=lambda: up_to_priority(view, NODE, threshold.evict_enabled_priority_threshold or 0, amount),
        gives=gives,
        why=stages(
            feature=NODE,
            used_mcpu=int(used),
            capacity_mcpu=capacity,
            threshold_percent=upper,
            lower_percent=lower,
            release_mcpu=release,
        ),
    )
