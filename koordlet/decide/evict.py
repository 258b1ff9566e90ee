"""Eviction, shared by CPU and memory: how much is missing, who goes for it, and when to wait. Pure. (spec 4)

A round is one feature's shortage. Its victims stay wished for until they are gone; what they will give back counts
as there already, as does what any other ending pod holds. While a round runs only a refused victim is replaced; the
next round begins after the cool-down, on fresh figures. Only who gives something of what is missing is a victim, and
whoever turns out not to be needed beside a later one is let go again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordlet.decide.freshness import Trust, judge
from koordlet.model.eviction import Evict, EvictState
from koordlet.model.pod import Pod
from koordlet.model.slo import Threshold
from koordlet.model.view import NodeView, Policy, Reading
from koordlet.model.why import Why, stages

Amounts = Mapping[str, int]
"""Resource name -> milli-CPU or bytes."""
SKEW_S: Final = 60.0
"""A pod that was made further ahead is not young: a clock is wrong. (Else setting it back would spare every pod.)"""


@dataclass(frozen=True, slots=True)
class Task:
    """One feature's shortage. order: eligible pods, first victim first. gives: what the end of a pod gives back."""

    feature: str
    release: Amounts
    order: Callable[[], Sequence[Pod]]
    gives: Callable[[Pod], Amounts]
    why: Why


@dataclass(frozen=True, slots=True)
class Book:
    """wanted: evictions wished for and not over. cool_until_s: no new round before."""

    wanted: tuple[Evict, ...] = ()
    cool_until_s: float = float("-inf")


EMPTY: Final = Book()


def threshold_of(policy: Policy, features: frozenset[str]) -> Threshold | None:
    """The section to obey, None while the policy or every one of these features is off."""
    if policy.slo is None or not policy.slo.threshold.enable or not features & policy.gates:
        return None
    return policy.slo.threshold


def fresh(reading: Reading | None, view: NodeView) -> Reading | None:
    """The reading if it may be acted on."""
    if reading is None or judge(reading.age_s(view.now_s), view.interval_s) is not Trust.FRESH:
        return None
    return reading


def pods_known(view: NodeView, policy: Policy) -> bool:
    """Nobody is evicted on an old pod list: the pod may be gone, or be another by now."""
    return view.pods.at_s is not None and view.now_s - view.pods.at_s <= policy.pods_fresh_s


def settle(book: Book, view: NodeView) -> tuple[Book, bool]:
    """The book without victims that are gone, done or refused; whether one was refused and is to be replaced."""
    if not book.wanted:
        return book, False
    there = {pod.uid for pod in view.pods.pods}
    left: list[Evict] = []
    refused = False
    for evict in book.wanted:
        found = view.evictions.get(evict.target)
        if found is not None and found.state is EvictState.REFUSED:
            refused = True
        elif evict.target in there and (found is None or found.pending):
            left.append(evict)
    return (book if len(left) == len(book.wanted) else replace(book, wanted=tuple(left))), refused


def step(
    book: Book,
    view: NodeView,
    policy: Policy,
    tasks: Callable[[], Iterable[Task]],
    *,
    owner: str,
    cool_s: float,
    urgent: bool = False,
) -> Book:
    """The next book. urgent: a new round need not wait for the cool-down. What is ending counts as released already, so
    it begins only where that does not suffice.

    The same object while nothing changes.
    """
    book, refused = settle(book, view)
    waits = view.now_s < book.cool_until_s and not refused and not urgent
    if waits or not pods_known(view, policy):
        return book
    for task in tasks():
        victims = pick(task, view, policy, {evict.target for evict in book.wanted})
        if victims:
            made = tuple(_evict(pod, gives, task, owner) for pod, gives in victims)
            return Book(book.wanted + made, view.now_s + cool_s)
    return book


def pick(task: Task, view: NodeView, policy: Policy, wanted: set[str]) -> list[tuple[Pod, Amounts]]:
    """Victims for what is missing beside what is ending anyway. wanted: uids asked for already."""
    ending = wanted | {uid for uid, found in view.evictions.items() if found.pending}
    missing = dict(task.release)
    for pod in view.pods.pods:
        if pod.active and (pod.terminating or pod.uid in ending):
            for resource, amount in task.gives(pod).items():
                missing[resource] = missing.get(resource, 0) - amount
    missing = {resource: missing[resource] for resource in task.release}
    if all(amount <= 0 for amount in missing.values()):
        return []
    able = [pod for pod in task.order() if pod.uid not in ending and not _spared(pod, view, policy)]
    return choose(((pod, task.gives(pod)) for pod in able), missing)


def choose(victims: Iterable[tuple[Pod, Amounts]], missing: Amounts) -> list[tuple[Pod, Amounts]]:
    """The first ones that cover it, without those that a later one made superfluous."""
    left = dict(missing)
    chosen: list[tuple[Pod, Amounts]] = []
    for pod, gives in victims:
        if all(amount <= 0 for amount in left.values()):
            break
        if any(left[resource] > 0 and gives.get(resource, 0) > 0 for resource in left):
            chosen.append((pod, gives))
            for resource in left:
                left[resource] -= gives.get(resource, 0)
    for item in reversed(chosen[:-1]):
        gives = item[1]
        if all(gives.get(resource, 0) <= max(-left[resource], 0) for resource in left):
            chosen.remove(item)
            for resource in left:
                left[resource] += gives.get(resource, 0)
    return chosen


def _spared(pod: Pod, view: NodeView, policy: Policy) -> bool:
    if pod.terminating:
        return True
    found = view.evictions.get(pod.uid)
    if found is not None and view.now_s < found.retry_at_s:
        return True
    if policy.evict_min_age_s <= 0 or pod.created_at_s is None:
        return False
    return -SKEW_S <= view.wall_s - pod.created_at_s < policy.evict_min_age_s


def _evict(pod: Pod, gives: Amounts, task: Task, owner: str) -> Evict:
    why = task.why + stages(**{f"gives_{resource}": amount for resource, amount in gives.items()})
    return Evict(
        target=pod.uid,
        why=why,
        owner=owner,
        namespace=pod.namespace,
        name=pod.name,
        cgroup=pod.cgroup,
        tree=pod.tree,
        parts=tuple(container.cgroup for container in pod.containers if container.cgroup),
        containers=tuple(container.id for container in pod.containers if container.id),
        feature=task.feature,
        release=tuple(gives.items()),
    )
