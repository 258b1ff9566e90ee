"""Identity of best-effort groups: the weight that protects the online side without any loop. Pure.

Who owns the level at which BE and online groups are siblings decides how (docs/decisions.md):
our own trees get cpu.idle, a kubelet's QoS root keeps the least weight (which the kubelet itself gives it, and
which we verify), kernels with cpu.bvt_warp_ns get the reference's values. Pods are podrules/group_identity.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Tree
from koordlet.model.slo import CpuQos, NodeSlo
from koordlet.model.support import Support
from koordlet.model.units import SHARES_MIN
from koordlet.model.view import BeRoot, NodeView, Outcome, Policy
from koordlet.model.why import stages

NAME: Final = "identity"

_FAULT_SCHED_IDLE: Final = (
    "beClass.cpuQOS.schedIdle=1 is not written to a kubelet's QoS root, whose own update would fail;"
    " the option idle-on-be-pods puts it on BE pods, beside a kubelet while NRI is connected"
)


@dataclass(frozen=True, slots=True)
class State:
    """shape: what the decisions were built from; equal shape gives the same decisions."""

    shape: tuple[object, ...] = ()
    decisions: tuple[Decision, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    """What this machine and this policy allow. bvt: None when the kernel has none or no class asks for it."""

    weights: bool
    idle: bool
    bvt: tuple[int, int] | None


class Identity:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        if not policy.identity:
            return Outcome((), State(), until_s=math.inf)
        rule = _rule(view.support, policy)
        shape = (rule, tuple((root.path, root.tree) for root in view.be_roots))
        faults = _faults(view, policy)
        notes = tuple(fault for fault in faults if fault not in state.faults)
        if shape == state.shape and faults == state.faults:
            return Outcome(state.decisions, state, until_s=math.inf)
        decisions = tuple(decision for root in view.be_roots for decision in _of_root(root, rule))
        return Outcome(decisions, State(shape, decisions, faults), notes=notes, until_s=math.inf)


IDENTITY: Final = Identity()


def _rule(support: Support, policy: Policy) -> _Rule:
    slo = policy.slo or NodeSlo()
    bvt = None
    classes = (slo.lsr_cpu, slo.ls_cpu, slo.be_cpu)
    if support.has(Knob.CPU_BVT) and any(qos.enable for qos in classes):
        bvt = (_group_identity(slo.ls_cpu), _group_identity(slo.be_cpu))
    idle = support.has(Knob.CPU_IDLE)
    return _Rule(
        weights=not neutral(slo),
        # cpu.idle and a bvt of the same group would be two answers to one question.
        idle=idle and bvt is None,
        bvt=bvt,
    )


def neutral(slo: NodeSlo) -> bool:
    """beClass.cpuQOS.enable=false is the default and so cannot mean off; an explicit neutral class does."""
    return slo.be_cpu.enable and slo.be_cpu.group_identity == 0 and slo.be_cpu.sched_idle == 0


def _group_identity(qos: CpuQos) -> int:
    return qos.group_identity if qos.enable else 0


def _of_root(root: BeRoot, rule: _Rule) -> list[Decision]:
    decisions: list[Decision] = []
    if rule.weights:
        decisions.append(_weight(root, rule))
    if rule.bvt is not None:
        decisions += _bvt(root, *rule.bvt)
    return decisions


def _weight(root: BeRoot, rule: _Rule) -> Decision:
    """cpu.idle on a root of ours, else the least shares. Never both: writing a weight to an idle group is EINVAL."""
    if root.tree is Tree.KUBELET:
        why = stages(tree=root.tree.value, weight="kubelet's own weight, verified")
        return Decision(root.path, Knob.CPU_SHARES, SHARES_MIN, why, NAME, hot=True)
    if rule.idle:
        why = stages(tree=root.tree.value, idle="runs only when nobody else wants the CPU")
        return Decision(root.path, Knob.CPU_IDLE, 1, why, NAME, hot=True)
    why = stages(tree=root.tree.value, weight="least weight in place of cpu.idle")
    return Decision(root.path, Knob.CPU_SHARES, SHARES_MIN, why, NAME, hot=True)


def _bvt(root: BeRoot, ls: int, be: int) -> list[Decision]:
    """Values of the QoS directories as the reference sets them: BE root, its burstable sibling, 0 for their parent."""
    why = stages(tree=root.tree.value, group_identity_ls=ls, group_identity_be=be)
    decisions = [Decision(root.path, Knob.CPU_BVT, be, why, NAME, hot=True)]
    parent, slash, leaf = root.path.rpartition("/")
    if root.tree is Tree.KUBELET and slash and "besteffort" in leaf:
        decisions.append(Decision(f"{parent}/{leaf.replace('besteffort', 'burstable')}", Knob.CPU_BVT, ls, why, NAME))
        decisions.append(Decision(parent, Knob.CPU_BVT, 0, why, NAME))
    return decisions


def _faults(view: NodeView, policy: Policy) -> tuple[str, ...]:
    asked = policy.slo is not None and policy.slo.be_cpu.enable and policy.slo.be_cpu.sched_idle == 1
    kubelet = any(root.tree is Tree.KUBELET for root in view.be_roots)
    return (_FAULT_SCHED_IDLE,) if asked and kubelet and not policy.idle_on_be_pods else ()
