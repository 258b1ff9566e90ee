"""Which pods an eviction feature may take, and in which order. Pure. (spec 4.5)

Fixes of the reference: finished pods are no victims (F-18), and a pod says "never" to every feature by the label
`eviction-enabled: "false"`, not only to those that need it to be "true". Nor is a static pod: the API would remove its
mirror only, and a killed one is started again by the kubelet at once, so its end releases nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from koordlet.model.cgroup import ancestors
from koordlet.model.pod import Pod
from koordlet.model.qos import Qos
from koordlet.model.settings import EVICTION_POLICY
from koordlet.model.view import NodeView

MEMORY_AGE_S: Final = 15.0
"""A pod's memory.stat comes round every ten passes (native/table.h)."""
CPU_INTERVALS: Final = 3

Amount = Callable[[Pod], int | None]
"""What the pod uses or requests now; None is "not known"."""


def allows(pod: Pod, feature: str) -> bool:
    """The pod's own annotation, of which a malformed one means never; and whether its end would last."""
    settings = pod.settings
    if pod.static or settings.fault(EVICTION_POLICY) or settings.evict_enabled is False:
        return False
    return settings.evict_by is None or feature in settings.evict_by


def around_others(view: NodeView) -> frozenset[str]:
    """Cgroups with work inside that is not best effort: whoever ends or stops them hits it, too."""
    inside = [pod.cgroup for pod in view.pods.pods if pod.active and pod.qos is not Qos.BE]
    inside += [app.cgroup for app in view.host_apps if app.qos is not Qos.BE]
    return frozenset(above for cgroup in inside for above in ancestors(cgroup))


def best_effort(view: NodeView, feature: str, amount: Amount) -> list[Pod]:
    """Pods labelled BE: lowest priority first, then the most of `amount`; unknown or zero last, by name downwards.

    beyond: a pod without spec.priority stands where its class stands; comparing it only by usage, as the reference
    does, gives an order that depends on who is compared with whom.
    """
    shared = around_others(view)
    pods = [
        pod
        for pod in view.pods.pods
        if pod.qos is Qos.BE and pod.active and pod.cgroup not in shared and allows(pod, feature)
    ]
    pods.sort(key=lambda pod: (pod.namespace, pod.name), reverse=True)
    return sorted(pods, key=lambda pod: (pod.priority_value, -(amount(pod) or 0)))


def up_to_priority(view: NodeView, feature: str, limit: int, amount: Amount) -> list[Pod]:
    """Pods of any class that say they may be evicted, up to that priority value; nothing unknown among them."""
    shared = around_others(view)
    pods = [
        pod
        for pod in view.pods.pods
        if pod.active
        and pod.cgroup not in shared
        and pod.settings.evict_enabled is True
        and allows(pod, feature)
        and pod.priority_value <= limit
        and amount(pod) is not None
    ]
    return sorted(pods, key=lambda pod: (*_rank(pod), -(amount(pod) or 0), pod.namespace, pod.name))


def _rank(pod: Pod) -> tuple[int, int, int]:
    own = pod.settings.sub_priority
    return pod.settings.evict_priority, pod.priority_value, pod.priority_value if own is None else own


def memory_used(view: NodeView) -> Amount:
    """Bytes that the end of a pod frees: anonymous memory (shared memory included) and what cannot be reclaimed."""

    def used(pod: Pod) -> int | None:
        row = view.workloads.get(pod.cgroup)
        reading = row.memory_bytes if row is not None else None
        fresh = reading is not None and reading.age_s(view.now_s) <= max(MEMORY_AGE_S, 12 * view.interval_s)
        return int(reading.value) if reading is not None and fresh else None

    return used


def cpu_used(view: NodeView) -> Amount:
    """Milli-CPU over the last interval."""

    def used(pod: Pod) -> int | None:
        row = view.workloads.get(pod.cgroup)
        reading = row.cpu_mcpu if row is not None else None
        fresh = reading is not None and reading.age_s(view.now_s) <= CPU_INTERVALS * view.interval_s
        return int(reading.value) if reading is not None and fresh else None

    return used
