"""Worked examples of CPU suppress, numbered as in the specification (16.1 to 16.3).

Where a row of the specification records a fault of the reference (F-xx), the row here holds the corrected value
and says why.
"""

from __future__ import annotations

import pytest

from koordlet.decide import suppress_cpuset, suppress_quota, target
from koordlet.decide.pick import choose, pick
from koordlet.decide.slew import Ramp
from koordlet.model.cpuset import CpuSet
from koordlet.model.qos import Qos
from koordlet.model.slo import SuppressPolicy, Threshold
from koordlet.model.topology import Topology
from koordlet.model.view import Reading, Usage
from tests.unit.decide.build import P8, T16, cpus, decide, pinned, policy, quota, root, usage, view, with_kernel

CPUSET = SuppressPolicy.CPUSET

TARGETS = [  # cores: capacity, threshold %, non-BE pods, non-BE hosts, node, pods, hosts, reserved; min % -> S mcpu
    pytest.param(100, 65, 32.5, 0, 50, 44.5, 0, 2, None, 27_000, id="row-1"),
    pytest.param(100, 65, 32.5, 1.5, 50, 44.5, 1.5, 2, None, 27_000, id="row-2"),
    pytest.param(16, 65, 9, 0, 12, 11.5, 0, 1, None, 400, id="row-3"),
    pytest.param(16, 65, 9, 0, 12, 11.5, 0, 1, 10, 1_600, id="row-4"),
    pytest.param(20, 70, 8, 0, 11, 12, 0, 0, None, 6_000, id="row-5"),
]


@pytest.mark.parametrize(
    ("capacity", "percent", "nonbe", "nonbe_hosts", "node", "pods", "hosts", "reserved", "minimum", "expected"), TARGETS
)
def test_target(
    capacity: float,
    percent: int,
    nonbe: float,
    nonbe_hosts: float,
    node: float,
    pods: float,
    hosts: float,
    reserved: float,
    minimum: int | None,
    expected: int,
) -> None:
    seen = Usage(
        node_mcpu=Reading(node * 1000, 0),
        pods_mcpu=Reading(pods * 1000, 0),
        nonbe_pods_mcpu=Reading(nonbe * 1000, 0),
        hosts_mcpu=Reading(hosts * 1000, 0),
        nonbe_hosts_mcpu=Reading(nonbe_hosts * 1000, 0),
    )
    demand = target.read_demand(seen, int(reserved * 1000))
    assert demand is not None
    section = Threshold(enable=True, cpu_suppress_threshold_percent=percent, cpu_suppress_min_percent=minimum)
    wanted = target.ceiling_mcpu(capacity * 1000, section) - demand.total_mcpu
    assert target.floored_mcpu(wanted, capacity * 1000, section) == expected


@pytest.mark.parametrize(
    ("need", "topology", "expected"),
    [
        pytest.param(3, P8, (0, 1, 4), id="row-6"),
        pytest.param(5, T16, (0, 8, 4, 12, 1), id="row-10"),
    ],
)
def test_pick(need: int, topology: Topology, expected: tuple[int, ...]) -> None:
    assert pick(need, topology.online, topology) == expected


SETS = [  # topology, S mcpu, LSR, LSE, reserved, old, expected
    pytest.param(P8, 3_000, "0,6", "7", "", "0-3", "2-4", id="row-7"),
    pytest.param(P8, 3_000, "0,6", "7", "3", "0-3", "0,4-5", id="row-8"),
    # Row 9 corrected (F-04): one CPU is left for BE, the LSR pod's 0. The reference finds no complete set and leaves
    # the old one, which may hold LSE CPU 7 and reserved CPUs. Best partial set: what there is, below the minimum of 2.
    pytest.param(P8, 3_000, "0,6", "7", "1-6", "0-3", "0", id="row-9-corrected"),
    pytest.param(T16, 6_400, "", "", "", "0-15", "0-1,4-5,8-9,12", id="row-11"),
    pytest.param(T16, 500, "", "", "", "0-15", "0,8", id="row-12"),
    pytest.param(T16, 8_000, "0-1,8-9", "", "", "0-15", "0,2,4-5,8,10,12-13", id="row-14"),
    pytest.param(T16, 8_000, "", "0-1,8-9", "", "0-15", "2-5,10-13", id="row-15"),
    # Row 16 corrected (F-04): BE may use 6 CPUs, so 8 wanted become these 6; nothing overlaps LSE's.
    pytest.param(T16, 8_000, "", "0-4,8-12", "", "0-15", "5-7,13-15", id="row-16-corrected"),
    # Row 17 corrected (F-04): 12 wanted, 10 usable (4 LSR, 6 others): 10*4/10 = 4 from LSR and all 6 others. The
    # reference computes 4 from LSR and 8 from 6, gets nothing for the latter and stacks BE on the LSR pod alone.
    pytest.param(T16, 12_000, "0-1,8-9", "2-4,10-12", "", "0-15", "0-1,5-9,13-15", id="row-17-corrected"),
]


@pytest.mark.parametrize(("topology", "target_mcpu", "lsr", "lse", "reserved", "old", "expected"), SETS)
def test_cpuset(
    topology: Topology, target_mcpu: int, lsr: str, lse: str, reserved: str, old: str, expected: str
) -> None:
    pods = [pinned(qos, text) for qos, text in ((Qos.LSR, lsr), (Qos.LSE, lse)) if text]
    seen = view(
        0.0,
        len(topology.cpus),
        usage(0.0, nonbe=len(topology.cpus) - target_mcpu / 1000),
        (root(cpuset=old),),
        pods,
        topology=topology,
        reserved_cpus=CpuSet.parse(reserved),
    )
    assert cpus(decide(seen, policy(CPUSET, percent=100))) == expected


GROWTH = ["0,4,8,12", "0-1,4,8-9,12", "0-1,4-5,8-9,12-13", "0-2,4-5,8-10,12-13", "0-2,4-6,8-10,12-13"]


def test_cpuset_grows_by_a_tenth_per_tick_row_13_from_the_kernels_set() -> None:
    """Each tick on its own, as after a restart: only the size of the old set counts."""
    old = "0,8"
    for expected in GROWTH:
        seen = view(0.0, 16, usage(0.0, nonbe=5), (root(cpuset=old),), topology=T16)
        assert cpus(decide(seen, policy(CPUSET, percent=100))) == expected
        old = expected


def test_cpuset_grows_by_a_tenth_per_tick_row_13_from_its_own_set() -> None:
    """The same ticks with state: what is held stays, so the sticky choice reaches the same sets."""
    seen = view(0.0, 16, usage(0.0, nonbe=5), (root(cpuset="0,8"),), topology=T16)
    outcome = decide(seen, policy(CPUSET, percent=100))
    for second, expected in enumerate(GROWTH, start=1):
        assert cpus(outcome) == expected
        seen = with_kernel(view(second, 16, usage(second, nonbe=5), (root(),), topology=T16), outcome)
        outcome = decide(seen, policy(CPUSET, percent=100), outcome.state)
    assert cpus(outcome) == GROWTH[-1]


QUOTAS = [  # cores, S mcpu, current us -> us
    pytest.param(16, 12_000, 400_000, 560_000, id="row-18-first-step"),
    pytest.param(16, 12_000, -1, 1_200_000, id="row-19"),
    pytest.param(16, 4_000, 1_200_000, 400_000, id="row-20"),
    pytest.param(16, 4_150, 400_000, 400_000, id="row-21-bypass"),
    pytest.param(16, 4_160, 400_000, 416_000, id="row-21-write"),
    pytest.param(16, -300, 50_000, 2_000, id="row-22"),
    pytest.param(80, 20_000, 1_980_000, 1_980_000, id="row-23"),
    # Row 24 corrected (F-02): unlimited is larger than any number, so it is never inside the dead-band. The reference
    # compares with -1, finds 50000 near it and leaves BE unlimited under the heaviest pressure.
    pytest.param(80, 500, -1, 50_000, id="row-24-corrected"),
    pytest.param(80, 15, -1, 2_000, id="row-24-minimum"),
]


@pytest.mark.parametrize(("cores", "target_mcpu", "current_us", "expected_us"), QUOTAS)
def test_quota(cores: int, target_mcpu: int, current_us: int, expected_us: int) -> None:
    seen = view(0.0, cores, usage(0.0, nonbe=cores - target_mcpu / 1000), (root(current_us),))
    assert quota(decide(seen, policy(percent=100))) == expected_us


def test_quota_grows_by_a_tenth_per_tick_row_18() -> None:
    seen = view(0.0, 16, usage(0.0, nonbe=4), (root(400_000),))
    outcome = decide(seen, policy(percent=100))
    reached = [quota(outcome)]
    for second in range(1, 7):
        seen = with_kernel(view(second, 16, usage(second, nonbe=4)), outcome)
        outcome = decide(seen, policy(percent=100), outcome.state)
        reached.append(quota(outcome))
    assert reached == [560_000, 720_000, 880_000, 1_040_000, 1_200_000, 1_200_000, 1_200_000]


def test_no_cpu_for_be_divides_by_nothing_f03() -> None:
    """Both pools empty: the reference divides by zero and dies; here the choice is empty and never named."""
    assert choose(4, CpuSet(), CpuSet(), CpuSet(), T16) == CpuSet()
    seen = view(0.0, 2, usage(0.0), (root(cpuset="0-1"),), [pinned(Qos.LSE, "0-7")], topology=P8)
    outcome = decide(seen, policy(CPUSET))
    assert outcome.decisions == ()
    assert len(outcome.notes) == 1


def test_unlimited_is_infinity_in_both_policies() -> None:
    ramp = Ramp()
    assert suppress_quota.step(500, None, 80_000, 1, ramp, False, 0.0)[0] == 50_000
    pools = suppress_cpuset.pools_of(view(0.0, 16, usage(0.0)), T16, None)
    assert suppress_cpuset.step(5_000, None, pools, ramp, False, 0.0)[0] == 5
