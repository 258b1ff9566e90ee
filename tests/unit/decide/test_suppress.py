"""The suppress strategy over several ticks: off, freshness, growth by time, surge, pressure, plan, modes, roots."""

from __future__ import annotations

import dataclasses

import pytest

from koordlet.decide import suppress
from koordlet.decide.strategies import STRATEGIES
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pinning import Exclusive
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import NodeSlo, SuppressPolicy
from koordlet.model.view import NodeView, Outcome, Policy, Reading, SurgePlan, Usage
from tests.unit.decide.build import (
    P8,
    ROOT,
    T16,
    cpus,
    decide,
    flat,
    pinned,
    policy,
    quota,
    root,
    usage,
    view,
    with_kernel,
)

CPUSET, QUOTA = SuppressPolicy.CPUSET, SuppressPolicy.CFS_QUOTA
Run = Outcome[suppress.State]


def follow(seen: NodeView, before: Run, rule: Policy) -> Run:
    """One more round with what the last one wrote in the kernel."""
    return decide(with_kernel(seen, before), rule, before.state)


def steady(nonbe: float = 4.0, rule: Policy | None = None, cores: float = 16) -> Run:
    return decide(view(0.0, cores, usage(0.0, nonbe=nonbe)), rule or policy())


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


# Several roots


def test_several_roots_share_by_request_and_stay_within_the_total() -> None:
    a = root(path="batch-a", tree=Tree.OURS, request_mcpu=3000)
    b = root(path="batch-b", tree=Tree.OURS, request_mcpu=1000)
    c = root(path="batch-c", tree=Tree.OURS)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4), (a, b)), policy())
    assert (quota(outcome, "batch-a"), quota(outcome, "batch-b")) == (480_000, 160_000)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4), (a, b, c)), policy())
    assert [quota(outcome, path) for path in ("batch-a", "batch-b", "batch-c")] == [384_000, 128_000, 128_000]


def test_several_roots_without_requests_share_equally_down_to_the_kernels_minimum() -> None:
    roots = tuple(root(path=f"batch-{name}", tree=Tree.OURS) for name in "abc")
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=16), roots), policy())
    assert [quota(outcome, one.path) for one in roots] == [1_000, 1_000, 1_000]


def test_several_roots_reach_a_fixed_point() -> None:
    roots = tuple(root(path=f"batch-{name}", tree=Tree.OURS) for name in "abc")
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4.001), roots), policy())
    again = follow(view(1.0, 16, usage(1.0, nonbe=4.001), roots), outcome, policy())
    assert again.decisions is outcome.decisions


def test_several_roots_get_the_same_cpus() -> None:
    roots = tuple(root(path=f"batch-{name}", tree=Tree.OURS, cpuset="0-15") for name in "ab")
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=6.4), roots, topology=T16), policy(CPUSET))
    assert [cpus(outcome, "batch-a"), cpus(outcome, "batch-b")] == ["0,4,8,12"] * 2


def test_a_quota_in_another_period_allows_the_same_share() -> None:
    seen = view(0.0, 16, usage(0.0, nonbe=4), (root(-1, period_us=10_000),))
    assert quota(decide(seen, policy())) == 64_000


# Cpuset: owners, placement, stickiness


def test_static_policy_concerns_the_kubelets_tree_only() -> None:
    theirs = root(cpuset="0-15", levels=((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",)))
    ours = root(path="batch", tree=Tree.OURS, cpuset="0-15", levels=(("batch",), ("batch/job",), ()))
    seen = view(0.0, 16, usage(0.0, nonbe=6.4), (theirs, ours), topology=T16, kubelet_policy="static")
    outcome = decide(seen, policy(CPUSET))
    assert {d.target: str(d.value) for d in outcome.decisions} == {
        ROOT: "0-15",
        f"{ROOT}/pod": "0-15",
        f"{ROOT}/pod/c": "0,4,8,12",
        "batch": "0,4,8,12",
        "batch/job": "0,4,8,12",
    }


def test_containers_keep_off_what_the_kubelet_gave_to_a_pod_the_moment_it_does() -> None:
    """Its groups stay wide: it writes its whole shared pool below them before we hear of it."""
    levels = ((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",))
    own = Pod(uid="own", namespace="default", name="own", cgroup="kubepods/podown", kube_qos=KubeQos.GUARANTEED)
    state = None
    for second, given in enumerate(("0,8", "4-5,12-13", "", "1-7,9-15")):
        exclusive = Exclusive({"own": CpuSet.parse(given)} if given else {}, CpuSet())
        node = {"topology": T16, "kubelet_policy": "static", "exclusive": exclusive}
        seen = view(
            float(second), 16, usage(float(second), nonbe=2), (root(cpuset="0-15", levels=levels),), [own], **node
        )
        outcome = decide(seen, policy(CPUSET), state)
        state = outcome.state
        sets = {d.target: d.value for d in outcome.decisions}
        assert not CpuSet.parse(str(sets[f"{ROOT}/pod/c"])) & CpuSet.parse(given)
        assert str(sets[ROOT]) == str(sets[f"{ROOT}/pod"]) == "0-15"


@pytest.mark.parametrize(("v2", "parents"), [(False, "0-15"), (True, "1-7,10-15")])
def test_static_policy_keeps_parents_wide_on_v1(v2: bool, parents: str) -> None:
    """The kubelet's shared CPUs hold LSE and reserved ones; v1 refuses them to a container whose parent has less. What
    the kubelet gave away itself is in no container's set."""
    levels = ((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",))
    node = {"topology": T16, "kubelet_policy": "static", "reserved_cpus": CpuSet([0]), "cgroup_v2": v2}
    pods = [pinned(Qos.LSE, "8-9")]
    rule = policy(CPUSET, percent=100)
    seen = view(0.0, 16, usage(0.0), (root(cpuset="0-15", levels=levels),), pods, **node)
    found = {d.target: str(d.value) for d in decide(seen, rule).decisions}
    assert found == {ROOT: parents, f"{ROOT}/pod": parents, f"{ROOT}/pod/c": "1-7,10-15"}
    node["exclusive"] = Exclusive({"somebody": CpuSet([1, 2])}, CpuSet([3]))
    seen = view(0.0, 16, usage(0.0), (root(cpuset="0-15", levels=levels),), pods, **node)
    assert cpus(decide(seen, rule), f"{ROOT}/pod/c") == "4-7,10-15"


def test_static_policy_limits_growth_against_its_own_last_set_f05() -> None:
    """The root holds the full set there, so the reference's limit never bites."""
    levels = ((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",))
    rule = policy(CPUSET, percent=100)
    node = {"topology": T16, "kubelet_policy": "static"}
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=14), (root(cpuset="0-15", levels=levels),), **node), rule)
    sizes = []
    for second in range(1, 4):
        seen = view(second, 16, usage(second, nonbe=2), (root(cpuset="0-15", levels=levels),), **node)
        outcome = follow(seen, outcome, rule)
        sizes.append(len(outcome.state.cpus or ()))
    assert sizes == [4, 6, 8]


def test_a_finished_lse_pod_releases_its_cpus() -> None:
    running, done = pinned(Qos.LSE, "0-7"), pinned(Qos.LSE, "0-7", phase="Succeeded")
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0), (root(cpuset="0-15"),), [running], topology=T16), rule)
    assert outcome.state.cpus == CpuSet.parse("8-15")
    outcome = follow(view(1.0, 16, usage(1.0), (root(),), [done], revision=2, topology=T16), outcome, rule)
    assert len(outcome.state.cpus or ()) == 10


def test_a_pod_whose_allocation_became_unreadable_stays_pinned_for_its_neighbours() -> None:
    good = pinned(Qos.LSE, "0-7")
    bad = dataclasses.replace(good, cpuset=None, cpuset_error="truncated JSON")
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0), (root(cpuset="0-15"),), [good], topology=T16), rule)
    outcome = follow(view(1.0, 16, usage(1.0), (root(),), [bad], revision=2, topology=T16), outcome, rule)
    assert outcome.state.cpus == CpuSet.parse("8-15")


def test_an_lse_pod_that_arrives_displaces_only_the_cpus_it_took() -> None:
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=6.4), (root(cpuset="0-15"),), topology=T16), rule)
    assert cpus(outcome) == "0,4,8,12"
    pods = [pinned(Qos.LSE, "0,8")]
    outcome = follow(view(1.0, 16, usage(1.0, nonbe=6.4), (root(),), pods, revision=2, topology=T16), outcome, rule)
    assert CpuSet.parse("4,12") <= CpuSet.parse(cpus(outcome) or "")
    assert len(CpuSet.parse(cpus(outcome) or "")) == 4
    assert not CpuSet.parse(cpus(outcome) or "") & CpuSet.parse("0,8")


def test_reserved_and_exclusive_system_cpus_are_not_lent() -> None:
    node = {"topology": P8, "reserved_cpus": CpuSet.parse("0-1"), "system_qos_cpus": CpuSet.parse("6-7")}
    outcome = decide(view(0.0, 8, usage(0.0), (root(cpuset="0-7"),), **node), policy(CPUSET, percent=100))
    assert cpus(outcome) == "2-5"


def test_a_be_pod_keeps_its_own_allocation_inside_the_set() -> None:
    """seen 12: the reference's recovery overwrites it with all CPUs."""
    pods: list[Pod] = [
        pinned(Qos.BE, "0-1", "inside", cgroup=f"{ROOT}/podinside", kube_qos=KubeQos.BESTEFFORT),
        pinned(Qos.BE, "6", "outside", cgroup=f"{ROOT}/podoutside", kube_qos=KubeQos.BESTEFFORT),
    ]
    directories = tuple(f"{ROOT}/pod{name}" for name in ("inside", "outside", "free"))
    levels = ((ROOT,), directories, tuple(f"{d}/c" for d in directories))
    seen = view(0.0, 16, usage(0.0, nonbe=6.4), (root(cpuset="0-15", levels=levels),), pods, topology=T16)
    outcome = decide(seen, policy(CPUSET))
    assert [cpus(outcome, f"{d}/c") for d in directories] == ["0", "0,4,8,12", "0,4,8,12"]
    assert [cpus(outcome, d) for d in directories] == ["0,4,8,12"] * 3


def test_jitter_of_one_cpu_changes_the_set_once_f01() -> None:
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=3.9), (root(cpuset="0-15"),), topology=flat(16)), rule)
    seen = {cpus(outcome)}
    for second in range(1, 60):
        nonbe = 3.3 if second % 2 else 3.5
        outcome = follow(view(second, 16, usage(second, nonbe=nonbe), (root(),), topology=flat(16)), outcome, rule)
        seen.add(cpus(outcome))
    assert len(seen) <= 2


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
