"""Who owns each CPU of the machine: the answer of /v1/cpus. Pure."""

from __future__ import annotations

from typing import Final

from koordlet.model.cpuset import CpuSet
from koordlet.model.qos import Qos
from koordlet.model.status import Snapshot
from koordlet.model.view import NodeView
from koordlet.report.rows import Row

SHARED: Final = "shared"
RESERVED: Final = "reserved"
SYSTEM: Final = "system"


def cpus_json(snapshot: Snapshot) -> Row:
    """owners: {name, kind, qos, cpus, count}, pods first; kind: pod, reserved, system or shared (what is left).
    best_effort: the CPUs on which best-effort work may run now, null where it is not confined.
    cpus: per online CPU {id, core, socket, node, l3, owner, best_effort}. topology: whether it is known at all.

    A CPU that two pods claim shows the first by name and is listed in `conflicts`.
    """
    view = snapshot.view
    topology = view.node.topology
    online = topology.online if topology is not None else CpuSet()
    owners, conflicts = _owners(view, online)
    best_effort = _best_effort(view, online)
    owner_of = {cpu: name for name, _, _, cpus in owners for cpu in cpus}
    return {
        "topology": topology is not None,
        "owners": [
            {"name": name, "kind": kind, "qos": qos, "cpus": str(cpus), "count": len(cpus)}
            for name, kind, qos, cpus in owners
        ],
        "best_effort": None if best_effort is None else str(best_effort),
        "conflicts": conflicts,
        "cpus": [
            {
                "id": cpu.id,
                "core": cpu.core,
                "socket": cpu.socket,
                "node": cpu.node,
                "l3": cpu.l3,
                "owner": owner_of.get(cpu.id, SHARED),
                "best_effort": best_effort is None or cpu.id in best_effort,
            }
            for cpu in (topology.cpus if topology is not None else ())
        ],
    }


def _owners(view: NodeView, online: CpuSet) -> tuple[list[tuple[str, str, str, CpuSet]], list[Row]]:
    left = online
    owners: list[tuple[str, str, str, CpuSet]] = []
    conflicts: list[Row] = []
    pinned = sorted(
        (pod for pod in view.pods.pods if pod.active and pod.cpuset), key=lambda pod: (pod.namespace, pod.name)
    )
    for pod in pinned:
        wanted = (pod.cpuset or CpuSet()) & online
        if pod.qos is Qos.BE:
            continue  # within the best-effort set, nobody's own
        if taken := wanted - left:
            conflicts.append({"name": pod.key, "cpus": str(taken)})
        owners.append((pod.key, "pod", pod.qos.value if pod.qos else "", wanted & left))
        left -= wanted
    for name, cpus in ((RESERVED, view.node.reserved_cpus), (SYSTEM, view.node.system_qos_cpus)):
        if cpus & left:
            owners.append((name, name, "", cpus & left))
            left -= cpus
    owners.append((SHARED, SHARED, "", left))
    return owners, conflicts


def _best_effort(view: NodeView, online: CpuSet) -> CpuSet | None:
    """Union over the best-effort roots; None when none is known or one of them does not tell."""
    cpus = CpuSet()
    for root in view.be_roots:
        if root.cpuset is None:
            return None
        cpus |= root.cpuset
    return cpus & online if view.be_roots else None
