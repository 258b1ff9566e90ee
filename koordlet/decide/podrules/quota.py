"""CFS quota of a pod or container, computed once: CPUs of its own, batch limit, normalization. (spec/hooks R-P2)

Whoever shapes quotas further (CPU burst) starts from here, so that two rules never write one file in turn.
"""

from __future__ import annotations

from typing import Final

from koordlet.decide.podrules import batch
from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.cpuset import exclusive
from koordlet.decide.podrules.wanted import Wanted
from koordlet.decide.pools import STATIC
from koordlet.model.pod import Container, Pod, Tree
from koordlet.model.podevent import LinuxResources, PodEvent
from koordlet.model.qos import Qos
from koordlet.model.slo import SuppressPolicy
from koordlet.model.units import DEFAULT_PERIOD_US, QUOTA_MIN_US, UNLIMITED, mcpu_to_quota_us

_UNSET: Final = (Qos.LSE, Qos.LSR, None)
_NORMALIZED: Final = (Qos.LS, None)


def scale(quota_us: int, ratio: float) -> int:
    """Fewer cycles of a faster CPU do the same work; a ratio of 1 or less changes nothing (W5). Rounded up."""
    if quota_us <= 0 or ratio <= 1:
        return quota_us
    hundredths = round(ratio * 100)  # the annotation has two digits; a float's dust must not add a microsecond
    return -(-quota_us * 100 // hundredths)


def scaled_us(quota_us: int, context: PodContext) -> int:
    """`scale` by the node's ratio, never below what the kernel takes."""
    found = scale(quota_us, context.node.cpu_normalization_ratio or 0)
    return max(found, QUOTA_MIN_US) if found > 0 else found


def is_unset(pod: Pod, context: PodContext) -> bool:
    """A pod with CPUs of its own needs no quota: it would only throttle it.

    compat: LS, BE and SYSTEM pods keep theirs, as seen on the reference.
    """
    if not (context.policy.unset_cpu_quota and context.on("CPUSetAllocator") and pod.qos in _UNSET):
        return False
    if pod.tree is Tree.OURS:
        return False  # its quota is the administrator's
    return context.own_cpus(pod) is not None


def is_normalized(pod: Pod, context: PodContext) -> bool:
    """Pods whose quota follows the node's ratio.

    beyond: not where a static kubelet gives CPUs to the pod: there it lifts the quota itself (since 1.33), which would
    only throttle.
    """
    ratio = context.node.cpu_normalization_ratio
    if not context.on("CPUNormalization") or ratio is None or ratio <= 1 or pod.tree is Tree.OURS:
        return False
    if context.node.kubelet_policy == STATIC and any(exclusive(pod, container) for container in pod.containers):
        return False
    return pod.qos is Qos.LS or (pod.qos is None and not pod.cpuset)


def container_quota_us(
    pod: Pod, container: Container, context: PodContext, asked: LinuxResources | None = None
) -> int | None:
    """None: no opinion, the kubelet's value stays. asked: what the runtime is about to set, where a door knows."""
    if is_unset(pod, context):
        return UNLIMITED
    if context.on("BatchResource") and (amounts := batch.of_container(pod, container)) is not None:
        return _lent_us([[amounts]], context)
    if is_normalized(pod, context):
        original = _original_us(container, asked)
        return None if original is None else scaled_us(original, context)
    return None


def pod_quota_us(pod: Pod, context: PodContext) -> int | None:
    """None: no opinion."""
    if is_unset(pod, context):
        return UNLIMITED
    if context.on("BatchResource") and (groups := batch.of_pod(pod)):
        return _lent_us(groups, context)
    if is_normalized(pod, context) and _may_lower(pod, context):
        limits = [_original_us(container, None) for container in pod.containers]
        if limits and all(limits):
            return scaled_us(sum(filter(None, limits)), context)
    return None


def _lent_us(groups: list[list[batch.Amounts]], context: PodContext) -> int:
    """The cap on BE as a whole replaces each pod's own while suppress works by quota."""
    threshold = context.slo.threshold
    if threshold.enable and threshold.cpu_suppress_policy is SuppressPolicy.CFS_QUOTA:
        return UNLIMITED
    limit_mcpu = batch.largest_sum([[row.limit_mcpu for row in rows] for rows in groups])
    return scaled_us(mcpu_to_quota_us(limit_mcpu), context)


def _original_us(container: Container, asked: LinuxResources | None) -> int | None:
    """The quota as the kubelet means it; None without a limit.

    Never from a cgroup file or a container's present values: those may be scaled already (W6).
    """
    if asked is not None and asked.cpu_quota_us is not None:
        return asked.cpu_quota_us if asked.cpu_quota_us > 0 else None
    limit = container.limits.cpu_mcpu
    return mcpu_to_quota_us(limit) if limit is not None and limit > 0 else None


def _may_lower(pod: Pod, context: PodContext) -> bool:
    """cgroup v1 refuses a child above its parent: under a lowered pod, the runtime could not make a container with
    its unscaled quota (koordinator #2693). With a door open the runtime's value is scaled, too."""
    return context.node.cgroup_v2 or (context.policy.hooked and all(c.running for c in pod.containers))


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    pod = event.pod
    if event.container is None:
        wanted.quota_us = pod_quota_us(pod, context)
    else:
        wanted.quota_us = container_quota_us(pod, event.container, context, event.asked)
    if wanted.quota_us is not None:
        wanted.note(f"quota_us={wanted.quota_us} per {DEFAULT_PERIOD_US}")
