"""Network classes of the node and limits of single pods, in bits per second. (spec/hooks 4.10, its faults corrected)"""

from __future__ import annotations

from typing import Final

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.effect import Effect
from koordlet.model.pod import Pod
from koordlet.model.podeffects import NetworkClass, PodNetwork
from koordlet.model.podevent import PodEvent
from koordlet.model.qos import Qos
from koordlet.model.slo import NetworkClass as Class
from koordlet.model.slo import NetworkPolicy
from koordlet.model.why import stages

GATE: Final = "TCNetworkQoS"
_OWNER: Final = "podrules"
_LEAST_SHARE: Final = 100
"""A class without a guarantee still gets this part of the whole: the kernel refuses a rate of 0."""
_CLASS_OF: Final = {Qos.SYSTEM: "system", Qos.LSE: "ls", Qos.LSR: "ls", Qos.LS: "ls", Qos.BE: "be"}


def active(context: PodContext) -> bool:
    return context.on(GATE) and context.policy.slo is not None and context.slo.network.policy is NetworkPolicy.TC


def node_classes(context: PodContext) -> tuple[tuple[Effect, ...], tuple[str, ...]]:
    """The node's classes, and what is wrong with their configuration. () where nothing is guaranteed to any class."""
    network = context.slo.network
    if not active(context) or not (network.ls.enable or network.be.enable):
        return (), ()
    total_bps = network.total_bps
    if total_bps <= 0:
        return (), ("networkQOS: systemStrategy.totalNetworkBandwidth is not set, so no class can be shaped",)
    least_bps = max(total_bps // _LEAST_SHARE, 1)
    system_bps = total_bps - network.ls.egress_request_bps - network.be.egress_request_bps
    notes = () if system_bps >= least_bps else ("networkQOS: egress requests leave less than 1 % to the system",)
    rows = (
        ("root", total_bps, total_bps),
        ("system", max(system_bps, least_bps), total_bps),
        ("ls", *_rates(network.ls, least_bps, total_bps)),
        ("be", *_rates(network.be, least_bps, total_bps)),
    )
    effects = tuple(
        NetworkClass(name, stages(total_bps=total_bps, rate_bps=rate, ceil_bps=ceil), _OWNER, rate, ceil)
        for name, rate, ceil in rows
    )
    return effects, notes


def _rates(qos: Class, least_bps: int, total_bps: int) -> tuple[int, int]:
    """(guaranteed, at most). compat: a class with a guarantee and no limit may use no more than the guarantee."""
    if not qos.enable or qos.egress_request_bps <= 0:
        return least_bps, max(qos.egress_limit_bps, least_bps) if qos.egress_limit_bps > 0 else total_bps
    rate = min(qos.egress_request_bps, total_bps)
    return rate, min(max(qos.egress_limit_bps, rate), total_bps)


def pod_network(pod: Pod, context: PodContext) -> PodNetwork | None:
    """compat: pods without a QoS label are left alone, whatever they ask for."""
    if not active(context) or pod.qos is None:
        return None
    own = pod.settings.network_qos
    egress = own.egress_bps or None if own else None
    ingress = own.ingress_bps or None if own else None
    network = context.slo.network
    classed = network.total_bps > 0 and (network.ls.enable or network.be.enable)
    if not classed and egress is None and ingress is None:
        return None
    ips = () if pod.host_network else tuple(ip for ip in pod.ips if ":" not in ip)
    why = stages(qos=pod.qos.value, egress_bps=egress or 0, ingress_bps=ingress or 0)
    return PodNetwork(pod.uid, why, _OWNER, pod.cgroup, _CLASS_OF[pod.qos], ips, egress, ingress)


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    if event.container is None and (found := pod_network(event.pod, context)) is not None:
        wanted.effects.append(found)
        wanted.note(f"class={found.parent}")
