"""Quotas of groups below a capped root: the kernel (v1) refuses a parent below a child, so they make room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordlet.decide.suppress import SUPPRESS, State
from koordlet.model.knob import Knob
from koordlet.model.pod import PodSet, Tree
from koordlet.model.slo import NodeSlo, SuppressPolicy, Threshold
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Policy, Reading, Usage

POLICY = Policy(
    slo=NodeSlo(threshold=Threshold(enable=True, cpu_suppress_policy=SuppressPolicy.CFS_QUOTA)),
    gates=frozenset({"BECPUSuppress"}),
)
LEVELS = (("be",), ("be/a", "be/b"), ("be/a/c",))


def view(root: BeRoot, at_s: float, used_mcpu: int) -> NodeView:
    reading = Reading(float(used_mcpu), at_s)
    zero = Reading(0.0, at_s)
    return NodeView(
        now_s=at_s,
        node=NodeInfo(capacity_mcpu=10_000),
        usage=Usage(reading, reading, reading, zero, zero, zero, zero),
        pods=PodSet((), 1, at_s),
        be_roots=(root,),
    )


def quotas(state: State) -> dict[str, int]:
    return {d.target: int(d.value) for d in state.decisions if d.knob is Knob.CPU_QUOTA}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tree", "at_500_ms", "at_300_ms"),
    [(Tree.KUBELET, {"be/a": -1, "be/a/c": -1}, {"be/a": -1, "be/a/c": -1}),
     (Tree.OURS, {"be/a": 500_000, "be/a/c": 400_000}, {"be/a": 300_000, "be/a/c": 300_000})],
)  # fmt: skip
def test_children_make_room(tree: Tree, at_500_ms: dict[str, int], at_300_ms: dict[str, int]) -> None:
    root = BeRoot("be", tree, LEVELS, quota_us=-1, child_quotas=(("be/a", 900_000), ("be/a/c", 400_000)))
    state = SUPPRESS.decide(view(root, 1.0, 1_500), POLICY, SUPPRESS.initial(), 1.0).state
    assert quotas(state) == {"be": 500_000, **at_500_ms}

    # Now the kernel shows ours; what the groups had before is remembered.
    seen = tuple((path, us) for path, us in at_500_ms.items() if us > 0)
    root = replace(root, quota_us=500_000, child_quotas=seen)
    state = SUPPRESS.decide(view(root, 2.0, 3_500), POLICY, state, 2.0).state
    assert quotas(state) == {"be": 300_000, **at_300_ms}


def test_a_group_that_went_away_is_forgotten() -> None:
    root = BeRoot("be", Tree.KUBELET, LEVELS, quota_us=-1, child_quotas=(("be/b", 50_000),))
    state = SUPPRESS.decide(view(root, 1.0, 1_500), POLICY, SUPPRESS.initial(), 1.0).state
    assert quotas(state) == {"be": 500_000, "be/b": -1}
    root = replace(root, levels=(("be",), ("be/a",), ()), quota_us=500_000, child_quotas=())
    state = SUPPRESS.decide(view(root, 2.0, 1_500), POLICY, state, 2.0).state
    assert quotas(state) == {"be": 500_000}
