"""Share pools: the CPUs that pods without CPUs of their own may use, per NUMA node, for LS and for BE. Pure.

One computation for everybody who needs them (spec/api 1.3): the report to the scheduler, the cpuset rule, suppress.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from koordlet.decide.packing import pack
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Exclusive
from koordlet.model.pod import Pod
from koordlet.model.qos import Qos
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo

STATIC: Final = "static"
"""The kubelet's CPU manager policy that gives CPUs to pods."""


@dataclass(frozen=True, slots=True)
class Pool:
    """CPUs of one NUMA node. socket: of the node's first CPU; a node may hold several sockets (virtual machines)."""

    socket: int
    node: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuAlloc:
    """CPUs that the kubelet's static policy gave to a pod; namespace and name are "" while the pod is unknown."""

    uid: str
    namespace: str
    name: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class SharePools:
    """ls, be: sorted by socket and node. A pool that only a reservation emptied stays, with no CPU in it."""

    ls: tuple[Pool, ...] = ()
    be: tuple[Pool, ...] = ()
    allocs: tuple[CpuAlloc, ...] = ()


def share_pools(topology: Topology, pods: Iterable[Pod], node: NodeInfo) -> SharePools:
    """The kubelet's reserved CPUs stay in the pools, as in the reference; what it gave to pods does not."""
    pods = tuple(pods)
    allocs = _allocs(pods, node.exclusive)
    base = topology.online - node.exclusive.nameless
    for alloc in allocs:
        base -= alloc.cpus
    ls = be = base
    for pod in pods:
        if pod.active and pod.cpuset:  # beyond: a finished pod releases its CPUs
            ls -= pod.cpuset
            if pod.qos is Qos.LSE:
                be -= pod.cpuset
    kept = withheld(node, topology)
    return SharePools(_by_node(topology, ls, kept), _by_node(topology, be, kept), allocs)


def withheld(node: NodeInfo, topology: Topology) -> CpuSet:
    """CPUs of the reservation and of exclusive System-QoS pods. A quantity stands for CPUs just as a list does."""
    return (node.reserved_cpus or pack(-(-node.reservation_mcpu // 1000), topology)) | node.system_qos_cpus


def pool_cpus(pools: Iterable[Pool], nodes: Iterable[int] | None = None) -> CpuSet:
    """All CPUs of some NUMA nodes' pools, of all without `nodes`."""
    wanted = None if nodes is None else frozenset(nodes)
    cpus = CpuSet()
    for pool in pools:
        if wanted is None or pool.node in wanted:
            cpus |= pool.cpus
    return cpus


def kubelet_cpus(pods: Iterable[Pod], exclusive: Exclusive) -> CpuSet:
    """What the kubelet's static policy gave to pods that it places itself; nobody else's work belongs there."""
    cpus = exclusive.nameless
    for alloc in _allocs(tuple(pods), exclusive):
        cpus |= alloc.cpus
    return cpus


def _allocs(pods: tuple[Pod, ...], exclusive: Exclusive) -> tuple[CpuAlloc, ...]:
    """By UID. Pods that koordinator places itself do not count, whatever the kubelet's checkpoint says of them."""
    known = {pod.uid: pod for pod in pods}
    found = []
    for uid, cpus in sorted(exclusive.pods.items()):
        pod = known.get(uid)
        if pod is not None and (pod.qos in (Qos.LS, Qos.BE) or pod.cpuset):
            continue
        if cpus:
            found.append(CpuAlloc(uid, pod.namespace if pod else "", pod.name if pod else "", cpus))
    return tuple(found)


def _by_node(topology: Topology, cpus: CpuSet, withheld: CpuSet) -> tuple[Pool, ...]:
    sockets: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for cpu in topology.cpus:
        # beyond: the lowest socket of the whole node, so that the text does not change with the order of CPUs.
        sockets[cpu.node] = min(cpu.socket, sockets.get(cpu.node, cpu.socket))
        if cpu.id in cpus:
            members.setdefault(cpu.node, []).append(cpu.id)
    pools = [Pool(sockets[node], node, CpuSet(ids) - withheld) for node, ids in members.items()]
    return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.node)))
