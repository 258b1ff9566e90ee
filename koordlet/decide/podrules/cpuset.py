"""CPUs of a container or host application: its own, its NUMA node's pool, System-QoS CPUs, all pools. (hooks 4.2)"""

from __future__ import annotations

from typing import Final

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.decide.pools import STATIC, pool_cpus
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Container, HostApp, Pod, Tree
from koordlet.model.podevent import LinuxResources, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import SuppressPolicy
from koordlet.model.units import DEFAULT_PERIOD_US, quota_to_mcpu

_ANNOTATION: Final = "scheduling.koordinator.sh/resource-status"


def container_cpus(
    pod: Pod, container: Container, context: PodContext, asked: LinuxResources | None = None
) -> tuple[CpuSet | None, str]:
    """(CPUs, which rule). None: no opinion. An empty set: let go of what a kubelet pinned; only a reply says that."""
    if pod.cpuset_error or pod.settings.fault(_ANNOTATION):
        return None, ""  # nothing is changed on an allocation that cannot be read
    if pod.is_be and _suppressed_by_cpuset(context):
        return None, ""  # the loop that lends CPUs keeps such a pod's own ones within what is lent (seen, 12)
    if pod.cpuset:
        own = context.own_cpus(pod)
        if own and pod.is_be and context.be_pools:
            own = own & pool_cpus(context.be_pools) or None  # the groups above it are held there (be_cpus)
        return own, "own" if own else ""
    if not context.ls_pools and not context.be_pools:
        return None, ""  # no topology yet
    policy = context.node.kubelet_policy if pod.tree is Tree.KUBELET else "none"
    if policy is None or (policy == STATIC and exclusive(pod, container, asked)):
        return None, ""
    status = pod.settings.resource_status
    if status is not None and status.cpu_nodes:
        if pod.qos is not Qos.BE:
            return pool_cpus(context.ls_pools, status.cpu_nodes) or None, "LS pool of its NUMA nodes"
        if context.on("BECPUManager"):
            return pool_cpus(context.be_pools, status.cpu_nodes) or None, "BE pool of its NUMA nodes"
    if pod.qos is Qos.SYSTEM and context.node.system_cpuset:
        return context.node.system_cpuset, "System-QoS CPUs"
    if pod.tree is Tree.OURS and pod.kube_qos is not KubeQos.BESTEFFORT:
        return _declared(context), "LS pool"
    if pod.qos is Qos.LS:
        return pool_cpus(context.ls_pools) or None, "LS pool"
    if pod.kube_qos is KubeQos.BESTEFFORT:
        return CpuSet(), "best effort: not pinned one by one"
    if policy == STATIC:
        return None, ""
    return pool_cpus(context.ls_pools) or None, "LS pool"


def _declared(context: PodContext) -> CpuSet | None:
    """A declared workload without CPUs of its own makes room for those that have some; else it is left as it is."""
    cpus, topology = pool_cpus(context.ls_pools), context.node.topology
    return None if not cpus or topology is None or cpus == topology.online else cpus


def _suppressed_by_cpuset(context: PodContext) -> bool:
    threshold = context.slo.threshold
    by_cpuset = threshold.cpu_suppress_policy is SuppressPolicy.CPUSET
    return context.on("BECPUSuppress") and threshold.enable and by_cpuset


def host_app_cpus(app: HostApp, context: PodContext) -> CpuSet | None:
    """Only LS host applications are placed."""
    return pool_cpus(context.ls_pools) or None if app.qos is Qos.LS else None


def exclusive(pod: Pod, container: Container, asked: LinuxResources | None = None) -> bool:
    """CPUs that the kubelet's static policy gives to this very container: not ours to change (R-P5).

    A door may know no spec, then the quota tells; a limit that nobody tells counts as whole CPUs.
    """
    limit = container.limits.cpu_mcpu
    if limit is None and asked is not None and asked.cpu_quota_us is not None and asked.cpu_quota_us > 0:
        limit = quota_to_mcpu(asked.cpu_quota_us, asked.cpu_period_us or DEFAULT_PERIOD_US)
    return pod.kube_qos is KubeQos.GUARANTEED and (limit is None or (limit > 0 and limit % 1000 == 0))


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    if event.container is None:
        return
    cpus, which = container_cpus(event.pod, event.container, context, event.asked)
    if cpus is not None:
        wanted.cpuset = cpus
        wanted.note(which)
