"""Worked examples of eviction: spec/qos 16.4 (25-38), spec/api V-29 and V-30, and the field cases of the area."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.config.nodeslo import decode
from koordlet.decide import cpu_evict, memory_evict
from koordlet.decide.victims import allows, up_to_priority
from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.eviction import Evict
from koordlet.model.pod import Pod, Resources
from koordlet.model.qos import Qos
from koordlet.model.settings import PodSettings
from koordlet.model.view import Policy
from koordlet.sources.podlist import decode_pods
from tests.hosts.cases import case_json, case_text
from tests.unit.decide.evict_build import GIB, Node, asked, names, pod, policy, released

SATISFACTION = [  # id, request, limit, lower, upper -> release
    pytest.param(20_000, 10_000, 60, 80, 6_000, id="25"),
    pytest.param(20_000, 12_000, 60, 80, 4_000, id="26"),
    pytest.param(20_000, 13_000, 60, 80, None, id="27"),
    pytest.param(4_000, 1_000, 40, 60, 1_400, id="28"),
]


@pytest.mark.parametrize(("request_mcpu", "limit", "low", "high", "release"), SATISFACTION)
def test_satisfaction(request_mcpu: int, limit: int, low: int, high: int, release: int | None) -> None:
    node = Node([pod("a", batch=request_mcpu)], capacity_mcpu=32_000, be_limit_mcpu=limit, cpu={"a": limit})
    rule = policy(
        ["BECPUEvict"], cpu_evict_be_satisfaction_lower_percent=low, cpu_evict_be_satisfaction_upper_percent=high
    )
    outcome = node.settle_cpu(rule, 30_000, be_mcpu=limit)
    assert (asked(outcome) if outcome.effects else None) == release


NODE_CPU = [  # used, threshold, lower -> release
    pytest.param(30_000, 90, None, 1_600, id="29"),
    pytest.param(30_500, 90, 80, 4_800, id="30"),
    pytest.param(28_790, 90, None, None, id="31-below"),
    pytest.param(28_800, 90, None, 640, id="31-at"),
]


@pytest.mark.parametrize(("used", "threshold", "lower", "release"), NODE_CPU)
def test_node_cpu(used: int, threshold: int, lower: int | None, release: int | None) -> None:
    victim = pod("a", None, 5500, settings=PodSettings(evict_enabled=True))
    node = Node([victim], capacity_mcpu=32_000, cpu={"a": 8_000})
    rule = policy(
        ["CPUEvict"],
        cpu_evict_threshold_percent=threshold,
        cpu_evict_lower_percent=lower,
        evict_enabled_priority_threshold=5999,
    )
    outcome = node.settle_cpu(rule, used)
    assert (asked(outcome) if outcome.effects else None) == release


NODE_MEMORY = [  # used GiB of 100, threshold, lower -> release bytes
    pytest.param(72.0, 70, None, 4_294_967_296, id="32"),
    pytest.param(72.0, 70, 50, 23_622_320_128, id="33"),
    pytest.param(69.99, 70, None, None, id="34"),
]


@pytest.mark.parametrize(("used", "threshold", "lower", "release"), NODE_MEMORY)
def test_node_memory(used: float, threshold: int, lower: int | None, release: int | None) -> None:
    node = Node([pod("a")], capacity_bytes=100 * GIB, memory={"a": 30 * GIB})
    rule = policy(["BEMemoryEvict"], memory_evict_threshold_percent=threshold, memory_evict_lower_percent=lower)
    outcome = node.memory_round(rule, used * GIB)
    assert (asked(outcome) if outcome.effects else None) == release


@pytest.mark.parametrize(
    ("threshold", "lower", "release", "victims"),
    [
        pytest.param(82, None, 18_000_000_000, ["20g"], id="35-one"),
        pytest.param(80, None, 20_400_000_000, ["20g", "5g"], id="35-two"),
    ],
)
def test_vector_35(threshold: int, lower: int | None, release: int, victims: list[str]) -> None:
    pods = [pod("10g", priority=120), pod("5g", priority=100), pod("20g", priority=100)]
    memory = {"20g": 20e9, "5g": 5e9, "10g": 10e9}
    node = Node(pods, capacity_bytes=120_000_000_000, memory=memory)
    rule = policy(["BEMemoryEvict"], memory_evict_threshold_percent=threshold, memory_evict_lower_percent=lower)
    outcome = node.memory_round(rule, 115e9)
    assert (asked(outcome), names(outcome)) == (release, victims)


@pytest.mark.parametrize(
    ("requested", "release"), [pytest.param(24_000, 4_000, id="36"), pytest.param(22_000, None, id="36-at-110")]
)
def test_cpu_ledger(requested: int, release: int | None) -> None:
    settings = PodSettings(evict_enabled=True)
    pods = [pod("a", None, 5500, batch=requested - 4000, settings=settings)]
    pods += [pod("b", None, 5400, batch=4000, settings=settings)]
    node = Node(pods, capacity_mcpu=64_000, allocatable=Resources(batch_cpu_mcpu=20_000))
    rule = policy(
        ["CPUAllocatableEvict"],
        cpu_allocatable_evict_threshold_percent=110,
        cpu_allocatable_evict_lower_percent=100,
        allocatable_evict_priority_threshold=5999,
    )
    outcome = node.settle_cpu(rule, 10_000)
    assert released(outcome) == ({"batch-cpu": 4000} if release else {})
    if release:
        assert (asked(outcome), names(outcome)) == (release, ["b"])


def test_memory_ledger_37() -> None:
    request = Resources(batch_memory_bytes=20 * GIB)
    settings = PodSettings(evict_enabled=True)
    pods = [pod(name, None, 5500, requests=request, settings=settings) for name in ("a", "b")]
    node = Node(pods, capacity_bytes=64 * GIB, allocatable=Resources(batch_memory_bytes=32 * GIB))
    rule = policy(
        ["MemoryAllocatableEvict"],
        memory_allocatable_evict_threshold_percent=110,
        memory_allocatable_evict_lower_percent=100,
        allocatable_evict_priority_threshold=5999,
    )
    outcome = node.memory_round(rule, 10 * GIB)
    assert asked(outcome) == 8_589_934_592
    assert len(names(outcome)) == 1


def test_vector_38_counts_bytes_once() -> None:
    """The reference multiplied usage by 1000, so 5 MiB "satisfied" a shortage of 4 GiB (F-13)."""
    settings = PodSettings(evict_enabled=True)
    pods = [pod(name, None, 5500, settings=settings) for name in ("big", "4m", "5m")]
    memory = {"4m": 4 << 20, "5m": 5 << 20, "big": 6 * GIB}
    node = Node(pods, capacity_bytes=100 * GIB, memory=memory)
    rule = policy(["MemoryEvict"], memory_evict_threshold_percent=70, evict_enabled_priority_threshold=5999)
    outcome = node.memory_round(rule, 72 * GIB)
    assert names(outcome) == ["big"]


def ranked(name: str, priority: int, settings: PodSettings) -> Pod:
    return pod(name, None, priority, settings=settings)


def test_v29_order_of_the_ranked_features() -> None:
    on = {"evict_enabled": True}
    pods = [
        ranked("A", 5500, PodSettings(sub_priority=100, **on)),
        ranked("B", 7500, PodSettings(evict_priority=-10, **on)),
        ranked("C", 5500, PodSettings(**on)),
        ranked("D", 5000, PodSettings(**on)),
    ]
    view = Node(pods).view()
    assert [p.name for p in up_to_priority(view, "CPUEvict", 7999, lambda pod: 1)] == ["B", "D", "A", "C"]


PDB: dict[str, Any] = case_json("evict-pdb-rejected", "scenario.json")


def test_case_pdb_rejected() -> None:
    """What the budget refuses is replaced at once by the next one; the refused one backs off."""
    expected = case_json("evict-pdb-rejected")
    pods = [pod(c["name"]) for c in PDB["candidates"]]
    memory = {c["name"]: c["memory_used"] for c in PDB["candidates"]}
    for index, p in enumerate(pods):  # the scenario's order of trying
        pods[index] = pod(p.name, priority=5000 + index)
    capacity = PDB["need_release"] * 50
    node = Node(pods, capacity_bytes=capacity, memory=memory)
    rule = policy(["BEMemoryEvict"], memory_evict_threshold_percent=70)
    used = capacity * 70 // 100
    answers = {c["name"]: c["eviction_status"] for c in PDB["candidates"]}
    calls: list[str] = []
    evicted: list[Evict] = []
    for _ in range(6):
        # need_release is 2 % of this capacity: threshold 70, lower 68
        for effect in node.memory_round(rule, used).effects:
            assert isinstance(effect, Evict)
            if effect.name not in calls:
                calls.append(effect.name)
                if answers[effect.name] == 429:
                    node.refuse(effect.name, again_s=60)
                else:
                    node.accept(effect.name)
                    evicted.append(effect)
    assert calls == expected["calls"]
    assert [effect.name for effect in evicted] == expected["evicted"]
    assert sum(dict(effect.release)["memory"] for effect in evicted) == expected["released"]


def test_case_eviction_policy_annotation() -> None:
    feature = case_text("eviction-policy-annotation-malformed", "feature").strip()
    items = [
        {
            "metadata": {"name": p["name"], "namespace": "d", "uid": p["name"], "annotations": p["annotations"]},
            "status": {"phase": "Running", "qosClass": "BestEffort"},
        }
        for p in case_json("eviction-policy-annotation-malformed", "pods.json")
    ]
    found = decode_pods(json.dumps({"items": items}).encode(), Kubepods(Driver.CGROUPFS))
    assert {p.name: allows(p, feature) for p in found.pods} == case_json("eviction-policy-annotation-malformed")


def test_v30_eviction_policy_names_the_features() -> None:
    listed = pod("a", settings=PodSettings(evict_by=("CPUEvict",)))
    assert allows(listed, "CPUEvict")
    assert not allows(listed, "MemoryEvict")


GATES = case_json("memory-evict-gate-off", "scenario.json")


@pytest.mark.parametrize("with_memory_evict", [False, True])
def test_case_gate_off(with_memory_evict: bool) -> None:
    expected = case_json("memory-evict-gate-off")
    gates = [name for name, on in GATES["gates"].items() if on] + (["MemoryEvict"] if with_memory_evict else [])
    slo = decode(GATES["nodeslo"], host_app_dir=lambda *_: "")
    rule = Policy(slo=slo, gates=frozenset(gates))
    node = Node([pod("a")], capacity_bytes=GATES["node"]["memory_capacity"], memory={"a": 4 * GIB})
    features: set[str] = set()
    notes: list[str] = []
    for _ in range(GATES["rounds"]):
        outcome = node.memory_round(rule, GATES["node"]["memory_used"])
        features |= {effect.feature for effect in outcome.effects if isinstance(effect, Evict)}
        notes += outcome.notes
    if with_memory_evict:
        expected = expected["with_memoryevict_on_and_no_priority_threshold"]
        assert len(notes) <= expected["warnings_max"]
    else:
        assert len(notes) == expected["warnings"]
    assert sorted(features) == expected["tasks"]


ORDER = case_json("memory-evict-order-and-amount", "scenario.json")


@pytest.mark.parametrize("number", range(3))
def test_case_order_and_amount(number: int) -> None:
    expected = case_json("memory-evict-order-and-amount")["rounds"][number]
    slo = decode({"resourceUsedThresholdWithBE": ORDER["nodeslo"]}, host_app_dir=lambda *_: "")
    rule = Policy(slo=slo, gates=frozenset({"BEMemoryEvict"}))
    pods = [pod(p["name"], Qos(p["qos"]), p["priority"]) for p in ORDER["pods"]]
    memory = {p["name"]: p["memory_used"] for p in ORDER["pods"]}
    node = Node(pods, capacity_bytes=ORDER["node"]["memory_capacity"], memory=memory)
    outcome = node.memory_round(rule, ORDER["rounds"][number]["node_memory_used"])
    assert names(outcome) == expected["victims"]
    assert (asked(outcome) if outcome.effects else 0) == expected["release_bytes"]
    if "order" in expected:
        amount = memory_evict.memory_used(node.view())
        assert [p.name for p in memory_evict.best_effort(node.view(), "BEMemoryEvict", amount)] == expected["order"]


def test_nothing_of_the_reference_defaults_evicts() -> None:
    """Vector 17: `enable` alone switches no feature on; its gates do."""
    slo = decode({"resourceUsedThresholdWithBE": {"enable": True}}, host_app_dir=lambda *_: "")
    node = Node([pod("a")], capacity_bytes=GIB, capacity_mcpu=1000, memory={"a": GIB})
    assert node.memory_round(Policy(slo=slo), GIB).effects == ()
    assert slo.threshold.cpu_evict_policy.value == "evictByRealLimit"
    assert {
        "BECPUEvict", "CPUAllocatableEvict", "CPUEvict", "BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"
    } == cpu_evict.FEATURES | memory_evict.FEATURES  # fmt: skip
