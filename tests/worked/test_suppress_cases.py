"""Field cases and recordings of the reference that concern identity and CPU suppress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.decide import suppress_cpuset, target
from koordlet.decide.pick import choose, pick
from koordlet.decide.slew import Ramp
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pod import Tree
from koordlet.model.qos import Qos
from koordlet.model.slo import NodeSlo, SuppressPolicy, Threshold
from koordlet.model.view import BeRoot, Policy, Reading, Usage
from koordlet.model.why import stages
from tests.unit.decide.build import (
    CPUSET,
    GATES,
    QUOTA,
    T16,
    case,
    cpus,
    decide,
    flat,
    lscpu,
    pinned,
    policy,
    quota,
    root,
    usage,
    view,
    with_kernel,
)


@pytest.mark.parametrize("variant", [0, 1])
def test_be_suppress_cpuset_pick(variant: int) -> None:
    given = case("be-suppress-cpuset-pick", "scenario.json")["variants"][variant]
    expected = case("be-suppress-cpuset-pick", "expected.json")["variants"][variant]
    seen = view(
        0.0,
        given["cpus"],
        replace(
            usage(0.0, nonbe=given["ls_used"], be=given["be_used"]),
            node_mcpu=Reading(given["node_used"] * 1000, 0.0),
            system_mcpu=Reading((given["node_used"] - given["ls_used"] - given["be_used"]) * 1000, 0.0),
        ),
        (root(cpuset=f"0-{given['old_size'] - 1}"),),
        [pinned(qos, given[qos.value.lower()]) for qos in (Qos.LSR, Qos.LSE) if given[qos.value.lower()]],
        topology=lscpu("be-suppress-cpuset-pick"),
        reserved_mcpu=int(given["reserved"] * 1000),
    )
    outcome = decide(seen, policy(CPUSET, percent=given["threshold_percent"]))
    assert dict(outcome.decisions[0].why)["target_mcpu"] == 12_800
    assert cpus(outcome) == expected["cpuset"]
    assert len(CpuSet.parse(expected["cpuset"])) == expected["size"]
    if "from_lsr" in expected:
        assert len(CpuSet.parse(expected["cpuset"]) & CpuSet.parse(given["lsr"])) == expected["from_lsr"]


def test_be_suppress_cpuset_pick_growth() -> None:
    given = case("be-suppress-cpuset-pick", "scenario.json")["variants"][2]
    expected = case("be-suppress-cpuset-pick", "expected.json")["variants"][2]
    pools = suppress_cpuset.pools_of(view(0.0, 64, usage(0.0)), flat(given["cpus"]), None)
    count, _, _ = suppress_cpuset.step(given["target_size"] * 1000, given["old_size"], pools, Ramp(), True, 0.0)
    assert count == expected["size"]


def test_be_suppress_cfs_first_write() -> None:
    given = case("be-suppress-cfs-first-write", "scenario.json")
    expected = case("be-suppress-cfs-first-write", "expected.json")
    cores, wanted = given["capacity_cores"], given["target_milli"]
    for current, written in zip(given["current_quota"], expected["write"], strict=True):
        seen = view(0.0, cores, usage(0.0, nonbe=cores - wanted / 1000), (root(current),))
        assert quota(decide(seen, policy(percent=100))) == (current if written is None else written)
    negative = given["negative"]
    seen = view(
        0.0, cores, usage(0.0, nonbe=cores - negative["target_milli"] / 1000), (root(negative["current_quota"]),)
    )
    assert quota(decide(seen, policy(percent=100))) == expected["negative"]


@pytest.mark.parametrize("name", ["be-suppress-static-policy-paths", "be-suppress-none-policy-write-order"])
def test_be_suppress_desired_values_of_each_directory(name: str) -> None:
    """What each directory shall hold; the order of the writes is act's."""
    tree = case(name, "tree.json")
    expected = case(name, "expected.json")
    levels = tuple(tuple(d for d in tree["dirs"] if d.count("/") == depth) for depth in (1, 2, 3))
    seen = BeRoot(tree["dirs"][0], Tree.KUBELET, levels=levels, cpuset=CpuSet.parse(tree["old"]))
    pools = suppress_cpuset.pools_of(view(0.0, 16, usage(0.0)), T16, None)
    chosen = CpuSet.parse(tree["target"])
    decisions = suppress_cpuset.placed((seen,), tree["kubelet_policy"], chosen, pools, stages(), "suppress")
    assert {d.target: str(d.value) for d in decisions} == expected.get("final", expected)
    assert [d.target for d in decisions if d.hot] == [tree["dirs"][0]]


@pytest.mark.parametrize("row", [0, 1, 2])
def test_suppress_min_percent(row: int) -> None:
    given = case("suppress-min-percent", "scenario.json")
    expected = case("suppress-min-percent", "expected.json")[row]
    minimum = given["min_percent"][row]
    used = usage(0.0, nonbe=given["ls_used"], system=given["system_used"])
    section = Threshold(
        enable=True, cpu_suppress_threshold_percent=given["threshold_percent"], cpu_suppress_min_percent=minimum
    )
    demand = target.read_demand(used, 0)
    assert demand is not None
    raw = target.ceiling_mcpu(32_000, section) - demand.total_mcpu
    assert target.floored_mcpu(raw, 32_000, section) == expected["milli"]
    by_set = decide(view(0.0, 32, used, (root(cpuset="0-31"),), topology=flat(32)), policy(CPUSET, minimum=minimum))
    assert len(CpuSet.parse(cpus(by_set) or "")) == expected["cpuset_size"]
    assert quota(decide(view(0.0, 32, used), policy(QUOTA, minimum=minimum))) == expected["quota"]


@pytest.mark.parametrize("row", [0, 1])
def test_system_usage_negative(row: int) -> None:
    given = case("system-usage-negative", "scenario.json")
    expected = case("system-usage-negative", "expected.json")[row]
    used = sum(pod["used"] for pod in given["pods"])
    nonbe = sum(pod["used"] for pod in given["pods"] if pod.get("qos") != "BE")
    seen = view(
        0.0,
        given["capacity"],
        Usage(
            node_mcpu=Reading(given["node_used"] * 1000, 0.0),
            pods_mcpu=Reading(used * 1000, 0.0),
            nonbe_pods_mcpu=Reading(nonbe * 1000, 0.0),
            be_mcpu=Reading(2000, 0.0),
        ),
        (root(cpuset="0-15"),),
        topology=T16,
        reserved_mcpu=int(given["reserved"][row] * 1000),
    )
    outcome = decide(seen, policy(CPUSET, percent=given["threshold_percent"]))
    why = dict(outcome.decisions[0].why)
    assert why["system_mcpu"] == expected["system"] * 1000
    assert why["target_mcpu"] == expected["milli"]
    assert len(CpuSet.parse(cpus(outcome) or "")) == expected["size"]


@pytest.mark.parametrize("row", [0, 1, 2, 3])
def test_kubelet_policy_annotation(row: int) -> None:
    """The source turns the annotation into none, static or None (malformed); this is what follows from it."""
    expected = case("kubelet-policy-annotation", "expected.json")[row]
    pod, container = "kubepods/besteffort/podb", "kubepods/besteffort/podb/c"
    levels = (("kubepods/besteffort",), (pod,), (container,))
    seen = view(
        0.0,
        16,
        usage(0.0, nonbe=6.4),
        (root(cpuset="0-15", levels=levels),),
        topology=T16,
        kubelet_policy=None if expected == "skip" else expected,
    )
    outcome = decide(seen, policy(CPUSET))
    if expected == "skip":
        assert outcome.decisions == ()
        assert len(outcome.notes) == 1
        assert decide(seen, policy(CPUSET), outcome.state).notes == ()
    else:
        wide = "0-15" if expected == "static" else "0,4,8,12"
        assert [cpus(outcome, d) for d in ("kubepods/besteffort", pod, container)] == [wide, wide, "0,4,8,12"]


def _slo(state: Any) -> NodeSlo | None:
    if state is None:
        return None
    section = state["spec"].get("resourceUsedThresholdWithBE")
    if section is None:
        return NodeSlo()
    return NodeSlo(
        threshold=Threshold(
            enable=section["enable"],
            cpu_suppress_threshold_percent=section.get("cpuSuppressThresholdPercent", 65),
            cpu_suppress_policy=SuppressPolicy(section.get("cpuSuppressPolicy", "cpuset")),
        )
    )


@pytest.mark.parametrize("row", [0, 1, 2, 3])
def test_nodeslo_nil(row: int) -> None:
    slo = _slo(case("nodeslo-nil", "states.json")[row])
    expected = case("nodeslo-nil", "expected.json")[row]
    seen = view(0.0, 16, usage(0.0, nonbe=2), (root(cpuset="0-15"),), topology=T16)
    outcome = decide(seen, Policy(slo=slo, gates=GATES))
    assert bool(outcome.decisions) == expected["enable"]
    if expected["enable"]:
        kind = SuppressPolicy(expected["cpuSuppressPolicy"])
        assert {d.knob for d in outcome.decisions} == {Knob.CPUSET if kind is CPUSET else Knob.CPU_QUOTA}


def test_node_object_not_ready() -> None:
    given = case("node-object-not-ready", "scenario.json")
    expected = case("node-object-not-ready", "expected.json")
    outcome, notes, first = None, 0, None
    for number in range(1, given["rounds"] + 1):
        ready = number >= given["node_available_from_round"]
        now_s = float(number * given["round_seconds"])
        seen = view(now_s, 16 if ready else None, usage(now_s, nonbe=2))
        outcome = decide(seen, policy(), outcome.state if outcome else None)
        notes += len(outcome.notes)
        if outcome.decisions and first is None:
            first = number
    assert first == expected["first_active_round"]
    assert notes <= expected["warnings_per_component_max"]


def test_hybrid_threads_per_core_picks_whole_cores() -> None:
    """6 cores of 2 threads and 8 of one: an odd CPU comes from a core that has only one thread."""
    topology = lscpu("hybrid-threads-per-core")
    alone = set(case("hybrid-threads-per-core", "expected.json")["single_thread_cpus"])
    for need in range(2, 21):
        taken = set(pick(need, topology.online, topology))
        assert len(taken) == need
        halves = [t for t in topology.siblings().values() if 0 < len(taken & set(t)) < len(t)]
        assert not halves, f"{need}: half of {halves}"
    assert set(pick(3, topology.online, topology)) - alone == {0, 1}
    assert len(choose(20, CpuSet(), topology.online, CpuSet(), topology)) == 20


RECORDED_GROWTH = [  # recording, phase, cores, last value before growth
    ("suppress-quota.json", 2, 2),
    ("suppress-quota-bigcap.json", 1, 16),
]


@pytest.mark.parametrize(("file", "phase", "cores"), RECORDED_GROWTH)
def test_growth_follows_the_reference_step_by_step(file: str, phase: int, cores: int) -> None:
    """From the recording: after the online load ended the quota climbs by a tenth of the node per tick."""
    recorded = case("observed", file)["phases"][phase]["changed"]["cpu/besteffort/cpu.cfs_quota_us"]
    climb = [int(text) for text in recorded[:3]]
    outcome = None
    seen = view(0.0, cores, usage(0.0), (root(climb[0]),))
    for second, expected in enumerate(climb[1:], start=1):
        outcome = decide(seen, policy(), outcome.state if outcome else None)
        assert quota(outcome) == expected
        seen = with_kernel(view(float(second), cores, usage(float(second))), outcome)


def test_the_recorded_minimum_is_ours_too() -> None:
    """suppress-quota-min: threshold 20 %, minimum 15 % of 2 CPUs, LS at 0.9: 30000 us."""
    recorded = case("observed", "suppress-quota-min.json")["phases"][0]["changed"]["cpu/besteffort/cpu.cfs_quota_us"]
    seen = view(0.0, 2, usage(0.0, nonbe=0.9))
    assert quota(decide(seen, policy(percent=20, minimum=15))) == int(recorded[1]) == 30_000


def test_the_recorded_cpuset_of_two_cpus_is_ours_too() -> None:
    """suppress-lsr and suppress-cpuset: the minimum of 2 CPUs keeps both, LSR's included."""
    for file in ("suppress-lsr.json", "suppress-cpuset.json"):
        recorded = case("observed", file)["metrics"]["values"]["koordlet_be_suppress_cpu_cores{type=cpuset}"]
        pods = [pinned(Qos.LSR, "1")] if "lsr" in file else []
        seen = view(0.0, 2, usage(0.0, nonbe=1.5), (root(cpuset="0-1"),), pods, topology=flat(2))
        outcome = decide(seen, policy(CPUSET))
        assert cpus(outcome) == "0-1"
        assert ("be_suppress_cpu_cores", (("type", "cpuset"),), float(recorded)) in outcome.gauges


def test_all_cpus_owned_by_lse_leaves_be_as_it_is() -> None:
    """suppress-lse-all: there the reference panicked (division by zero) and exited with 2."""
    assert case("observed", "suppress-lse-all.json")["exit"]["code"] == 2
    seen = view(0.0, 2, usage(0.0), (root(cpuset="0-1"),), [pinned(Qos.LSE, "0-1")], topology=flat(2))
    outcome = decide(seen, policy(CPUSET))
    assert outcome.decisions == ()
    assert outcome.notes
    assert outcome.plan is None
