"""Identity: one weight per BE root, by who owns the sibling level (docs/decisions.md)."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.decide.identity import IDENTITY, State
from koordlet.model.knob import Knob
from koordlet.model.pod import Tree
from koordlet.model.slo import CpuQos, NodeSlo
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import BeRoot, NodeView, Outcome, Policy

KUBELET = BeRoot("kubepods/besteffort", Tree.KUBELET, levels=(("kubepods/besteffort",), ("kubepods/besteffort/podb",)))
OURS = BeRoot("batch.slice", Tree.OURS, levels=(("batch.slice",), ("batch.slice/job",)))


def support(*names: str) -> Support:
    return Support({name: Capability(name, Level.NATIVE, "probed") for name in names})


def decide(*roots: BeRoot, has: tuple[str, ...] = (), state: State | None = None, **policy: Any) -> Outcome[State]:
    view = NodeView(now_s=1.0, be_roots=roots, support=support(*has))
    return IDENTITY.decide(view, Policy(**policy), state or IDENTITY.initial(), 1.0)


def wanted(outcome: Outcome[State]) -> set[tuple[str, Knob, Any]]:
    return {(d.target, d.knob, d.value) for d in outcome.decisions}


def be(**qos: int) -> NodeSlo:
    return NodeSlo(be_cpu=CpuQos(enable=True, **qos))


BE_WEIGHT = ("kubepods/besteffort", Knob.CPU_SHARES, 2)
OUR_IDLE = ("batch.slice", Knob.CPU_IDLE, 1)
OUR_WEIGHT = ("batch.slice", Knob.CPU_SHARES, 2)

TABLE = [
    pytest.param((OURS,), ("cpu.idle",), {}, {OUR_IDLE}, id="ours-idle"),
    pytest.param((OURS,), (), {}, {OUR_WEIGHT}, id="ours-without-idle-least-weight"),
    pytest.param((KUBELET,), ("cpu.idle",), {}, {BE_WEIGHT}, id="kubelet-weight-verified-never-idle"),
    pytest.param((KUBELET, OURS), ("cpu.idle",), {}, {BE_WEIGHT, OUR_IDLE}, id="hybrid"),
    pytest.param((KUBELET,), ("cpu.idle",), {"idle_on_be_pods": True}, {BE_WEIGHT}, id="pods-are-podrules"),
    pytest.param((OURS,), ("cpu.idle",), {"idle_on_be_pods": True}, {OUR_IDLE}, id="option-is-for-kubelet-trees"),
    pytest.param((KUBELET, OURS), ("cpu.idle",), {"identity": False}, set(), id="off-by-option"),
    pytest.param((KUBELET, OURS), ("cpu.idle",), {"slo": be()}, set(), id="off-by-explicit-neutral-class"),
    pytest.param((OURS,), ("cpu.idle",), {"slo": NodeSlo()}, {OUR_IDLE}, id="disabled-class-is-the-default-not-off"),
    pytest.param((OURS,), ("cpu.idle",), {"slo": be(group_identity=-1)}, {OUR_IDLE}, id="enabled-class"),
    pytest.param((), ("cpu.idle",), {}, set(), id="no-root"),
]


@pytest.mark.parametrize(("roots", "has", "policy", "expected"), TABLE)
def test_identity(roots: tuple[BeRoot, ...], has: tuple[str, ...], policy: dict[str, Any], expected: set[Any]) -> None:
    outcome = decide(*roots, has=has, **policy)
    assert wanted(outcome) == expected
    assert all(d.hot for d in outcome.decisions if d.target in ("kubepods/besteffort", "batch.slice"))


@pytest.mark.parametrize("root", [KUBELET, OURS])
@pytest.mark.parametrize("has", [(), ("cpu.idle",), ("cpu.bvt_warp_ns",), ("cpu.idle", "cpu.bvt_warp_ns")])
@pytest.mark.parametrize("idle_on_be_pods", [False, True])
@pytest.mark.parametrize("slo", [None, be(group_identity=-1), be(group_identity=-1, sched_idle=1)])
def test_no_target_gets_both_idle_and_a_weight(
    root: BeRoot, has: tuple[str, ...], idle_on_be_pods: bool, slo: NodeSlo | None
) -> None:
    outcome = decide(root, has=has, idle_on_be_pods=idle_on_be_pods, slo=slo)
    knobs: dict[str, list[Knob]] = {}
    for decision in outcome.decisions:
        knobs.setdefault(decision.target, []).append(decision.knob)
    for target, named in knobs.items():
        assert not {Knob.CPU_IDLE, Knob.CPU_SHARES} <= set(named)
        assert len(named) == len(set(named))
        assert not (root.tree is Tree.KUBELET and target == root.path and Knob.CPU_IDLE in named)


def test_kernels_with_bvt_get_the_values_of_the_nodeslo() -> None:
    slo = NodeSlo(ls_cpu=CpuQos(enable=True, group_identity=2), be_cpu=CpuQos(enable=True, group_identity=-1))
    assert wanted(decide(KUBELET, OURS, has=("cpu.idle", "cpu.bvt_warp_ns"), slo=slo)) == {
        BE_WEIGHT,
        ("kubepods/besteffort", Knob.CPU_BVT, -1),
        ("kubepods/burstable", Knob.CPU_BVT, 2),
        ("kubepods", Knob.CPU_BVT, 0),
        OUR_WEIGHT,
        ("batch.slice", Knob.CPU_BVT, -1),
    }


def test_bvt_names_of_the_systemd_driver() -> None:
    root = BeRoot("kubepods.slice/kubepods-besteffort.slice", Tree.KUBELET)
    outcome = decide(root, has=("cpu.bvt_warp_ns",), slo=be(group_identity=-1))
    named = {d.target: d.value for d in outcome.decisions if d.knob is Knob.CPU_BVT}
    assert named == {root.path: -1, "kubepods.slice/kubepods-burstable.slice": 0, "kubepods.slice": 0}


def test_bvt_is_not_touched_while_no_class_asks_for_it() -> None:
    assert wanted(decide(KUBELET, has=("cpu.bvt_warp_ns",))) == {BE_WEIGHT}


def test_sched_idle_is_explained_once_where_it_cannot_be_honoured() -> None:
    slo = be(group_identity=-1, sched_idle=1)
    first = decide(KUBELET, has=("cpu.idle",), slo=slo)
    assert len(first.notes) == 1
    assert "schedIdle" in first.notes[0]
    assert decide(KUBELET, has=("cpu.idle",), slo=slo, state=first.state).notes == ()
    assert decide(KUBELET, has=("cpu.idle",), slo=slo, idle_on_be_pods=True).notes == ()


def test_an_unchanged_world_gives_the_same_objects() -> None:
    first = decide(KUBELET, OURS, has=("cpu.idle",), idle_on_be_pods=True)
    again = decide(KUBELET, OURS, has=("cpu.idle",), idle_on_be_pods=True, state=first.state)
    assert again.decisions is first.decisions
