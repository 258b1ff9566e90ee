"""koord-scheduler's CPU choice: vectors V-37..V-50 of spec/ledger 3.2, and the corrections to its faults."""

from __future__ import annotations

import pytest

from koordlet.decide.pinning.machine import machine
from koordlet.decide.pinning.take import Ask, NotEnoughError, take
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Allocation, BindPolicy, ExclusivePolicy, NumaStrategy
from tests.unit.decide.pinning.machines import H16, topology

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD
NONE, PCPU, NUMA = ExclusivePolicy.NONE, ExclusivePolicy.PCPU, ExclusivePolicy.NUMA_NODE
LEAST, MOST = NumaStrategy.LEAST_ALLOCATED, NumaStrategy.MOST_ALLOCATED

VECTORS = [
    ("V-37", "", NONE, 4, FULL, NONE, LEAST, "0-1,8-9"),
    ("V-38", "", NONE, 4, SPREAD, NONE, LEAST, "0-3"),
    ("V-39", "0-1,8-9", NONE, 4, FULL, NONE, LEAST, "4-5,12-13"),
    ("V-40", "0-1,8-9", NONE, 4, FULL, NONE, MOST, "2-3,10-11"),
    ("V-41", "0-1,8-9", NONE, 6, FULL, NONE, MOST, "4-6,12-14"),
    ("V-42", "0", NONE, 1, FULL, NONE, MOST, "1"),
    ("V-43", "0", NONE, 3, FULL, NONE, LEAST, "4-5,12"),
    ("V-44", "", NONE, 12, FULL, NONE, LEAST, "0-5,8-13"),
    ("V-45", "0-3", NONE, 4, SPREAD, NONE, MOST, "8-11"),
    ("V-46", "0-3", PCPU, 4, SPREAD, PCPU, MOST, "4-7"),
    ("V-47", "0-7", PCPU, 4, SPREAD, PCPU, MOST, "8-11"),
    ("V-48", "0,8", NUMA, 4, FULL, NUMA, MOST, "4-5,12-13"),
    ("V-50", "", NONE, 10, SPREAD, NONE, LEAST, "0-9"),
]


def choose(held: str, holder: ExclusivePolicy, ask: Ask, reserved: str = "") -> str:
    used = CpuSet.parse(held)
    free = H16.online - used - CpuSet.parse(reserved)
    return str(take(ask, free, [Allocation(used, exclusive=holder)] if used else [], machine(H16)))


@pytest.mark.parametrize(
    ("held", "holder", "need", "bind", "exclusive", "strategy", "cpus"),
    [v[1:] for v in VECTORS],
    ids=[v[0] for v in VECTORS],
)
def test_vector(held, holder, need, bind, exclusive, strategy, cpus):
    assert choose(held, holder, Ask(need, bind, exclusive, strategy, compat=True)) == cpus


def test_v49_reserved_cpus_break_their_core():
    assert choose("", NONE, Ask(4, FULL, NONE, LEAST, compat=True), reserved="0,8") == "4-5,12-13"


def test_an_odd_request_takes_the_orphan_sibling_rather_than_break_a_core():
    assert choose("0", NONE, Ask(1, FULL, NONE, MOST)) == "8"  # V-42 corrected (F12)
    assert choose("0", NONE, Ask(3, FULL, NONE, MOST)) == "1,8-9"


def test_an_orphan_beside_a_workload_of_the_same_exclusive_policy_is_left_alone():
    assert choose("0", PCPU, Ask(1, FULL, PCPU, MOST)) == "1"


def test_without_smt_every_cpu_is_a_whole_core():
    flat = topology(1, 2, 4, 1)
    ask = Ask(3, SPREAD, NONE, LEAST)
    assert str(take(ask, flat.online, [], machine(flat))) == "0-2"


def test_more_than_is_free_is_refused():
    with pytest.raises(NotEnoughError, match="17 CPUs asked for, 16 free"):
        take(Ask(17, FULL), H16.online, [], machine(H16))
