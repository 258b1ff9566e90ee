"""A container's quota is about to change in place: what of ours the kernel would refuse that for. Pure.

The kernel takes no quota below the burst beside it, and on cgroup v1 no quota of a container above its pod's, nor of a
pod below its containers'. The kubelet writes the pod's and the runtime the container's: a pod that grows goes first,
one that shrinks last, where the kubelet (1.36) compares with the quota that it finds, that of a burst included. Neither
knows of a burst or a scaled quota. So before the runtime goes on, all that we did to the CPU of that pod is given back,
only the pod is made wide enough for what is to come; and so it stays while the new limit makes its way to us. Wide
enough, not narrower than it is: the kubelet asks for memory first, and may have widened the pod by the time that we do.
"""

from __future__ import annotations

from typing import Final

from koordlet.decide.podrules.context import PodContext
from koordlet.model.knob import RESTORE, Decision, Knob, KnobValue, Restore
from koordlet.model.pod import Pod, Tree
from koordlet.model.podevent import Hook, PodEvent
from koordlet.model.qos import Qos
from koordlet.model.units import mcpu_to_quota_us
from koordlet.model.why import stages

OWNER: Final = "resize"
_LEFT_ALONE: Final = (Qos.LSE, Qos.LSR, Qos.BE)
"""Classes that neither burst nor are normalized."""


def ahead(event: PodEvent, context: PodContext) -> tuple[Decision, ...]:
    """What is to be in the kernel before the door replies; () unless the quota of a pod that bursts or is scaled is
    about to be set."""
    pod, asked_us = event.pod, event.asked.cpu_quota_us
    if event.hook is not Hook.PRE_UPDATE_CONTAINER or asked_us is None or not _touched(pod, context):
        return ()
    why = stages(resized=pod.key, asked_us=asked_us)
    groups = {event.cgroup, *(container.cgroup for container in pod.containers)} - {"", pod.cgroup}
    wishes: list[tuple[str, Knob, KnobValue | Restore]] = []
    for group in sorted(groups):
        wishes += [(group, Knob.CPU_BURST, RESTORE), (group, Knob.CPU_QUOTA, RESTORE)]
    if pod.cgroup:
        wishes += [(pod.cgroup, Knob.CPU_BURST, RESTORE), (pod.cgroup, Knob.CPU_QUOTA, _pod_quota(event, asked_us))]
    return tuple(
        Decision(group, knob, value, why, OWNER, at_least=value is not RESTORE) for group, knob, value in wishes
    )


def _pod_quota(event: PodEvent, asked_us: int) -> KnobValue | Restore:
    """The old one is wide enough for a container that shrinks. For one that grows it is the sum of what is to be: the
    kubelet has written that before, or will; without a limit of its own each pod is unlimited anyway."""
    if event.container is None or asked_us < _quota_us(event.container.limits.cpu_mcpu):
        return RESTORE
    others = [c.limits.cpu_mcpu for c in event.pod.containers if c.name != event.container.name]
    return asked_us + sum(map(_quota_us, others)) if asked_us > 0 and all(others) else RESTORE


def _quota_us(limit_mcpu: int | None) -> int:
    return mcpu_to_quota_us(limit_mcpu) if limit_mcpu and limit_mcpu > 0 else 0


def _touched(pod: Pod, context: PodContext) -> bool:
    if pod.tree is not Tree.KUBELET or pod.qos in _LEFT_ALONE or (pod.qos is None and pod.cpuset is not None):
        return False
    return context.on("CPUBurst") or context.on("CPUNormalization")
