"""Eviction by the ledger: what low-priority pods request against what the node offers for it. Pure. (spec 5.3, 6.2)

Fixes of the reference: plain CPU and memory are counted in one unit (F-14), finished pods do not count (F-18), and a
resource that the node does not offer at all is no reason to evict everybody: it vanishes whenever the manager's
figures are old (ledger 1.3). Where it offers 0, the node itself must be short too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordlet.decide.evict import Amounts, Task
from koordlet.decide.victims import up_to_priority
from koordlet.model.pod import Pod, Resources
from koordlet.model.qos import PriorityClass
from koordlet.model.view import NodeView
from koordlet.model.why import stages

CPU: Final = {
    PriorityClass.MID: ("mid-cpu", "mid_cpu_mcpu"),
    PriorityClass.BATCH: ("batch-cpu", "batch_cpu_mcpu"),
}
MEMORY: Final = {
    PriorityClass.MID: ("mid-memory", "mid_memory_bytes"),
    PriorityClass.BATCH: ("batch-memory", "batch_memory_bytes"),
}
PLAIN_CPU: Final = ("cpu", "cpu_mcpu")
PLAIN_MEMORY: Final = ("memory", "memory_bytes")


def ledger_task(
    view: NodeView, feature: str, *, memory: bool, threshold: int, lower: int, limit: int, short: bool
) -> Task | None:
    """None while requests fit. threshold, lower: percent of allocatable. limit: priority value up to which pods count.

    short: the node's own usage is above what its policy wants, the second signal.
    """
    table, plain = (MEMORY, PLAIN_MEMORY) if memory else (CPU, PLAIN_CPU)

    def gives(pod: Pod) -> Amounts:
        resource, field = table.get(pod.priority_class, plain)
        return {resource: _requested(pod, field)}

    fields = dict((*table.values(), plain))
    sums = dict.fromkeys(fields, 0)
    for pod in view.pods.pods:
        if pod.active and pod.priority_value <= limit:
            for resource, amount in gives(pod).items():
                sums[resource] += amount
    release = _release(sums, fields, view.node.allocatable, threshold, lower, short)
    if not release:
        return None
    why = stages(
        feature=feature,
        threshold_percent=threshold,
        lower_percent=lower,
        **{f"requested_{r}": sums[r] for r in release},
        **{f"allocatable_{r}": _offered(view.node.allocatable, fields[r]) or 0 for r in release},
        **{f"release_{r}": amount for r, amount in release.items()},
    )
    return Task(
        feature=feature,
        release=release,
        order=lambda: up_to_priority(view, feature, limit, lambda pod: sum(gives(pod).values())),
        gives=gives,
        why=why,
    )


def _release(
    sums: Mapping[str, int],
    fields: Mapping[str, str],
    offered: Resources,
    threshold: int,
    lower: int,
    short: bool,
) -> dict[str, int]:
    release: dict[str, int] = {}
    for resource, requested in sums.items():
        there = _offered(offered, fields[resource])
        if there is None or (there == 0 and not short):
            continue
        if requested * 100 > there * threshold:
            release[resource] = requested - there * lower // 100
    return {resource: amount for resource, amount in release.items() if amount > 0}


def _offered(offered: Resources, field: str) -> int | None:
    value: int | None = getattr(offered, field)
    return value


def _requested(pod: Pod, field: str) -> int:
    return sum(max(getattr(container.requests, field) or 0, 0) for container in pod.containers)
