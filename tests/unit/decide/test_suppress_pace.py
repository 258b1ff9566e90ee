"""The suppress strategy over several ticks: growth by time, a surge, pressure, the plan for the sentinel."""

from __future__ import annotations

import dataclasses

import pytest

from koordlet.model.view import NodeView, Policy, Reading, SurgePlan
from tests.unit.decide.build import (
    CPUSET,
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

# Growth


def test_calls_between_two_samples_do_not_grow() -> None:
    rule = policy(percent=100)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4), (root(100_000),)), rule)
    assert quota(outcome) == 260_000
    for now_s in (0.1, 0.5, 0.99):
        outcome = follow(view(now_s, 16, usage(0.0, nonbe=4)), outcome, rule)
        assert quota(outcome) == 260_000
    assert quota(follow(view(1.0, 16, usage(1.0, nonbe=4)), outcome, rule)) == 420_000


def test_samples_closer_than_an_interval_do_not_grow_either() -> None:
    rule = policy(percent=100)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4), (root(100_000),)), rule)
    outcome = follow(view(0.5, 16, usage(0.5, nonbe=4)), outcome, rule)
    assert quota(outcome) == 260_000


def test_a_reset_to_unlimited_is_re_applied_without_the_ramp_f06() -> None:
    outcome = steady()
    reset = decide(view(1.0, 16, usage(1.0, nonbe=4), (root(-1),)), policy(), outcome.state)
    assert quota(reset) == 640_000


def test_a_quota_narrowed_by_hand_grows_back_a_tenth_per_tick() -> None:
    outcome = steady()
    narrowed = decide(view(1.0, 16, usage(1.0, nonbe=4), (root(100_000),)), policy(), outcome.state)
    assert quota(narrowed) == 260_000


def test_a_quota_widened_by_hand_is_corrected() -> None:
    outcome = steady()
    assert quota(decide(view(1.0, 16, usage(1.0, nonbe=4), (root(1_600_000),)), policy(), outcome.state)) == 640_000


@pytest.mark.parametrize("kernel", ["0-1", "0-15"])
def test_a_foreign_cpuset_is_corrected_on_the_next_tick(kernel: str) -> None:
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4.4), (root(cpuset="0-15"),), topology=T16), rule)
    again = decide(view(1.0, 16, usage(1.0, nonbe=4.4), (root(cpuset=kernel),), topology=T16), rule, outcome.state)
    assert again.decisions is outcome.decisions


def test_a_small_gain_after_a_shrink_waits_two_minutes() -> None:
    rule = policy()
    outcome = follow(view(1.0, 16, usage(1.0, nonbe=4.5)), steady(), rule)
    assert quota(outcome) == 590_000
    for second in range(2, 121):
        outcome = follow(view(second, 16, usage(second, nonbe=4.0)), outcome, rule)
        assert quota(outcome) == 590_000
    # What was safe all that time: the short average still stood at 4.125 cores in the tick after the shrink.
    assert quota(follow(view(121.5, 16, usage(121.5, nonbe=4.0)), outcome, rule)) == 627_500


def test_a_large_gain_after_a_shrink_does_not_wait() -> None:
    rule = policy()
    outcome = follow(view(1.0, 16, usage(1.0, nonbe=8)), steady(), rule)
    assert quota(outcome) == 240_000
    assert quota(follow(view(2.0, 16, usage(2.0, nonbe=4)), outcome, rule)) == 400_000


def test_demand_is_the_larger_of_last_and_short_average() -> None:
    """LS 8 then 4 cores: average 6, then 5, 4.5, ...; target 10.4 less that."""
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=8)), policy())
    reached = []
    for second in range(1, 5):
        outcome = follow(view(second, 16, usage(second, nonbe=4)), outcome, policy())
        reached.append(quota(outcome))
    assert reached == [400_000, 540_000, 590_000, 615_000]


# Surge and pressure between ticks


def test_a_surge_shrinks_at_once_and_is_held_two_intervals() -> None:
    rule = policy()
    outcome = steady()
    used = dataclasses.replace(usage(0.0, nonbe=4), surge_mcpu=Reading(9000, 0.3))
    outcome = follow(view(0.3, 16, used), outcome, rule)
    assert quota(outcome) == 140_000
    held = dataclasses.replace(usage(1.0, nonbe=4), surge_mcpu=Reading(9000, 0.3))
    outcome = follow(view(1.0, 16, held), outcome, rule)
    assert quota(outcome) == 140_000
    old = dataclasses.replace(usage(3.0, nonbe=4), surge_mcpu=Reading(9000, 0.3))
    assert quota(follow(view(3.0, 16, old), outcome, rule)) == 300_000


def test_a_surge_within_the_margin_changes_nothing() -> None:
    used = dataclasses.replace(usage(0.0, nonbe=4), surge_mcpu=Reading(5600, 0.3))
    outcome = steady()
    assert follow(view(0.3, 16, used), outcome, policy()).decisions is outcome.decisions


def pressed(now_s: float, permyriad: float, sample_s: float = 0.0) -> NodeView:
    used = dataclasses.replace(usage(sample_s, nonbe=4), ls_pressure_permyriad=Reading(permyriad, now_s))
    return view(now_s, 16, used)


def test_pressure_cuts_a_tenth_of_the_node_each_100_ms() -> None:
    outcome = steady()
    reached = []
    for now_s in (0.20, 0.25, 0.31, 0.42):
        outcome = follow(pressed(now_s, 3000), outcome, policy())
        reached.append(quota(outcome))
    assert reached == [480_000, 480_000, 320_000, 160_000]


def test_pressure_below_the_plan_or_old_cuts_nothing() -> None:
    outcome = steady()
    assert quota(follow(pressed(0.2, 2000), outcome, policy())) == 640_000
    used = dataclasses.replace(usage(2.0, nonbe=4), ls_pressure_permyriad=Reading(9000, 0.5))
    assert quota(follow(view(2.0, 16, used), outcome, policy())) == 640_000


def test_pressure_never_cuts_below_the_floor() -> None:
    rule = policy(minimum=30)
    outcome = steady(rule=rule)
    for tenth in range(2, 9):
        outcome = follow(pressed(tenth * 0.11, 3000), outcome, rule)
    assert quota(outcome) == 480_000


def test_growth_waits_ten_seconds_after_a_cut() -> None:
    outcome = follow(pressed(0.2, 3000), steady(), policy())
    for second in range(1, 11):
        outcome = follow(pressed(second, 0, second), outcome, policy())
        assert quota(outcome) == 480_000
    assert quota(follow(pressed(11.0, 0, 11.0), outcome, policy())) == 640_000


def test_pressure_that_cuts_do_not_relieve_is_not_bes_doing() -> None:
    """An online pod throttled by its own limit: cuts down to the floor, one note, then growth as if there were none."""
    outcome = steady()
    notes: list[str] = []
    for tenth in range(1, 10):
        outcome = follow(pressed(tenth * 0.105, 9000), outcome, policy())
        notes += outcome.notes
    assert len(notes) == 1
    low = quota(outcome)
    assert low is not None
    for second in range(1, 4):
        outcome = follow(pressed(second, 9000, second), outcome, policy())
    grown = quota(outcome)
    assert grown is not None
    assert grown > low


def test_five_cuts_without_relief_are_enough_to_know() -> None:
    outcome = steady(rule=policy(percent=100))
    assert quota(outcome) == 1_200_000
    for tenth in range(1, 10):
        outcome = follow(pressed(tenth * 0.105, 9000), outcome, policy(percent=100))
    assert quota(outcome) == 400_000


def test_the_plan_says_when_the_allowance_would_be_too_large() -> None:
    """Ceiling 10.4, allowance 6.4, margin 1.6: beyond 5.6 cores of non-BE use somebody should look."""
    assert steady().plan == SurgePlan(5_600, None)
    assert follow(pressed(0.2, 0), steady(), policy()).plan == SurgePlan(5_600, 2_000)


@pytest.mark.parametrize("rule", [policy(), policy(minimum=20), policy(CPUSET)])
def test_no_plan_at_the_floor(rule: Policy) -> None:
    seen = view(0.0, 16, usage(0.0, nonbe=14), (root(cpuset="0-15"),), topology=T16)
    assert decide(seen, rule).plan is None


def test_the_margin_of_a_small_node_is_200_mcpu() -> None:
    outcome = decide(view(0.0, 1, usage(0.0, nonbe=0.2)), policy())
    assert outcome.plan == SurgePlan(650 - 450 + 200, None)
