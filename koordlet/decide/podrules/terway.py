"""The two files that the Terway CNI reads its limits from, in bytes per second. (spec/hooks 4.11)"""

from __future__ import annotations

import json
from typing import Any, Final

from koordlet.decide.podrules.context import PodContext
from koordlet.model.effect import Effect
from koordlet.model.pod import Pod, PodSet
from koordlet.model.podeffects import TerwayFile
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import NetworkPolicy
from koordlet.model.why import stages

GATE: Final = "TerwayQoS"
NODE_FILE: Final = "global_bps_config"
POD_FILE: Final = "pod.json"
_OWNER: Final = "podrules"
_ANNOTATION: Final = "koordinator.sh/networkQOS"
_PRIO: Final = {Qos.SYSTEM: 0, Qos.LSE: 1, Qos.LSR: 1, Qos.LS: 1, Qos.BE: 2}
_PRIO_OF_KUBE: Final = {KubeQos.GUARANTEED: 1, KubeQos.BURSTABLE: 1, KubeQos.BESTEFFORT: 2}


def files(pods: PodSet, context: PodContext) -> tuple[Effect, ...]:
    """() while the policy is another one; the files are then removed."""
    if not context.on(GATE) or context.policy.slo is None or context.slo.network.policy is not NetworkPolicy.TERWAY:
        return ()
    rows = {pod.uid: _row(pod) for pod in pods.pods if pod.active and not pod.settings.fault(_ANNOTATION)}
    return (
        TerwayFile(NODE_FILE, stages(policy="terway-qos"), _OWNER, node_text(context)),
        TerwayFile(POD_FILE, stages(pods=len(rows)), _OWNER, json.dumps(rows, separators=(",", ":"))),
    )


def node_text(context: PodContext) -> str:
    """beyond: percentages become bytes as quantities do (the reference forgets to divide them by 8, W38)."""
    network = context.slo.network
    values = [("hw_tx_bps_max", network.total_bps), ("hw_rx_bps_max", network.total_bps)]
    for level, qos in (("l1", network.ls), ("l2", network.be)):
        values += [
            (f"offline_{level}_tx_bps_min", qos.egress_request_bps),
            (f"offline_{level}_tx_bps_max", qos.egress_limit_bps),
            (f"offline_{level}_rx_bps_min", qos.ingress_request_bps),
            (f"offline_{level}_rx_bps_max", qos.ingress_limit_bps),
        ]
    return "".join(f"{name} {bps // 8}\n" for name, bps in values)


def _row(pod: Pod) -> dict[str, Any]:
    own = pod.settings.network_qos
    return {
        "podName": pod.name,
        "podNamespace": pod.namespace,
        "podUID": pod.uid,
        "prio": _PRIO[pod.qos] if pod.qos else _PRIO_OF_KUBE[pod.kube_qos],
        "cgroupDir": f"/sys/fs/cgroup/net_cls/{pod.cgroup}",
        "qosConfig": {
            "ingressBandwidth": (own.ingress_bps or 0) // 8 if own else 0,
            "egressBandwidth": (own.egress_bps or 0) // 8 if own else 0,
        },
    }
