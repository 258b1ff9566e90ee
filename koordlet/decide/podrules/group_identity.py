"""Group identity of pods and host applications: bvt where the kernel has it. (spec/hooks 4.1, identity of design 4)

The QoS directories and the mainline stand-in for a best-effort root are identity.py's; here are the pods below them.
"""

from __future__ import annotations

from typing import Final

from koordlet.decide.identity import neutral
from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.knob import Knob
from koordlet.model.pod import HostApp, Pod, Tree
from koordlet.model.podevent import Hook, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import CpuPolicy, CpuQos

_CPU_QOS: Final = "koordinator.sh/cpuQOS"


def active(context: PodContext) -> bool:
    """The kernel has bvt, the policy is group identity and some class asks for it."""
    slo = context.slo
    if slo.cpu_policy is not CpuPolicy.GROUP_IDENTITY or not context.support.has(Knob.CPU_BVT):
        return False
    return any(qos.enable for qos in (slo.lsr_cpu, slo.ls_cpu, slo.be_cpu))


def pod_bvt(pod: Pod, context: PodContext) -> int | None:
    """None: no opinion (also for a pod whose annotation is malformed)."""
    slo = context.slo
    match pod.qos:
        case Qos.LSE | Qos.LSR:
            return _value(slo.lsr_cpu)
        case Qos.LS:
            return _annotated(pod, _value(slo.ls_cpu))
        case Qos.BE:
            return _value(slo.be_cpu)
        case Qos.SYSTEM if slo.system_cpu.enable:
            return _value(slo.system_cpu)
    match pod.kube_qos:
        case KubeQos.GUARANTEED:
            return _value(slo.lsr_cpu) if slo.lsr_cpu.enable else _value(slo.ls_cpu)
        case KubeQos.BURSTABLE:
            return _value(slo.ls_cpu)
        case KubeQos.BESTEFFORT:
            return _value(slo.be_cpu)


def host_app_bvt(app: HostApp, context: PodContext) -> int:
    slo = context.slo
    classes = {Qos.LSE: slo.lsr_cpu, Qos.LSR: slo.lsr_cpu, Qos.LS: slo.ls_cpu, Qos.BE: slo.be_cpu}
    found = classes.get(app.qos) if app.qos else None
    return _value(found) if found else 0


def _value(qos: CpuQos) -> int:
    return qos.group_identity if qos.enable else 0


def _annotated(pod: Pod, value: int) -> int | None:
    """An annotation without `enable` switches it off, whatever else it says (W14)."""
    if pod.settings.fault(_CPU_QOS):
        return None
    own = pod.settings.cpu_qos
    if own is None:
        return value
    if not own.enable:
        return 0
    return value if own.group_identity is None else own.group_identity


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    pod = event.pod
    if event.container is not None:
        return
    if active(context):
        wanted.bvt = pod_bvt(pod, context)
        if wanted.bvt is not None:
            wanted.note(f"bvt={wanted.bvt}")
    elif _idles(pod, context) and _is_made(event):
        wanted.idle = 1
        wanted.note("idle=1")


def _idles(pod: Pod, context: PodContext) -> bool:
    """Not on a kubelet's QoS root or a container, where their own writes would fail, nor on a pod that ends."""
    policy = context.policy
    asked = policy.identity and policy.idle_on_be_pods and not neutral(context.slo)
    there = context.support.has(Knob.CPU_IDLE) and (policy.hooked or not policy.kubelet)
    return asked and there and pod.is_be and pod.tree is Tree.KUBELET and not pod.terminating


def _is_made(event: PodEvent) -> bool:
    """False while a kubelet may still be about to write the weight of a cgroup that it has just made. It has a sandbox
    made after that, and containers after the sandbox."""
    return event.hook is Hook.PRE_RUN_POD_SANDBOX or any(container.id for container in event.pod.containers)
