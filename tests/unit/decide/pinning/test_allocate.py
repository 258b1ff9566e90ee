"""The decision list and the NUMA alignment: spec/ledger 3.2 (V-51), and what ours does better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordlet.decide.pinning.allocate import NodeRules, Wish, allocate
from koordlet.decide.pinning.machine import machine
from koordlet.decide.pinning.numa import Zone, split
from koordlet.decide.pinning.take import NotEnoughError
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import (
    Allocation,
    BindPolicy,
    NodePinning,
    NumaExclusive,
    NumaPolicy,
    NumaShare,
    NumaStrategy,
    PinRequest,
)
from koordlet.model.qos import PriorityClass, Qos
from tests.unit.decide.pinning.machines import H16

M16 = machine(H16)
TOTALS = {0: {"cpu": 8000, "memory": 16 << 30}, 1: {"cpu": 8000, "memory": 16 << 30}}
LSR = Wish(Qos.LSR, PriorityClass.PROD, 4000)


def given(wish, held=(), **rules):
    node = NodePinning(**{key: rules.pop(key) for key in ("bind", "numa", "strategy") if key in rules})
    made = allocate(wish, {str(i): h for i, h in enumerate(held)}, NodeRules(node, **rules), M16)
    return str(made.cpus) if made else None


@pytest.mark.parametrize(
    ("amount", "free", "step", "parts"),
    [
        (10, (4, 12), 1, (4, 6)),
        (10, (4, 12), 2, (4, 6)),
        (9, (8, 8), 1, (4, 5)),
        (6, (8, 8), 2, (2, 4)),
    ],
)
def test_v51_split(amount, free, step, parts):
    known = {node: Zone({"cpu": 99_000}, {"cpu": 1000 * left}) for node, left in enumerate(free)}
    shares = split({"cpu": 1000 * amount}, (0, 1), known, 1000 * step)
    assert tuple((share.cpu_mcpu or 0) // 1000 for share in shares) == parts


def test_a_split_goes_by_the_room_of_the_very_nodes_chosen():
    """koord-scheduler orders them by their position in the mask (F12): right only where that begins with node 0."""
    known = {node: Zone({"cpu": 16_000}, {"cpu": 1000 * left}) for node, left in enumerate((0, 16, 12, 4))}
    shares = split({"cpu": 10_000}, (2, 3), known, 1000)
    assert [(share.node, share.cpu_mcpu) for share in shares] == [(2, 6000), (3, 4000)]


def test_v51_a_remainder_is_refused():
    known = {node: Zone({"cpu": 8000}, {"cpu": 8000}) for node in (0, 1)}
    with pytest.raises(NotEnoughError, match="Insufficient NUMA cpu"):
        split({"cpu": 18_000}, (0, 1), known, 1000)


@pytest.mark.parametrize(
    ("wish", "cpus"),
    [
        (LSR, "0-1,8-9"),
        (replace(LSR, qos=Qos.LSE), "0-1,8-9"),
        (replace(LSR, qos=Qos.LS), None),
        (replace(LSR, priority=PriorityClass.MID), None),
        (replace(LSR, cpu_mcpu=0), None),
        (replace(LSR, pin=PinRequest(BindPolicy.CONSTRAINED_BURST)), None),
        (replace(LSR, pin=PinRequest(BindPolicy.SPREAD)), "0-3"),
    ],
)
def test_who_gets_cpus_of_its_own(wish, cpus):
    assert given(wish) == cpus


def test_a_node_policy_pins_everyone_with_a_native_request():
    assert given(replace(LSR, qos=Qos.LS, cpu_mcpu=2000), bind=BindPolicy.FULL_PCPUS) == "0,8"
    assert given(replace(LSR, qos=Qos.BE, cpu_mcpu=0), bind=BindPolicy.FULL_PCPUS) is None


@pytest.mark.parametrize(
    ("wish", "rules", "reason"),
    [
        (replace(LSR, cpu_mcpu=1500), {}, "must be integer"),
        (
            replace(LSR, cpu_mcpu=3000, pin=PinRequest(BindPolicy.FULL_PCPUS, required=True)),
            {},
            "multiple cpus per core",
        ),
        (replace(LSR, pin=PinRequest(BindPolicy.SPREAD, required=True)), {"bind": BindPolicy.FULL_PCPUS}, "required"),
        (replace(LSR, pin=PinRequest(numa=NumaPolicy.SINGLE)), {"numa": NumaPolicy.RESTRICTED}, "NUMA policy"),
        (replace(LSR, cpu_mcpu=10_000, pin=PinRequest(numa=NumaPolicy.SINGLE)), {"numa_totals": TOTALS}, "NUMA node"),
        (replace(LSR, pin=PinRequest(numa=NumaPolicy.SINGLE)), {}, "tells its resources"),
        (replace(LSR, cpu_mcpu=17_000), {}, "17 CPUs asked for, 16 free"),
    ],
)
def test_refusals_say_why(wish, rules, reason):
    with pytest.raises(NotEnoughError, match=reason):
        given(wish, **rules)


def test_required_whole_cores_skip_broken_ones():
    wish = replace(LSR, pin=PinRequest(BindPolicy.FULL_PCPUS, required=True))
    assert given(wish, [Allocation(CpuSet.parse("0,2,4"))], strategy=NumaStrategy.MOST_ALLOCATED) == "1,3,9,11"


def test_required_spread_never_takes_two_threads_of_a_core():
    wish = replace(LSR, cpu_mcpu=6000, pin=PinRequest(BindPolicy.SPREAD, required=True))
    assert given(wish) == "0-5"
    with pytest.raises(NotEnoughError):
        given(replace(wish, cpu_mcpu=9000))


def test_a_single_node_has_room_for_cpus_and_memory():
    wish = replace(LSR, memory_bytes=10 << 30, pin=PinRequest(numa=NumaPolicy.SINGLE))
    first = allocate(wish, {}, NodeRules(numa_totals=TOTALS), M16)
    assert first is not None
    assert first.shares == (NumaShare(0, 4000, 10 << 30),)
    assert given(wish, [first], numa_totals=TOTALS) == "4-5,12-13"  # 6 GiB are left on node 0


def test_pinned_work_without_shares_is_accounted_to_its_node():
    """koord-scheduler forgets it and then fails (recording V-51-uneven)."""
    wish = replace(LSR, cpu_mcpu=10_000, pin=PinRequest(BindPolicy.SPREAD))
    rules = {"numa_totals": TOTALS, "numa": NumaPolicy.RESTRICTED}
    assert given(wish, [Allocation(CpuSet.parse("0-1,8-9"))], **rules) == "2-7,10-13"


def test_one_node_and_several_node_work_keep_apart_where_required():
    wide = Allocation(CpuSet.parse("0,4"), shares=(NumaShare(0, 1000), NumaShare(1, 1000)))
    wish = replace(LSR, pin=PinRequest(numa=NumaPolicy.SINGLE, numa_exclusive=NumaExclusive.REQUIRED))
    with pytest.raises(NotEnoughError):
        given(wish, [wide], numa_totals=TOTALS)
    relaxed = replace(wish, pin=replace(wish.pin, numa_exclusive=NumaExclusive.PREFERRED))
    assert given(relaxed, [wide], numa_totals=TOTALS) == "1-2,9-10"


def test_distribute_evenly_gives_each_node_its_part():
    assert given(LSR, strategy=NumaStrategy.DISTRIBUTE_EVENLY) == "0,4,8,12"
    spread = replace(LSR, pin=PinRequest(BindPolicy.SPREAD))
    assert given(spread, strategy=NumaStrategy.DISTRIBUTE_EVENLY) == "0-1,4-5"
