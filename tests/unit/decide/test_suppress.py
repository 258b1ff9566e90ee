"""The suppress strategy over several ticks: off, freshness, what it tells, from one knob to the other."""

from __future__ import annotations

import dataclasses

import pytest

from koordlet.decide import suppress
from koordlet.decide.strategies import STRATEGIES
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.slo import NodeSlo
from koordlet.model.view import NodeView, Policy, Reading, Usage
from tests.unit.decide.build import (
    CPUSET,
    QUOTA,
    ROOT,
    T16,
    decide,
    follow,
    policy,
    quota,
    root,
    steady,
    usage,
    view,
)


def test_the_strategies_stand_in_one_tuple() -> None:
    names = [strategy.name for strategy in STRATEGIES]
    assert names[:2] == ["identity", "suppress"]
    assert len(set(names)) == len(names)


OFF = [
    pytest.param(Policy(), id="no-policy-at-all"),
    pytest.param(Policy(slo=NodeSlo(), gates=frozenset({"BECPUSuppress"})), id="not-enabled"),
    pytest.param(dataclasses.replace(policy(), gates=frozenset()), id="gate-off"),
    pytest.param(
        dataclasses.replace(policy(), gates=frozenset({"BECPUSuppress", "BECPUManager"})), id="be-cpu-manager"
    ),
]


@pytest.mark.parametrize("rule", OFF)
def test_off_names_nothing_and_forgets(rule: Policy) -> None:
    on = steady()
    off = follow(view(1.0, 16, usage(1.0, nonbe=4)), on, rule)
    assert (off.decisions, off.plan, off.notes, off.state) == ((), None, (), suppress.SUPPRESS.initial())


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(1.0, 16, usage(1.0), roots=()), id="no-be-root"),
        pytest.param(view(1.0, None, usage(1.0)), id="no-capacity"),
        pytest.param(view(1.0, 0, usage(1.0)), id="zero-capacity"),
        pytest.param(view(1.0, 16, Usage()), id="no-usage"),
        pytest.param(view(99.0, 16, usage(1.0)), id="first-usage-is-old"),
        pytest.param(view(1.0, 16, usage(1.0), (root(None),)), id="quota-unreadable"),
    ],
)
def test_nothing_starts_before_its_inputs_exist(seen: NodeView) -> None:
    assert decide(seen, policy()).decisions == ()


def test_without_pods_the_quota_still_works() -> None:
    used = Usage(node_mcpu=Reading(3000, 0.0))
    assert quota(decide(view(0.0, 16, used), policy())) == 740_000


def test_cpuset_needs_a_topology_and_says_so_once() -> None:
    first = decide(view(0.0, 16, usage(0.0), (root(cpuset="0-15"),)), policy(CPUSET))
    second = follow(view(1.0, 16, usage(1.0), (root(cpuset="0-15"),)), first, policy(CPUSET))
    assert (first.decisions, len(first.notes), second.notes) == ((), 1, ())


# Freshness


def test_old_readings_freeze_then_fall_to_the_floor_and_recover_step_by_step() -> None:
    rule = policy()
    outcome = steady()
    assert quota(outcome) == 640_000
    used = usage(0.0, nonbe=4)
    frozen = follow(view(3.5, 16, used), outcome, rule)
    assert frozen.decisions is outcome.decisions
    assert (len(frozen.notes), frozen.plan) == (1, None)
    still = follow(view(15.0, 16, used), frozen, rule)
    assert (still.decisions is outcome.decisions, still.notes) == (True, ())
    floor = follow(view(15.5, 16, used), still, rule)
    assert (quota(floor), len(floor.notes), floor.plan) == (160_000, 1, None)
    later = follow(view(60.0, 16, used), floor, rule)
    assert (later.decisions is floor.decisions, later.notes) == (True, ())
    reached = []
    for second in range(61, 66):
        later = follow(view(second, 16, usage(second, nonbe=4)), later, rule)
        reached.append(quota(later))
    assert reached == [320_000, 480_000, 640_000, 640_000, 640_000]


def test_readings_that_vanish_age_like_readings_that_stand_still() -> None:
    outcome = steady()
    assert quota(follow(view(10.0, 16, Usage()), outcome, policy())) == 640_000
    assert quota(follow(view(16.0, 16, Usage()), outcome, policy())) == 160_000


@pytest.mark.parametrize(
    ("minimum", "nonbe", "expected"),
    [
        pytest.param(None, 4, 160_000, id="policy-floor-10-percent"),
        pytest.param(25, 4, 400_000, id="nodeslo-minimum"),
        pytest.param(None, 10, 40_000, id="never-above-what-be-has"),
    ],
)
def test_the_safe_floor(minimum: int | None, nonbe: float, expected: int) -> None:
    rule = policy(minimum=minimum)
    used = usage(0.0, nonbe=nonbe)
    outcome = decide(view(0.0, 16, used), rule)
    assert quota(follow(view(20.0, 16, used), outcome, rule)) == expected


def test_the_oldest_part_counts() -> None:
    """A node reading that goes on while the pods' stands still is no fresh picture."""
    outcome = steady()
    used = dataclasses.replace(usage(20.0, nonbe=0), nonbe_pods_mcpu=Reading(4000, 0.0))
    assert quota(follow(view(20.0, 16, used), outcome, policy())) == 160_000


def test_cpuset_falls_to_its_floor_inside_what_it_holds() -> None:
    rule = policy(CPUSET)
    used = usage(0.0, nonbe=4)
    first = decide(view(0.0, 16, used, (root(cpuset="0-15"),), topology=T16), rule)
    floor = follow(view(20.0, 16, used, (root(),), topology=T16), first, rule)
    assert len(first.state.cpus or ()) == 7
    assert floor.state.cpus == CpuSet.parse("0,8")


# What is asked for, and how it is told


def test_why_names_every_stage_with_its_number() -> None:
    seen = view(0.0, 16, usage(0.0, nonbe=9, hosts=1, system=0.5), (root(50_000),), reserved_mcpu=1000)
    (decision,) = decide(seen, policy(minimum=10)).decisions
    assert decision.why == (
        ("capacity_mcpu", 16_000),
        ("ceiling_mcpu", 10_400),
        ("nonbe_pods_mcpu", 9_000),
        ("nonbe_hosts_mcpu", 1_000),
        ("system_mcpu", 1_000),
        ("demand_mcpu", 11_000),
        ("target_mcpu", -600),
        ("floored_mcpu", 1_600),
        ("old_us", 50_000),
        ("slewed_us", 160_000),
        ("policy", "cfsQuota"),
        ("rule", "grow"),
    )
    assert (decision.knob, decision.target, decision.hot, decision.owner) == (Knob.CPU_QUOTA, ROOT, True, "suppress")


def test_gauges() -> None:
    assert steady().gauges == (
        ("be_suppress_cpu_cores", (("type", "cfsQuota"),), 6.4),
        ("be_suppress_ls_used_cpu_cores", (), 4.0),
    )


def test_be_work_that_no_pod_claims_is_not_billed_to_the_system_f09() -> None:
    """Node 9, LS 3; the BE root used 5 but its pods were not read: 1 core is the system's, not 6."""
    used = Usage(
        node_mcpu=Reading(9000, 0.0),
        pods_mcpu=Reading(3000, 0.0),
        nonbe_pods_mcpu=Reading(3000, 0.0),
        be_mcpu=Reading(5000, 0.0),
    )
    assert quota(decide(view(0.0, 16, used), policy())) == 640_000


def test_changing_the_policy_moves_from_one_knob_to_the_other() -> None:
    both = view(1.0, 16, usage(1.0, nonbe=4.4), (root(cpuset="0-15"),), topology=T16)
    outcome = follow(both, steady(nonbe=4.4), policy(CPUSET))
    assert {d.knob for d in outcome.decisions} == {Knob.CPUSET}
    back = follow(dataclasses.replace(both, now_s=2.0, usage=usage(2.0, nonbe=4.4)), outcome, policy())
    assert {d.knob for d in back.decisions} == {Knob.CPU_QUOTA}


def test_the_quota_stays_until_the_cpuset_can_be_chosen() -> None:
    """Leaving cfsQuota while no topology is known must not leave BE without any cap."""
    outcome = steady()
    assert follow(view(1.0, 16, usage(1.0, nonbe=4)), outcome, policy(CPUSET)).decisions is outcome.decisions


def test_a_steady_tick_returns_the_same_objects() -> None:
    levels = ((ROOT,), tuple(f"{ROOT}/pod{i}" for i in range(50)), tuple(f"{ROOT}/pod{i}/c" for i in range(50)))
    for rule in (policy(), policy(CPUSET)):
        outcome = decide(view(0.0, 16, usage(0.0, nonbe=4), (root(cpuset="0-15", levels=levels),), topology=T16), rule)
        seen = view(1.0, 16, usage(1.0, nonbe=4.02), (root(cpuset="0-15", levels=levels),), topology=T16)
        assert follow(seen, outcome, rule).decisions is outcome.decisions


def test_that_the_first_tick_has_no_rate_is_no_fault_that_the_second_has_none_is() -> None:
    seen = view(0.0, 8, Usage(), (root(),))
    first = decide(seen, policy(QUOTA))
    assert first.notes == ()
    second = decide(seen, policy(QUOTA), first.state)
    assert second.notes == ("node CPU usage was never read: BE CPU suppress waits",)
    assert decide(seen, policy(QUOTA), second.state).notes == ()
