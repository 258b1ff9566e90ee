"""Best effort is kept off CPUs that are not lent at all, whatever suppress does. (spec/qos 3.5, 3.7)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.act.merge import merge
from koordlet.decide.be_cpus import BE_CPUS, State, keeps_back
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import Qos
from koordlet.model.slo import NodeSlo, SuppressPolicy
from koordlet.model.view import NodeView, Outcome, Policy
from tests.unit.decide.build import P8, ROOT, cpus, decide, flat, pinned, policy, root, usage, view

QUOTA, CPUSET = policy(), policy(SuppressPolicy.CPUSET)
OFF = replace(QUOTA, slo=NodeSlo())
POD, CONTAINER = f"{ROOT}/podb", f"{ROOT}/podb/c"
LEVELS = ((ROOT,), (POD,), (CONTAINER, f"{POD}/pause"))
EVERYWHERE = (ROOT, POD, CONTAINER, f"{POD}/pause")
BE = root(levels=LEVELS)


def seen(*pods: Pod, roots: Any = (BE,), revision: int = 1, **node: Any) -> NodeView:
    return view(0.0, 8, usage(0.0), roots, pods, revision, topology=node.pop("topology", P8), **node)


def judge(looked: NodeView, rule: Policy = OFF, state: State | None = None) -> Outcome[State]:
    return BE_CPUS.decide(looked, rule, state or BE_CPUS.initial(), looked.now_s)


def named(outcome: Outcome[State]) -> dict[str, str]:
    assert all(decision.knob is Knob.CPUSET for decision in outcome.decisions)
    return {decision.target: str(decision.value) for decision in outcome.decisions}


KEPT = [
    pytest.param((pinned(Qos.LSE, "0-1"),), {}, "2-7", id="lse"),
    pytest.param((), {"reserved_cpus": CpuSet.parse("0")}, "1-7", id="reserved"),
    pytest.param((), {"reservation_mcpu": 1500}, "2-7", id="reserved-by-amount"),
    pytest.param((), {"system_qos_cpus": CpuSet.parse("7")}, "0-6", id="system"),
    pytest.param((pinned(Qos.LSR, "0-1"),), {"reserved_cpus": CpuSet.parse("7")}, "0-6", id="lsr-is-lent"),
]


@pytest.mark.parametrize(("pods", "node", "left"), KEPT)
@pytest.mark.parametrize("rule", [OFF, QUOTA, replace(CPUSET, gates=CPUSET.gates | {"BECPUManager"})])
def test_every_directory_of_best_effort_is_held_on_the_rest(
    pods: tuple[Pod, ...], node: dict[str, Any], left: str, rule: Policy
) -> None:
    looked = seen(*pods, **node)
    assert keeps_back(pods, looked.node)
    assert named(judge(looked, rule)) == dict.fromkeys(EVERYWHERE, left)


NOTHING = [
    pytest.param((), {}, OFF, id="nothing-kept-back"),
    pytest.param((pinned(Qos.LSR, "0-1"), pinned(Qos.LS, "2")), {}, OFF, id="others-own-cpus"),
    pytest.param((pinned(Qos.LSE, "0-1", phase="Succeeded"),), {}, OFF, id="finished"),
    pytest.param((pinned(Qos.LSE, "0-7"),), {}, OFF, id="nothing-left"),
    pytest.param((pinned(Qos.LSE, "0-1"),), {}, CPUSET, id="suppress-lends-a-set"),
    pytest.param((pinned(Qos.LSE, "0-1"),), {}, replace(OFF, gates=frozenset()), id="gate-off"),
    pytest.param((pinned(Qos.LSE, "0-1"),), {}, replace(OFF, slo=None), id="no-policy"),
    pytest.param((pinned(Qos.LSE, "0-1"),), {"topology": None}, OFF, id="no-topology"),
    pytest.param((pinned(Qos.LSE, "0-1"),), {"roots": ()}, OFF, id="no-root"),
    pytest.param((pinned(Qos.LSE, "0-1"),), {"kubelet_policy": None}, OFF, id="kubelets-policy-unknown"),
]


@pytest.mark.parametrize(("pods", "node", "rule"), NOTHING)
def test_nothing_is_named(pods: tuple[Pod, ...], node: dict[str, Any], rule: Policy) -> None:
    assert judge(seen(*pods, **node), rule).decisions == ()


def test_a_static_kubelet_must_be_able_to_make_containers_so_only_these_are_held() -> None:
    ours = root(path="batch.slice", tree=Tree.OURS)
    looked = seen(pinned(Qos.LSE, "0-1"), roots=(BE, ours), kubelet_policy="static")
    assert named(judge(looked)) == dict.fromkeys((CONTAINER, f"{POD}/pause", "batch.slice"), "2-7")


def test_a_be_pods_own_cpus_stay_within() -> None:
    own = pinned(Qos.BE, "1-2", cgroup=POD)
    assert named(judge(seen(pinned(Qos.LSE, "0-1"), own)))[CONTAINER] == "2"
    outside = pinned(Qos.BE, "0-1", cgroup=POD)
    assert named(judge(seen(pinned(Qos.LSE, "0-1"), outside)))[CONTAINER] == "2-7"


def test_the_same_tuple_while_nothing_changes_and_none_when_it_is_over() -> None:
    first = judge(seen(pinned(Qos.LSE, "0-1")))
    again = judge(seen(pinned(Qos.LSE, "0-1")), state=first.state)
    assert again.decisions is first.decisions
    assert again.state is first.state
    assert judge(seen(revision=2), state=again.state).decisions == ()


def test_suppress_by_cpuset_counts_a_reservation_by_amount_too() -> None:
    looked = view(0.0, 8, usage(0.0), (root(cpuset="0-7"),), topology=flat(8), reservation_mcpu=2000)
    lent = CpuSet.parse(cpus(decide(looked, CPUSET)) or "")
    assert lent
    assert not lent & CpuSet((0, 1))


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.sampled_from([OFF, QUOTA, CPUSET]))
def test_no_policy_lets_best_effort_onto_what_is_kept_back(lse: set[int], reserved: set[int], rule: Policy) -> None:
    pods = (replace(pinned(Qos.LSE, "0"), cpuset=CpuSet(lse)),) if lse else ()
    looked = seen(*pods, roots=(replace(BE, cpuset=CpuSet(range(8))),), reserved_cpus=CpuSet(reserved))
    lent = merge({"suppress": decide(looked, rule).decisions, "be_cpus": judge(looked, rule).decisions}).decisions
    kept, left = CpuSet(lse | reserved), CpuSet(set(range(8)) - lse - reserved)
    for target in EVERYWHERE:
        decision = lent.get((target, Knob.CPUSET))
        if kept and left:
            assert decision is not None
            assert isinstance(decision.value, CpuSet)
            assert not decision.value & kept
