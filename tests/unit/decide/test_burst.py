"""CPU burst: who bursts, whose annotation counts, what is named and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordlet.decide.burst import State
from koordlet.model.burst import BurstPolicy, BurstSettings
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pod import Tree
from koordlet.model.view import Outcome
from tests.unit.decide.burst_build import MadePod, burst, container, decide, pod, view, wanted

AUTO, QUOTA, KERNEL, NONE = (
    BurstPolicy.AUTO,
    BurstPolicy.QUOTA_ONLY,
    BurstPolicy.KERNEL_ONLY,
    BurstPolicy.NONE,
)


def hot(name: str = "a", **more: object) -> MadePod:
    return pod(name, container("main", 1000, throttled=0.5), **more)  # type: ignore[arg-type]


def targets(outcome: Outcome[State]) -> set[str]:
    return {decision.target for decision in outcome.decisions}


def test_policy_none_names_nothing_and_hands_back_the_same_tuple() -> None:
    first = decide(view(0.0, 8, pods=(hot(),)), burst(NONE))
    again = decide(view(1.0, 8, pods=(hot(),)), burst(NONE), first.state)
    assert first.decisions == ()
    assert again.decisions is first.decisions
    assert again.gauges is first.gauges
    assert [value for _, _, value in first.gauges] == [0.0]


@pytest.mark.parametrize("gates", [(), ("BECPUSuppress",)])
def test_gate_off(gates: tuple[str, ...]) -> None:
    outcome = decide(view(0.0, 8, pods=(hot(),)), burst(AUTO, gates=gates))
    assert outcome.decisions == outcome.gauges == ()


def test_without_a_node_slo_nothing_is_done() -> None:
    outcome = decide(view(0.0, 8, pods=(hot(),)), replace(burst(AUTO), slo=None))
    assert outcome.decisions == outcome.gauges == ()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(hot(), {"a", "a/main"}, id="ls"),
        pytest.param(hot(qos=""), {"a", "a/main"}, id="unlabelled"),
        pytest.param(hot(qos="SYSTEM"), {"a", "a/main"}, id="system"),
        pytest.param(hot(qos="BE"), set(), id="be"),
        pytest.param(hot(qos="LSR"), set(), id="lsr"),
        pytest.param(hot(qos="LSE"), set(), id="lse"),
        pytest.param(hot(phase="Succeeded"), set(), id="finished"),
        pytest.param(hot(qos="", cpuset=CpuSet([1])), set(), id="pinned-without-class-has-no-quota"),
        pytest.param(pod("a", container("main", 0, throttled=0.5)), set(), id="no-limit"),
        pytest.param(
            pod("a", container("main", 1000, throttled=0.5), container("free", 0)),
            {"a/main"},
            id="pod-without-a-whole-limit-stays-unlimited",
        ),
    ],
)
def test_who_bursts(made: MadePod, expected: set[str]) -> None:
    outcome = decide(view(0.0, 8, pods=(made,)), burst(AUTO))
    assert targets(outcome) == expected


def test_a_container_that_does_not_run_keeps_its_quota() -> None:
    made = pod("a", container("main", 1000, throttled=0.5, running=False))
    outcome = decide(view(0.0, 8, pods=(made,)), burst(AUTO))
    assert {d.knob for d in outcome.decisions} == {Knob.CPU_BURST}


def test_the_pod_grows_by_what_its_containers_grow() -> None:
    made = pod("a", container("x", 1000, throttled=0.5), container("y", 500))
    outcome = decide(view(0.0, 8, pods=(made,)), burst(QUOTA))
    assert wanted(outcome, Knob.CPU_QUOTA, "a/x") == 120_000
    assert wanted(outcome, Knob.CPU_QUOTA, "a/y") is None
    assert wanted(outcome, Knob.CPU_QUOTA, "a") == 170_000


@pytest.mark.parametrize(
    ("wish", "quota", "kernel"),
    [
        pytest.param(BurstSettings(cpu_burst_percent=30), 120_000, 30_000, id="percent-only"),
        pytest.param(BurstSettings(policy=NONE), None, None, id="none"),
        pytest.param(BurstSettings(policy=KERNEL), None, 100_000, id="kernel-only"),
        pytest.param(BurstSettings(policy=QUOTA), 120_000, None, id="quota-only"),
        pytest.param(BurstSettings(policy=NONE, unknown_policy="sometimes"), None, None, id="unknown"),
        pytest.param(BurstSettings(quota_burst_percent=110), 110_000, 100_000, id="ceiling"),
        pytest.param(BurstSettings(quota_burst_percent=99), None, 100_000, id="below-100-never"),
    ],
)
def test_annotation_over_the_node(wish: BurstSettings, quota: int | None, kernel: int | None) -> None:
    outcome = decide(view(0.0, 8, pods=(hot(wish=wish),)), burst(AUTO))
    assert wanted(outcome, Knob.CPU_QUOTA, "a/main") == quota
    assert wanted(outcome, Knob.CPU_BURST, "a/main") == kernel
    assert bool(outcome.notes) is bool(wish.unknown_policy)


def test_an_annotation_alone_is_enough() -> None:
    outcome = decide(view(0.0, 8, pods=(hot(wish=BurstSettings(policy=QUOTA)), hot("b"))), burst(NONE))
    assert targets(outcome) == {"a", "a/main"}


def test_a_declared_workload_bursts_as_its_own_only_container() -> None:
    declared = hot("a", tree=Tree.OURS)
    flat = tuple(replace(c, cgroup="", id="") for c in declared.pod.containers)
    declared = MadePod(replace(declared.pod, containers=flat), {"a": declared.rows["a/main"]})
    outcome = decide(view(0.0, 8, pods=(declared,)), burst(AUTO))
    assert (wanted(outcome, Knob.CPU_QUOTA, "a"), wanted(outcome, Knob.CPU_BURST, "a")) == (120_000, 100_000)
    assert len(outcome.decisions) == 2  # the pod's directory is the container's: named once
    again = decide(view(1.0, 8, pods=(declared,)), burst(AUTO), outcome.state)
    assert wanted(again, Knob.CPU_QUOTA, "a") == 144_000
    assert decide(view(0.0, 8, pods=(declared,)), burst(NONE)).decisions == ()


def test_switched_off_the_quota_is_not_named_any_more() -> None:
    on = decide(view(0.0, 8, pods=(hot(),)), burst(QUOTA))
    assert wanted(on, Knob.CPU_QUOTA, "a/main") == 120_000
    off = decide(view(1.0, 8, pods=(hot(),)), burst(NONE), on.state)
    assert off.decisions == ()


def test_a_limit_that_changed_meanwhile_is_written_rather_than_the_old_one_restored() -> None:
    on = decide(view(0.0, 8, pods=(hot(),)), burst(QUOTA))
    resized = pod("a", container("main", 2000, throttled=0.0))
    still = decide(view(1.0, 8, pods=(resized,), revision=2), burst(QUOTA), on.state)
    assert wanted(still, Knob.CPU_QUOTA, "a/main") == 200_000
    off = decide(view(2.0, 8, pods=(resized,), revision=2), burst(NONE), still.state)
    assert wanted(off, Knob.CPU_QUOTA, "a/main") == 200_000
    assert wanted(off, Knob.CPU_QUOTA, "a") == 200_000
    gone = decide(view(3.0, 8, pods=(), revision=3), burst(NONE), off.state)
    assert gone.decisions == ()


def test_after_a_resize_nothing_of_the_pod_grows_until_the_kubelet_is_done() -> None:
    """On v1 it is refused a pod's new quota while a container's is above it, and tries again after some ten seconds."""
    on = decide(view(0.0, 8, pods=(hot(),)), burst(QUOTA))
    assert wanted(on, Knob.CPU_QUOTA, "a/main") == 120_000
    resized = pod("a", container("main", 1100, throttled=0.5, used=1.0))
    outcome = decide(view(1.0, 8, pods=(resized,), revision=2), burst(QUOTA), on.state)
    for second in range(2, 30):
        assert wanted(outcome, Knob.CPU_QUOTA, "a/main") == 110_000
        assert wanted(outcome, Knob.CPU_QUOTA, "a") == 110_000
        outcome = decide(view(second, 8, pods=(resized,), revision=2), burst(QUOTA), outcome.state)
    outcome = decide(view(31.0, 8, pods=(resized,), revision=2), burst(QUOTA), outcome.state)
    assert wanted(outcome, Knob.CPU_QUOTA, "a/main") == 132_000


def test_old_readings_let_nothing_grow() -> None:
    first = decide(view(0.0, 8, pods=(hot(),)), burst(QUOTA))
    assert wanted(first, Knob.CPU_QUOTA, "a/main") == 120_000
    stale = decide(view(20.0, 8, pods=(hot(),), at_s=0.0), burst(QUOTA), first.state)
    assert stale.decisions is first.decisions


def test_calm_rounds_look_at_no_workload() -> None:
    class Untouched(dict):  # type: ignore[type-arg]
        def get(self, *args: object) -> object:
            raise AssertionError("looked at a workload although nothing was throttled")

    calm = pod("a", container("main", 1000, throttled=0.0))
    first = decide(view(0.0, 8, pods=(calm,)), burst(AUTO))
    quiet = replace(view(1.0, 8, pods=(calm,)), workloads=Untouched())
    again = decide(quiet, burst(AUTO), first.state)
    assert again.decisions is first.decisions


def test_tokens_run_out_and_the_quota_comes_down() -> None:
    made = pod("a", container("main", 1000, throttled=0.5, used=2.0))
    rule = burst(QUOTA, quota_burst_period_s=10, quota_burst_percent=300)
    state, quotas = None, []
    for second in range(60):
        outcome = decide(view(float(second), 16, pods=(made,)), rule, state)
        state = outcome.state
        quotas.append(wanted(outcome, Knob.CPU_QUOTA, "a/main") or 100_000)
    assert max(quotas) > 100_000
    assert quotas[-1] == 100_000
    rest = pod("a", container("main", 1000, throttled=0.0, used=0.2))
    for second in range(60, 160):
        state = decide(view(float(second), 16, pods=(rest,)), rule, state).state
    assert state is not None
    assert next(iter(state.tokens.values())).allowed


def test_gauges_carry_the_container_and_the_scaled_quota() -> None:
    outcome = decide(view(0.0, 8, pods=(hot(),)), burst(AUTO, cpu_burst_percent=50))
    found = {name: (dict(labels), value) for name, labels, value in outcome.gauges}
    assert found["container_scaled_cfs_burst_us"][1] == 50_000
    labels, value = found["container_scaled_cfs_quota_us"]
    assert value == 120_000
    assert labels == {
        "pod_namespace": "default",
        "pod_name": "a",
        "container_id": "containerd://a-main",
        "container_name": "main",
    }
