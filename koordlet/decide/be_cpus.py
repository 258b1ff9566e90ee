"""What best effort may use at most while suppress lends no smaller set: every CPU but those of LSE pods, reserved ones
and exclusive System-QoS ones. Pure. (spec/qos 3.5, 3.7)

So an LSE pod is alone on its CPUs under the policy `cfsQuota` and without suppress, too. Where nothing is kept back,
nothing is named. The loser against suppress and a pod's own allocation in act/merge.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from koordlet.decide import suppress
from koordlet.decide.pools import STATIC, withheld
from koordlet.decide.suppress_cpuset import CONTAINER, Pools, directories, pools_of
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import Qos
from koordlet.model.slo import SuppressPolicy
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy
from koordlet.model.why import Why, stages

NAME: Final = "be_cpus"


@dataclass(frozen=True, slots=True)
class State:
    """shape: what the decisions were built from; equal shape gives the same decisions."""

    shape: tuple[object, ...] = ()
    decisions: tuple[Decision, ...] = ()
    pools: Pools | None = None


class BeCpus:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        topology, kubelet = view.node.topology, view.node.kubelet_policy
        if topology is None or not view.be_roots or not in_force(policy):
            return Outcome((), State(), until_s=math.inf)
        pools = pools_of(view, topology, state.pools)
        shape = (pools, kubelet, tuple((root.path, root.tree, root.levels) for root in view.be_roots))
        if shape == state.shape:
            return Outcome(state.decisions, state, until_s=math.inf)
        decisions: tuple[Decision, ...] = ()
        if pools.full and pools.full != topology.online:
            why = stages(usable_cpus=len(pools.full), online_cpus=pools.online, rule="what is not kept back")
            decisions = tuple(one for root in view.be_roots for one in _of_root(root, kubelet, pools, why))
        return Outcome(decisions, State(shape, decisions, pools), until_s=math.inf)


BE_CPUS: Final = BeCpus()


def in_force(policy: Policy) -> bool:
    """Whether suppress, were it to lend CPUs, leaves that to us."""
    if policy.slo is None or suppress.GATE not in policy.gates:
        return False
    threshold = policy.slo.threshold
    lends = threshold.enable and threshold.cpu_suppress_policy is SuppressPolicy.CPUSET
    return not lends or suppress.MANAGER_GATE in policy.gates


def keeps_back(pods: Iterable[Pod], node: NodeInfo) -> bool:
    """Whether there may be CPUs that are not for best effort."""
    if node.topology is None:
        return False
    return bool(withheld(node, node.topology)) or any(pod.qos is Qos.LSE and pod.active and pod.cpuset for pod in pods)


def _of_root(root: BeRoot, kubelet: str | None, pools: Pools, why: Why) -> Iterator[Decision]:
    """Every directory down to containers. A kubelet with the static CPU manager fails to make containers under a
    narrowed parent, so there containers only; with an unknown one none."""
    if root.tree is Tree.KUBELET and kubelet is None:
        return
    first = CONTAINER if root.tree is Tree.KUBELET and kubelet == STATIC else 0
    for depth, directory in directories(root):
        if depth < first:
            continue
        cpus = pools.full
        if depth == CONTAINER:
            usable = pools.lsr | pools.ls or pools.full  # the kubelet's own pods' CPUs are nobody else's
            cpus = pools.allocations.get(directory.rpartition("/")[0], usable) & usable or usable
        yield Decision(directory, Knob.CPUSET, cpus, why, NAME, hot=depth == 0)
