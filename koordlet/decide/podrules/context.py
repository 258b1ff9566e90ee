"""`PodContext`: all that a pod rule may know besides the pod and the event. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.decide.pools import Pool, share_pools
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import HostApp, Pod, PodSet
from koordlet.model.slo import NodeSlo
from koordlet.model.support import Support
from koordlet.model.view import NodeInfo, NodeView, Policy


@dataclass(frozen=True, slots=True)
class PodContext:
    """Built once per change of its parts and shared by every door and the reconciler.

    ls_pools, be_pools: CPUs that pods without CPUs of their own may use, by NUMA node; () while the
    topology is unknown.
    """

    policy: Policy = field(default_factory=Policy)
    node: NodeInfo = field(default_factory=NodeInfo)
    support: Support = field(default_factory=Support)
    host_apps: tuple[HostApp, ...] = ()
    ls_pools: tuple[Pool, ...] = ()
    be_pools: tuple[Pool, ...] = ()

    @property
    def slo(self) -> NodeSlo:
        return self.policy.slo or NodeSlo()

    def on(self, gate: str) -> bool:
        return gate in self.policy.gates

    def own_cpus(self, pod: Pod) -> CpuSet | None:
        """CPUs that the scheduler gave to this very pod, without those that are switched off just now; None where it
        gave none, or some that this machine has not."""
        topology = self.node.topology
        if not pod.cpuset or topology is None:
            return pod.cpuset
        if not pod.cpuset <= topology.online | topology.offline:
            return None
        return pod.cpuset & topology.online or None


def context_of(view: NodeView, policy: Policy, before: PodContext | None = None) -> PodContext:
    """The context of a view; `before` itself while nothing that matters to a rule has changed."""
    pools = _pools(view.node, view.pods)
    if before is not None and (
        before.policy == policy
        and before.node == view.node
        and before.support == view.support
        and before.host_apps == view.host_apps
        and (before.ls_pools, before.be_pools) == pools
    ):
        return before
    return PodContext(policy, view.node, view.support, view.host_apps, *pools)


def _pools(node: NodeInfo, pods: PodSet) -> tuple[tuple[Pool, ...], tuple[Pool, ...]]:
    if node.topology is None:
        return (), ()
    found = share_pools(node.topology, pods.pods, node)
    return found.ls, found.be
