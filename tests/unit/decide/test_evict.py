"""Eviction beyond the worked examples: the reference's faults, waiting, sparing, and never acting on a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.decide.cpu_evict import CPU_EVICT, be_limit_mcpu
from koordlet.decide.evict import choose
from koordlet.decide.memory_evict import MEMORY_EVICT
from koordlet.model.cpuset import CpuSet
from koordlet.model.eviction import Eviction, EvictState
from koordlet.model.pod import Pod, PodSet, Resources, Tree
from koordlet.model.qos import Qos
from koordlet.model.settings import EVICTION_POLICY, PodSettings
from koordlet.model.slo import CpuEvictPolicy
from koordlet.model.view import BeRoot, Policy, Reading
from tests.unit.decide.evict_build import GIB, Node, names, pod, policy

MEMORY = policy(["BEMemoryEvict"], memory_evict_threshold_percent=70)
ON = PodSettings(evict_enabled=True)
MID = Resources(mid_cpu_mcpu=4000)


def full(*pods: Pod, **memory: float | None) -> Node:
    """72 of 100 GiB in use: 4 GiB are to be released."""
    return Node(list(pods), capacity_bytes=100 * GIB, memory=dict(memory))


def test_a_pod_that_gives_nothing_of_what_is_missing_is_no_victim() -> None:
    """F-14: with mid-cpu overdrawn, batch pods sort first and would all go for nothing."""
    pods = [pod(f"batch{n}", None, 5000, batch=1000, settings=ON) for n in range(5)]
    pods += [pod("mid", None, 7500, requests=MID, settings=ON)]
    node = Node(pods, capacity_mcpu=16_000, allocatable=Resources(mid_cpu_mcpu=2000, batch_cpu_mcpu=9000))
    rule = policy(
        ["CPUAllocatableEvict"],
        cpu_allocatable_evict_threshold_percent=110,
        cpu_allocatable_evict_lower_percent=100,
        allocatable_evict_priority_threshold=7999,
    )
    assert names(node.settle_cpu(rule, 1000)) == ["mid"]


@pytest.mark.parametrize(("offered", "used_mcpu", "evicts"), [(None, 15_000, 0), (0, 1_000, 0), (0, 15_000, 1)])
def test_a_vanished_ledger_evicts_nobody(offered: int | None, used_mcpu: int, evicts: int) -> None:
    """Ledger F6: the batch resource vanishes when the manager's figures are old. A zero needs the node short, too."""
    pods = [pod("a", None, 5500, batch=4000, settings=ON)]
    node = Node(pods, capacity_mcpu=16_000, allocatable=Resources(batch_cpu_mcpu=offered))
    rule = policy(
        ["CPUAllocatableEvict"],
        cpu_allocatable_evict_threshold_percent=110,
        cpu_allocatable_evict_lower_percent=100,
        allocatable_evict_priority_threshold=5999,
    )
    assert len(names(node.settle_cpu(rule, used_mcpu))) == evicts


def test_a_pending_release_counts_until_the_pod_is_gone() -> None:
    """F-16, F-17: no second victim and no second call while the first one ends, however long that takes."""
    node = full(pod("a", priority=5000), pod("b", priority=5001), a=5 * GIB, b=5 * GIB)
    assert names(node.memory_round(MEMORY, 72 * GIB)) == ["a"]
    node.accept("a")
    for _ in range(300):
        assert names(node.memory_round(MEMORY, 72 * GIB)) == ["a"]
    node.remove("a")
    assert names(node.memory_round(MEMORY, 67 * GIB)) == []
    assert names(node.memory_round(MEMORY, 72 * GIB)) == ["b"]


def test_what_an_ending_pod_holds_counts_as_released() -> None:
    node = full(pod("a", priority=5000, terminating=True), pod("b"), a=5 * GIB, b=5 * GIB)
    assert names(node.memory_round(MEMORY, 72 * GIB)) == []
    assert names(node.memory_round(MEMORY, 75 * GIB)) == ["b"]


@pytest.mark.parametrize("inner", [Qos.LS, Qos.SYSTEM, None])
def test_who_holds_an_online_workload_is_no_victim(inner: Qos | None) -> None:
    """Declared cgroups may nest, and the end of the outer one is the end of the inner one."""
    outer = pod("outer", tree=Tree.OURS)
    nested = replace(pod("nested", inner), cgroup=f"{outer.cgroup}/a/b")
    assert names(full(outer, nested, outer=5 * GIB).memory_round(MEMORY, 72 * GIB)) == []
    own = replace(nested, qos=Qos.BE)
    assert names(full(outer, own, outer=5 * GIB).memory_round(MEMORY, 72 * GIB)) == ["outer"]


def test_a_new_round_waits_for_the_cool_down() -> None:
    node = full(pod("a", priority=5000), pod("b", priority=5001), a=5 * GIB, b=5 * GIB)
    rule = replace(MEMORY, memory_evict_cool_s=4.0)
    assert names(node.memory_round(rule, 72 * GIB)) == ["a"]
    node.remove("a")
    found = [names(node.memory_round(rule, 72 * GIB)) for _ in range(4)]
    assert found == [[], [], [], ["b"]]


def test_a_refused_pod_backs_off_and_comes_back() -> None:
    node = full(pod("a"), a=5 * GIB)
    assert names(node.memory_round(MEMORY, 72 * GIB)) == ["a"]
    node.refuse("a", again_s=10)
    found = [len(names(node.memory_round(MEMORY, 72 * GIB))) for _ in range(9)]
    assert sum(found) == 0
    assert names(node.memory_round(MEMORY, 72 * GIB, step_s=2.0)) == ["a"]


def test_a_pod_that_was_killed_is_not_killed_again_while_it_restarts() -> None:
    node = full(pod("a", priority=5000), pod("b", priority=5001), a=5 * GIB, b=5 * GIB)
    node.memory_round(MEMORY, 72 * GIB)
    node.evictions["a"] = Eviction("a", "", EvictState.DONE, node.now_s, node.now_s + 60)
    assert names(node.memory_round(MEMORY, 72 * GIB, step_s=5.0)) == ["b"]


@pytest.mark.parametrize(
    "spared",
    [
        {"phase": "Succeeded"},
        {"settings": PodSettings(evict_enabled=False)},
        {"settings": PodSettings(evict_by=("BECPUEvict",))},
        {"settings": PodSettings(faults=((EVICTION_POLICY, "not JSON"),))},
        {"qos": None},
    ],
)
def test_spared_pods(spared: dict[str, Any]) -> None:
    node = full(replace(pod("a"), **spared), a=50 * GIB)
    assert names(node.memory_round(MEMORY, 72 * GIB)) == []


def test_young_pods_are_spared_by_option() -> None:
    young = pod("young", priority=5000, created_at_s=1e9 + 995.0)
    node = full(young, pod("old", priority=5500, created_at_s=1e9), young=5 * GIB, old=5 * GIB)
    rule = replace(MEMORY, evict_min_age_s=60.0)
    assert names(node.memory_round(rule, 72 * GIB)) == ["old"]


@pytest.mark.parametrize(("ahead_s", "victims"), [(10, ["old"]), (3000, ["young"])])
def test_a_clock_that_was_set_back_makes_nobody_young(ahead_s: int, victims: list[str]) -> None:
    young = pod("young", priority=5000, created_at_s=1e9 + 1000.0 + ahead_s)
    node = full(young, pod("old", priority=5500, created_at_s=1e9), young=5 * GIB, old=5 * GIB)
    assert names(node.memory_round(replace(MEMORY, evict_min_age_s=60.0), 72 * GIB)) == victims


def test_nobody_is_evicted_on_absent_or_old_figures() -> None:
    node = full(pod("a"), a=5 * GIB)
    node.state = MEMORY_EVICT.initial()
    view = node.view(72 * GIB)
    old_list = replace(view, pods=PodSet(view.pods.pods, 1, node.now_s - 31))
    unknown_list = replace(view, pods=PodSet(view.pods.pods, 1, None))
    old_use = replace(view, usage=replace(view.usage, node_memory_bytes=Reading(72 * GIB, node.now_s - 4)))
    no_capacity = replace(view, node=replace(view.node, capacity_bytes=None))
    for bad in (old_list, unknown_list, old_use, no_capacity, node.view(None)):
        assert names(MEMORY_EVICT.decide(bad, MEMORY, node.state, node.now_s)) == []
    assert names(MEMORY_EVICT.decide(view, MEMORY, node.state, node.now_s)) == ["a"]


def test_a_pod_without_a_reading_is_no_victim() -> None:
    node = full(pod("a"), pod("b", priority=5800), a=None, b=9 * GIB)
    assert names(node.memory_round(MEMORY, 72 * GIB)) == ["b"]


def test_a_small_victim_made_superfluous_by_a_larger_one_stays() -> None:
    node = full(pod("small", priority=5000), pod("large", priority=5500), small=GIB, large=30 * GIB)
    assert names(node.memory_round(MEMORY, 72 * GIB)) == ["large"]


def test_no_cpu_eviction_in_the_first_twenty_seconds() -> None:
    node = Node([pod("a", None, 5500, settings=ON)], capacity_mcpu=10_000, cpu={"a": 5000})
    rule = policy(["CPUEvict"], cpu_evict_threshold_percent=80, evict_enabled_priority_threshold=5999)
    found = [names(node.cpu_round(rule, 9000)) for _ in range(21)]
    assert found == [[]] * 20 + [["a"]]


def test_a_peak_of_the_window_that_is_over_evicts_nobody() -> None:
    node = Node([pod("a", None, 5500, settings=ON)], capacity_mcpu=10_000, cpu={"a": 5000})
    rule = policy(
        ["CPUEvict"],
        cpu_evict_threshold_percent=80,
        evict_enabled_priority_threshold=5999,
        cpu_evict_time_window_s=30,
    )
    for _ in range(19):
        node.cpu_round(rule, 9900)
    assert [names(node.cpu_round(rule, 2000)) for _ in range(3)] == [[]] * 3


@pytest.mark.parametrize(("offered", "evicts"), [(None, False), (0, True), (10_000, True), (20_000, False)])
def test_satisfaction_by_allocatable(offered: int | None, evicts: bool) -> None:
    """Missing is not zero; zero counts as 1 milli-CPU."""
    node = Node(
        [pod("a", batch=20_000)],
        capacity_mcpu=64_000,
        be_limit_mcpu=50_000,
        cpu={"a": 10_000},
        allocatable=Resources(batch_cpu_mcpu=offered),
    )
    rule = policy(
        ["BECPUEvict"],
        cpu_evict_be_satisfaction_lower_percent=60,
        cpu_evict_be_satisfaction_upper_percent=80,
        cpu_evict_policy=CpuEvictPolicy.ALLOCATABLE,
    )
    assert bool(names(node.settle_cpu(rule, 30_000, be_mcpu=10_000))) is evicts


def test_finished_pods_request_nothing() -> None:
    """F-18: they would make best effort look starved."""
    node = Node(
        [pod("a", batch=4000), pod("done", batch=20_000, phase="Succeeded")],
        capacity_mcpu=16_000,
        be_limit_mcpu=4000,
        cpu={"a": 4000},
    )
    rule = policy(
        ["BECPUEvict"], cpu_evict_be_satisfaction_lower_percent=60, cpu_evict_be_satisfaction_upper_percent=80
    )
    assert names(node.settle_cpu(rule, 15_000, be_mcpu=4000)) == []


def test_the_limit_of_best_effort() -> None:
    cpus = CpuSet.parse("0-3")
    assert be_limit_mcpu(()) is None
    assert be_limit_mcpu((BeRoot("be", Tree.KUBELET),)) is None
    assert be_limit_mcpu((BeRoot("be", Tree.KUBELET, quota_us=-1, cpuset=cpus),)) == 4000
    assert be_limit_mcpu((BeRoot("be", Tree.KUBELET, quota_us=250_000, period_us=100_000, cpuset=cpus),)) == 2500
    two = tuple(BeRoot(path, Tree.OURS, quota_us=-1, cpuset=cpus) for path in ("a", "b"))
    assert be_limit_mcpu(two) == 4000


def test_features_that_are_on_but_not_configured_say_so_once() -> None:
    node = Node([pod("a")], capacity_mcpu=1000, capacity_bytes=GIB)
    rule = Policy(slo=policy([]).slo, gates=frozenset({"BECPUEvict", "CPUEvict", "CPUAllocatableEvict", "MemoryEvict"}))
    notes = [note for _ in range(5) for note in node.cpu_round(rule, 500).notes]
    assert len(notes) == len(set(notes)) == 3
    assert CPU_EVICT.decide(node.view(), policy([]), CPU_EVICT.initial(), node.now_s).effects == ()


amounts = st.dictionaries(st.sampled_from(["cpu", "mid-cpu"]), st.integers(0, 50), max_size=2)


@given(
    gives=st.lists(amounts, max_size=8),
    missing=st.dictionaries(st.sampled_from(["cpu", "mid-cpu"]), st.integers(-20, 100), min_size=1),
)
def test_choice_covers_or_takes_all_that_help_and_nothing_more(
    gives: list[dict[str, int]], missing: dict[str, int]
) -> None:
    offered = [(pod(str(number)), given) for number, given in enumerate(gives)]
    chosen = choose(offered, missing)

    def left(of: list[tuple[Pod, Any]]) -> dict[str, int]:
        return {r: need - sum(given.get(r, 0) for _, given in of) for r, need in missing.items()}

    def short(of: list[tuple[Pod, Any]]) -> dict[str, int]:
        return {r: max(amount, 0) for r, amount in left(of).items()}

    for item in chosen:
        assert any(item[1].get(r, 0) > 0 and missing[r] > 0 for r in missing)
        assert short([other for other in chosen if other is not item]) != short(chosen), "somebody goes for nothing"
    helping = [item for item in offered if any(item[1].get(r, 0) > 0 and missing[r] > 0 for r in missing)]
    assert short(chosen) == short(helping) or all(amount == 0 for amount in short(chosen).values())


@pytest.mark.parametrize("feature", ["BEMemoryEvict", "MemoryEvict"])
def test_a_static_pod_is_no_victim(feature: str) -> None:
    """The kubelet starts it again at once: its end would release nothing."""
    rule = policy([feature], memory_evict_threshold_percent=70, evict_enabled_priority_threshold=5999)
    pods = [pod("static", priority=5000, settings=ON, static=True), pod("other", priority=5500, settings=ON)]
    node = full(*pods, static=30 * GIB, other=5 * GIB)
    assert names(node.memory_round(rule, 72 * GIB)) == ["other"]
    node.remove("other")
    node.now_s += 60
    assert names(node.memory_round(rule, 72 * GIB)) == []
