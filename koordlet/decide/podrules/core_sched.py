"""Core scheduling: which containers may share a physical core, by group. (spec/hooks 4.7)"""

from __future__ import annotations

from typing import Final

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.pod import Pod
from koordlet.model.podeffects import CoreCookie
from koordlet.model.podevent import PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import CpuPolicy, CpuQos
from koordlet.model.why import stages

_OWNER: Final = "podrules"
_EXPELLER: Final = "-expeller"
SUPPORT: Final = "core_sched"
"""Name in the capability table."""


def group_of(pod: Pod, context: PodContext) -> str | None:
    """None: the pod's threads share cores with everybody. "" is a group, too: that of all unlabelled pods."""
    slo = context.slo
    if slo.cpu_policy is not CpuPolicy.CORE_SCHED or pod.qos is Qos.SYSTEM:
        return None  # the agent itself is a System pod and must keep no cookie
    qos = _class(pod, context)
    policy = pod.settings.core_sched_policy or ""
    if not qos.enable or policy == "none":
        return None
    group = pod.uid if policy == "exclusive" else pod.settings.core_sched_group or ""
    return group + _EXPELLER if qos.core_expeller else group


def _class(pod: Pod, context: PodContext) -> CpuQos:
    slo = context.slo
    match pod.qos:
        case Qos.LSE | Qos.LSR:
            return slo.lsr_cpu
        case Qos.LS:
            return slo.ls_cpu
        case Qos.BE:
            return slo.be_cpu
    match pod.kube_qos:
        case KubeQos.GUARANTEED:
            return slo.lsr_cpu if slo.lsr_cpu.enable else slo.ls_cpu
        case KubeQos.BURSTABLE:
            return slo.ls_cpu
        case KubeQos.BESTEFFORT:
            return slo.be_cpu


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    container = event.container
    cgroup = event.cgroup or (container.cgroup if container is not None else "")
    if container is None or not cgroup or not context.support.has(SUPPORT):
        return
    group = group_of(event.pod, context)
    if group is not None:
        wanted.effects.append(CoreCookie(cgroup, stages(group=group or "(unlabelled)"), _OWNER, group))
        wanted.note(f"group={group!r}")
