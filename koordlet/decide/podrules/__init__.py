"""What a pod or container gets, whoever asks: one answer for a runtime's hook, for NRI and for the reconciler. Pure.

Adding a rule: a file with `rule(event, context, wanted)`, its row in `RULES`, its tests. Rules run in this order; each
owns the values that it sets, and one that fails leaves the others' values in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from koordlet.decide.podrules import (
    batch,
    core_sched,
    cpuset,
    ending,
    gpu,
    group_identity,
    network,
    oom_score,
    quota,
    rdma,
    resize,
)
from koordlet.decide.podrules.context import PodContext, context_of
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.knob import Decision, Knob
from koordlet.model.podevent import Hook, LinuxResources, PodAnswer, PodEvent

__all__ = ["NAME", "PodContext", "answer", "context_of"]

NAME: Final = "podrules"

Rule = Callable[[PodEvent, PodContext, Wanted], None]

RULES: Final[tuple[tuple[str, str, Rule], ...]] = (
    ("BatchResource", "BatchResource", batch.rule),
    ("CPUQuota", "", quota.rule),
    ("CPUSetAllocator", "CPUSetAllocator", cpuset.rule),
    ("GroupIdentity", "GroupIdentity", group_identity.rule),
    ("OOMScoreAdj", "OOMScoreAdj", oom_score.rule),
    ("CoreSched", "CoreSched", core_sched.rule),
    ("TCNetworkQoS", "TCNetworkQoS", network.rule),
    ("GPUEnvInject", "GPUEnvInject", gpu.rule),
    ("RDMADeviceInject", "RDMADeviceInject", rdma.rule),
)
"""(name, gate or "" where the rule asks for several gates itself, rule)."""

_ANSWERED: Final = (Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER)
"""Moments at which a container's values travel in the reply, before its cgroup has them."""
_AT_REST: Final = (Hook.POST_STOP_POD_SANDBOX, Hook.POST_STOP_CONTAINER)


def answer(event: PodEvent, context: PodContext) -> PodAnswer:
    """Never raises: a rule's fault is named in the answer's `faults`."""
    if event.hook in _AT_REST:
        return PodAnswer(ahead=ending.ahead(event, context))
    wanted, faults = Wanted(), []
    for name, gate, rule in RULES:
        if gate and not context.on(gate):
            continue
        wanted.rule = name
        try:
            rule(event, context, wanted)
        except Exception as error:  # one rule's fault must not take the pod's other values
            faults.append(f"{name}: {type(error).__name__}: {error}")
    replied = event.container is not None and event.hook in _ANSWERED
    return PodAnswer(
        resources=_resources(wanted, event.asked) if replied else LinuxResources(),
        env={key: value for key, value in wanted.env.items() if event.env.get(key) != value},
        devices=tuple(wanted.devices),
        mounts=tuple(wanted.mounts),
        decisions=() if replied else _decisions(event, wanted, context),
        effects=tuple(wanted.effects),
        why=tuple(wanted.why),
        resctrl_group=wanted.resctrl_group,
        faults=tuple(faults),
        ahead=resize.ahead(event, context),
    )


def _resources(wanted: Wanted, asked: LinuxResources) -> LinuxResources:
    """Only what differs from what the runtime was going to do anyway."""
    return LinuxResources(
        cpu_shares=_unlike(wanted.shares, asked.cpu_shares),
        cpu_quota_us=_unlike(wanted.quota_us, asked.cpu_quota_us),
        cpuset=None if wanted.cpuset is None or wanted.cpuset == asked.cpuset else wanted.cpuset,
        memory_limit_bytes=_unlike(wanted.memory_limit_bytes, asked.memory_limit_bytes),
        oom_score_adj=_unlike(wanted.oom_score_adj, asked.oom_score_adj),
    )


def _unlike(wanted: int | None, asked: int | None) -> int | None:
    return None if wanted == asked else wanted


def _decisions(event: PodEvent, wanted: Wanted, context: PodContext) -> tuple[Decision, ...]:
    target = event.cgroup or (event.container.cgroup if event.container is not None else event.pod.cgroup)
    if not target:
        return ()
    why = tuple(wanted.why)
    return tuple(
        Decision(target, knob, value, why, NAME)
        for knob, value in wanted.knobs()
        if knob is not Knob.CPU_BVT or context.support.has(knob)
    )
