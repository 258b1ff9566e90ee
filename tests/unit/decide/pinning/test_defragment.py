"""Placing declared workloads anew: only when asked, only for a gain, and as few as can be."""

from __future__ import annotations

from dataclasses import replace

from koordlet.decide.pinning.assign import assign
from koordlet.decide.pinning.defragment import Plan, make_plan
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import BindPolicy, NumaPolicy, PinRequest
from koordlet.model.view import NodeInfo
from tests.unit.decide.pinning.test_assign import NODE, offline, workload

SINGLE = PinRequest(BindPolicy.FULL_PCPUS, numa=NumaPolicy.SINGLE)


def moves(plan: Plan) -> dict[str, tuple[str, str]]:
    return {move.name.removeprefix("local/"): (str(move.before or ""), str(move.after or "")) for move in plan.moves}


def after_a_while() -> tuple[list, dict]:
    """Eight workloads of a core each on 2 x 4 cores, alternating between the nodes; every second pair has left."""
    everybody = [workload(name, 2) for name in "abcdefgh"]
    held = assign(everybody, {}, NODE).held
    left = [pod for pod in everybody if pod.name in "efgh"]
    return left, dict(assign(left, held, NODE).held)


def test_nobody_moves_for_nothing() -> None:
    pods, held = after_a_while()
    plan = make_plan(pods, held, NODE)
    assert plan.moves == ()
    assert plan.held == held
    assert plan.before == plan.after


def test_a_refused_workload_gets_its_node_and_only_those_in_the_way_move() -> None:
    pods, held = after_a_while()
    big = workload("big", 6, pin=SINGLE)
    now = assign([*pods, big], held, NODE)
    assert now.refused
    plan = make_plan([*pods, big], now.held, NODE)
    assert plan.before.missing_cpus == 6
    assert plan.after.missing_cpus == 0
    assert "big" in moves(plan)
    assert len(plan.moves) == 2  # it, and one of the two on its node
    assert {len(pin.cpus) for uid, pin in plan.held.items() if uid != "big"} == {2}


def test_a_workload_on_two_nodes_comes_home() -> None:
    pods, held = after_a_while()
    big = workload("big", 6)
    now = assign([*pods, big], held, NODE)
    assert not now.refused
    plan = make_plan([*pods, big], now.held, NODE)
    assert (plan.before.spanned_nodes, plan.after.spanned_nodes) == (6, 5)
    assert len(plan.moves) == 2


def test_who_must_stay_stays_and_the_others_move_around_it() -> None:
    pods, held = after_a_while()
    big = workload("big", 6, pin=SINGLE)
    for name in "efgh":
        plan = make_plan([*pods, big], held, NODE, fixed=frozenset({name}))
        assert name not in moves(plan)
        assert "big" in moves(plan)
    assert make_plan([*pods, big], held, NODE, fixed=frozenset("efgh")).moves == ()


def test_cpus_that_went_offline_are_made_up_for() -> None:
    first = assign([workload("a", 4)], {}, NODE)
    plan = make_plan([workload("a", 4)], first.held, offline(1))
    assert plan.before.missing_cpus == 1
    assert moves(plan) == {"a": ("0-1,8-9", "4-5,12-13")}


def test_others_cpus_are_taken_already() -> None:
    pods, held = after_a_while()
    big = workload("big", 6, pin=SINGLE)
    other = replace(workload("other", 2), cpuset=CpuSet.parse("0,4,8,12"), pin=None)
    plan = make_plan([*pods, big], held, replace(NODE, reserved_cpus=CpuSet.parse("1,9,5,13")), [other])
    assert plan.moves == ()  # two whole cores are left per node, three are wanted


def test_a_workload_that_asks_for_what_cannot_be_keeps_its_place() -> None:
    held = assign([workload("odd", 2), workload("b", 4)], {}, NODE).held
    odd = replace(workload("odd", 2), containers=(workload("odd", 1).containers[0],))
    odd = replace(odd, pin=PinRequest(BindPolicy.FULL_PCPUS, required=True))  # 1 CPU, whole cores only
    plan = make_plan([odd, workload("b", 4)], held, NODE)
    assert "odd" not in moves(plan)
    assert plan.held["odd"] == held["odd"]


def test_the_id_is_of_the_moves_and_without_a_topology_there_are_none() -> None:
    pods, held = after_a_while()
    big = workload("big", 6)
    now = assign([*pods, big], held, NODE).held
    assert make_plan([*pods, big], now, NODE).id == make_plan([big, *pods], dict(reversed(now.items())), NODE).id
    assert make_plan([*pods, big], now, NODE).id != make_plan(pods, now, NODE).id
    assert make_plan(pods, held, NodeInfo()) == Plan()
