"""A pod's processes have ended: what of ours the kubelet's next write of its cgroup would be refused for. Pure.

A kubelet keeps the cgroup while volumes are still mounted, and lowers its weight each time it comes by. The kernel
takes no weight while cpu.idle is set. The runtime tells us of the sandbox's end before it tells the kubelet, so
cpu.idle is given back in between. That is why beside a kubelet the option needs a runtime that tells.
"""

from __future__ import annotations

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.resize import OWNER
from koordlet.model.knob import RESTORE, Decision, Knob
from koordlet.model.pod import Tree
from koordlet.model.podevent import Hook, PodEvent
from koordlet.model.why import stages


def ahead(event: PodEvent, context: PodContext) -> tuple[Decision, ...]:
    """What is to be in the kernel before the door replies."""
    pod = event.pod
    asked = context.policy.identity and context.policy.idle_on_be_pods
    if event.hook is not Hook.POST_STOP_POD_SANDBOX or not (asked and pod.is_be and pod.cgroup):
        return ()
    if pod.tree is not Tree.KUBELET:
        return ()
    return (Decision(pod.cgroup, Knob.CPU_IDLE, RESTORE, stages(ended=pod.key), OWNER),)
