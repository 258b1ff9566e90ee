"""Worked examples of spec/hooks 7 and spec/qos 16 that no other file names."""

from __future__ import annotations

import json

import pytest

from koordlet.decide.cachemask import bandwidth_of, mask_of
from koordlet.decide.evict import Task, pick
from koordlet.kernel.resctrl import format_line
from koordlet.model.pod import Pod
from koordlet.model.resctrl import Range
from koordlet.model.units import mcpu_to_quota_us, mcpu_to_shares, shares_to_weight, weight_to_shares
from koordlet.sources.settings import read_settings
from tests.unit.decide.evict_build import GIB, Node, pod, policy
from tests.worked.test_resctrl_worked import AMD, INTEL
from tests.worked.test_resctrl_worked import line as cache

MILLI = (0, 1, 10, 100, 250, 500, 1000, 4000, 300_000)


def test_w1_shares() -> None:
    assert [mcpu_to_shares(m) for m in MILLI] == [2, 2, 10, 102, 256, 512, 1024, 4096, 262_144]


def test_w2_quotas() -> None:
    wanted = [-1, 1000, 1000, 10_000, 25_000, 50_000, 100_000, 400_000, 30_000_000]
    assert [mcpu_to_quota_us(m) for m in MILLI] == wanted


def test_w3_weights() -> None:
    assert [shares_to_weight(mcpu_to_shares(m)) for m in MILLI] == [1, 1, 1, 4, 10, 20, 39, 157, 10_000]


def test_w4_w61_weights_back() -> None:
    assert [weight_to_shares(weight) for weight in (39, 1, 10_000, 100)] == [998, 2, 262_144, 2597]
    assert [shares_to_weight(shares) for shares in (2, 102, 1024, 2048, 262_144)] == [1, 4, 39, 79, 10_000]


@pytest.mark.parametrize(
    ("full", "start", "end", "mask"),
    [(0x7FF, 0, 30, 0xF), (0x7FF, 10, 50, 0x3C), (0x3FF, 10, 80, 0xFE), (0xFFFFF, 0, 100, 0xFFFFF), (0x7FF, 0, 1, 1)],
    ids=["W28-a", "W28-b", "W28-c", "W28-d", "W28-e"],
)
def test_masks(full: int, start: int, end: int, mask: int) -> None:
    assert mask_of(cache(full), Range(start, end)) == mask


@pytest.mark.parametrize("span", [(50, 50), (-1, 50), (0, 101)], ids=["W29-empty", "W29-below", "W29-above"])
def test_ranges_that_are_none(span: tuple[int, int]) -> None:
    text = json.dumps({"llc": {"schemata": {"range": span}}})
    found = read_settings({}, {"node.koordinator.sh/resctrl": text})
    assert found.resctrl is None
    assert found.faults[0][0] == "node.koordinator.sh/resctrl"


def test_w29_a_mask_with_a_hole() -> None:
    with pytest.raises(ValueError, match="not all ones"):
        mask_of(cache(0x7FE), Range(0, 50))


def test_w30_w31_bandwidths() -> None:
    assert [bandwidth_of(INTEL, percent) for percent in (5, 20, 25, 91, 100)] == [10, 20, 30, 100, 100]
    assert [bandwidth_of(AMD, percent) for percent in (1, 20, 50, 80, 99, 100)] == [1, 32, 80, 128, 158, 2048]


def test_w32_schemata_of_two_caches() -> None:
    mask, percent = mask_of(cache(0x7FF), Range(0, 30)), bandwidth_of(INTEL, 20)
    assert format_line("L3", dict.fromkeys((0, 1), f"{mask:x}")) == "L3:0=f;1=f;"
    assert format_line("MB", dict.fromkeys((0, 1), str(percent))) == "MB:0=20;1=20;"


RULE = policy(["MemoryEvict", "CPUAllocatableEvict"])


def picked(
    node: Node, feature: str, release: dict[str, int], gives: dict[str, dict[str, int]], *gone: str
) -> list[str]:
    """Victims of one shortage; gone: asked for already."""

    def given(pod: Pod) -> dict[str, int]:
        return gives[pod.name]

    task = Task(feature, release, lambda: [p for p in node.pods if gives[p.name]], given, ())
    return [victim.name for victim, _ in pick(task, node.view(), RULE, set(gone))]


def test_64_what_one_shortage_takes_counts_for_the_next() -> None:
    node = Node([pod("a"), pod("b"), pod("m")])
    memory = {"a": {"memory": 3 * GIB // 2}, "b": {"memory": 3 * GIB // 4}, "m": {}}
    assert picked(node, "MemoryEvict", {"memory": 2 * GIB}, memory) == ["a", "b"]
    cpu = {"a": {"batch-cpu": 1000}, "b": {"batch-cpu": 500}, "m": {"mid-cpu": 2000}}
    missing = {"batch-cpu": 1200, "mid-cpu": 1500}
    assert picked(node, "CPUAllocatableEvict", missing, cpu, "a", "b") == ["m"], "1500 of batch-cpu are on their way"


def test_65_a_pending_pod_covers_the_need() -> None:
    node = Node([pod("a"), pod("b")])
    node.accept("a")
    gives = {"a": {"memory": 2 * GIB}, "b": {"memory": GIB}}
    assert picked(node, "MemoryEvict", {"memory": 2 * GIB}, gives) == []
