"""NodeResourceTopology: what the scheduler allocates CPUs and NUMA memory from (spec/api 1.3). Pure.

`desired` says everything that is ours; `merged` lays it over the object as it is, and keeps what belongs to others: the
manager's batch resources in the zones, anybody's labels and annotations. The scheduler stops working on a broken
`cpu-topology`, so an object is built whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordlet.decide.packing import pack
from koordlet.decide.pools import Pool, SharePools
from koordlet.model.kubelet import KubeletConfig
from koordlet.model.topology import Topology
from koordlet.report.topology_zones import Zone, merged_zones, zone_object

API_VERSION: Final = "topology.node.k8s.io/v1alpha1"
KIND: Final = "NodeResourceTopology"

MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "Koordinator")
NUMA_RESERVATION: Final = "node.koordinator.sh/enable-numa-reservation"

CPU_BASIC_INFO: Final = "node.koordinator.sh/cpu-basic-info"
CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
LS_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
BE_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
POD_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
CPU_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
RESERVATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"

_POLICIES: Final = {
    "single-numa-node": "SingleNUMANode",
    "restricted": "Restricted",
    "best-effort": "BestEffort",
}


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """Of all CPUs; "" and False are not written. catL3_mask: the resource control's full mask of L3 ways."""

    model: str = ""
    vendor: str = ""
    smt: bool = False
    turbo: bool = False
    cat_l3_mask: str = ""


@dataclass(frozen=True, slots=True)
class TopologyFacts:
    """Everything the object is made of. owner_uid: the Node object's. kubelet: None when it is not to be asked.

    reservation, system_qos: the Node's annotations, checked and normalised, {} without one. numa_reservation: the
    Node's label, None without one.
    """

    node: str
    owner_uid: str
    topology: Topology
    zones: tuple[Zone, ...]
    pools: SharePools
    cpu: CpuInfo = field(default_factory=CpuInfo)
    kubelet: KubeletConfig | None = None
    reservation: Mapping[str, Any] = field(default_factory=dict)
    system_qos: Mapping[str, Any] = field(default_factory=dict)
    numa_reservation: str | None = None


def desired(facts: TopologyFacts) -> dict[str, Any]:
    """The whole object. Raises ValueError without any CPU: there is nothing true to say then."""
    if not facts.topology.cpus:
        raise ValueError("no online CPU is known")
    labels = dict([MANAGED_BY])
    if facts.numa_reservation:
        labels[NUMA_RESERVATION] = facts.numa_reservation
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": facts.node,
            "labels": labels,
            "annotations": annotation_texts(facts),
            "ownerReferences": [owner(facts.node, facts.owner_uid)],
        },
        "topologyPolicies": [topology_policy(facts.kubelet)],
        "zones": [zone_object(zone) for zone in facts.zones],
    }


def owner(node: str, uid: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def annotation_texts(facts: TopologyFacts) -> dict[str, str]:
    info, rows = facts.cpu, sorted(facts.topology.cpus, key=lambda cpu: cpu.id)
    found = {
        CPU_BASIC_INFO: _kept(
            {
                "cpuModel": info.model,
                "hyperThreadEnabled": info.smt,
                "turboEnabled": info.turbo,
                "catL3CbmMask": info.cat_l3_mask,
                "vendorID": info.vendor,
            }
        ),
        CPU_TOPOLOGY: {
            "detail": [{"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node} for cpu in rows]
        },
        LS_POOLS: [_pool(pool) for pool in facts.pools.ls],
        BE_POOLS: [_pool(pool) for pool in facts.pools.be],
        # compat: JSON null when there are none.
        POD_ALLOCS: [
            {
                **_kept({"namespace": alloc.namespace, "name": alloc.name}),
                "uid": alloc.uid,
                "cpuset": str(alloc.cpus),
                "managedByKubelet": True,
            }
            for alloc in facts.pools.allocs
        ]
        or None,
        CPU_POLICY: cpu_policy(facts.kubelet, facts.topology),
        RESERVATION: dict(facts.reservation),
        SYSTEM_QOS: dict(facts.system_qos),
    }
    return {key: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for key, value in found.items()}


def cpu_policy(kubelet: KubeletConfig | None, topology: Topology) -> dict[str, Any]:
    """Under the static policy also the CPUs that it keeps for the system: listed, or packed by amount (V-34)."""
    if kubelet is None:
        return {}
    reserved = ""
    if kubelet.cpu_policy == "static":
        reserved = str(kubelet.reserved_cpus or pack(-(-kubelet.reserved_mcpu // 1000), topology))
    return _kept({"policy": kubelet.cpu_policy, "options": dict(kubelet.cpu_options), "reservedCPUs": reserved})


def topology_policy(kubelet: KubeletConfig | None) -> str:
    word = _POLICIES.get(kubelet.topology_policy) if kubelet else None
    if kubelet is None or word is None or kubelet.topology_scope not in ("container", "pod"):
        return "None"
    return f"{word}{kubelet.topology_scope.capitalize()}Level"


def merged(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The object to write in place of `current`, or None when all that is ours already stands there."""
    metadata = dict(_object(current.get("metadata")))
    texts, labels = _object(metadata.get("annotations")), _object(metadata.get("labels"))
    ours, owned = wanted["metadata"]["annotations"], wanted["metadata"]["labels"]
    (reference,) = wanted["metadata"]["ownerReferences"]
    owners = metadata.get("ownerReferences") or []
    same = (
        all(same_json(texts.get(key), text) for key, text in ours.items())
        and all(labels.get(key) == text for key, text in owned.items())
        and (NUMA_RESERVATION in owned or NUMA_RESERVATION not in labels)
        and reference in owners
        and current.get("topologyPolicies") == wanted["topologyPolicies"]
    )
    zones = merged_zones(current.get("zones"), wanted["zones"])
    if same and zones is None:
        return None
    metadata["annotations"] = {**texts, **ours}
    # The label goes with the Node's, or this object would differ for ever.
    metadata["labels"] = {**{key: text for key, text in labels.items() if key != NUMA_RESERVATION}, **owned}
    metadata["ownerReferences"] = [
        *(one for one in owners if not isinstance(one, dict) or one.get("kind") != "Node"),
        reference,
    ]
    metadata.pop("managedFields", None)
    return {
        **current,
        "metadata": metadata,
        "topologyPolicies": wanted["topologyPolicies"],
        "zones": current["zones"] if zones is None else zones,
    }


def same_json(text: object, other: str) -> bool:
    """Equal as JSON: another writer may space or order it differently."""
    if text == other:
        return True
    try:
        return isinstance(text, str) and json.loads(text) == json.loads(other)
    except (ValueError, RecursionError):
        return False


def _pool(pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = {"socket": pool.socket, "node": pool.node}
    if pool.cpus:
        found["cpuset"] = str(pool.cpus)
    return found


def _kept(found: dict[str, Any]) -> dict[str, Any]:
    """compat: empty values are left out."""
    return {key: value for key, value in found.items() if value}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
