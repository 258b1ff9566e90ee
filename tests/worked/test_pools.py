"""Share pools and the packing of reserved CPUs: worked examples of spec/api 1.3 and spec/collect 4.5, field cases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.decide.packing import pack
from koordlet.decide.pools import Pool, pool_cpus, share_pools, withheld
from koordlet.kernel.kubelet_state import parse_cpu_manager_state
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import NOBODY, Exclusive
from koordlet.model.pod import Pod
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo
from tests.hosts.cases import case_json, case_text
from tests.unit.decide.build import P8, T16, flat, lscpu, pinned, topology

HT8 = topology([(0, 0, 0, 0), (4, 0, 0, 0), (1, 1, 0, 0), (5, 1, 0, 0), (2, 2, 0, 1), (6, 2, 0, 1), (3, 3, 0, 1),
                (7, 3, 0, 1)])  # fmt: skip
"""V-21's machine: thread pairs (0,4)(1,5) on NUMA node 0, (2,6)(3,7) on node 1, one socket."""


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def told(pools: tuple[Pool, ...]) -> list[tuple[int, int, str]]:
    return [(pool.socket, pool.node, str(pool.cpus)) for pool in pools]


def test_v21_reserved_system_lsr_and_lse() -> None:
    node = NodeInfo(reserved_cpus=cpus("0,4"), system_qos_cpus=cpus("7"))
    found = share_pools(HT8, [pinned(Qos.LSR, "1,5"), pinned(Qos.LSE, "2,6")], node)
    assert told(found.ls) == [(0, 0, ""), (0, 1, "3")]
    assert told(found.be) == [(0, 0, "1,5"), (0, 1, "3")]
    assert str(pool_cpus(found.ls)) == "3"  # not ",3"
    assert str(pool_cpus(found.be, [0])) == "1,5"


@pytest.mark.parametrize("mcpu", [1500, 2000, 1001], ids=["v22", "v34-1000m+500m-rounds-to-2", "rounded-up"])
def test_v22_v34_reserved_by_amount_takes_a_whole_core(mcpu: int) -> None:
    one_socket = topology([(cpu, cpu % 4, 0, 0) for cpu in range(8)])
    assert str(pack(-(-mcpu // 1000), one_socket)) == "0,4"
    assert str(pool_cpus(share_pools(one_socket, (), NodeInfo(reservation_mcpu=mcpu)).ls)) == "1-3,5-7"


def test_w27_two_sockets() -> None:
    machine = topology([(cpu, cpu, cpu // 4, cpu // 4) for cpu in range(8)])
    static = Pod("c", "default", "c", "kubepods/podc", KubeQos.GUARANTEED)
    pods = [pinned(Qos.LSR, "0-1"), pinned(Qos.LSE, "4"), static]
    found = share_pools(machine, pods, NodeInfo(reserved_cpus=cpus("2"), exclusive=Exclusive({"c": cpus("7")})))
    assert told(found.ls) == [(0, 0, "3"), (1, 1, "5-6")]
    assert told(found.be) == [(0, 0, "0-1,3"), (1, 1, "5-6")]
    assert [(a.uid, a.namespace, a.name, str(a.cpus)) for a in found.allocs] == [("c", "default", "c", "7")]


@pytest.mark.parametrize(
    ("pod", "counted"),
    [
        (Pod("u", "d", "u", "c", KubeQos.GUARANTEED), True),
        (Pod("u", "d", "u", "c", KubeQos.GUARANTEED, qos=Qos.LSR), True),
        (Pod("u", "d", "u", "c", KubeQos.GUARANTEED, qos=Qos.LS), False),
        (Pod("u", "d", "u", "c", KubeQos.GUARANTEED, qos=Qos.BE), False),
        (pinned(Qos.LSR, "1", "u"), False),
    ],
    ids=["no-label", "lsr", "ls", "be", "placed-by-koordinator"],
)
def test_the_kubelets_cpus_count_only_where_koordinator_does_not_place(pod: Pod, counted: bool) -> None:
    found = share_pools(flat(4), [pod], NodeInfo(exclusive=Exclusive({"u": cpus("3")}, CpuSet())))
    assert [str(alloc.cpus) for alloc in found.allocs] == (["3"] if counted else [])
    assert (3 in pool_cpus(found.be)) is not counted


def test_a_node_whose_cpus_all_have_owners_has_no_pool() -> None:
    found = share_pools(HT8, [pinned(Qos.LSE, "0-1,4-5")], NodeInfo())
    assert told(found.ls) == told(found.be) == [(0, 1, "2-3,6-7")]


def test_a_finished_pod_releases_its_cpus() -> None:
    assert str(pool_cpus(share_pools(flat(4), [pinned(Qos.LSE, "0-1", phase="Succeeded")], NodeInfo()).be)) == "0-3"


def test_cpu_manager_stale_default_set() -> None:
    case = "cpu-manager-stale-default-set"
    online = cpus(case_text(case, "online").strip())
    state = parse_cpu_manager_state(case_text(case, "cpu_manager_state"), online)
    found = share_pools(flat(4), (), NodeInfo(exclusive=Exclusive(state.pods, CpuSet())))
    expected = case_json(case, "expected.json")
    assert str(pool_cpus(found.ls)) == expected["share_pool"]
    assert {alloc.uid: str(alloc.cpus) for alloc in found.allocs} == expected["allocs"]


@pytest.mark.parametrize("layout", ["v2", "v1"])
def test_cpu_manager_state_v2_and_v1(layout: str) -> None:
    case = "cpu-manager-state-v2-and-v1"
    expected = case_json(case, "expected.json")[layout]
    online = cpus(case_text(case, "node_cpus").strip())
    state = parse_cpu_manager_state(case_text(case, f"cpu_manager_state.{layout}"), online)
    named = pool_cpus(Pool(0, 0, found) for found in state.pods.values())
    found = share_pools(flat(16), (), NodeInfo(exclusive=Exclusive(state.pods, state.exclusive - named)))
    assert str(pool_cpus(found.ls)) == expected["share_pool"]
    assert {alloc.uid: str(alloc.cpus) for alloc in found.allocs} == expected.get("allocs", {})


def test_shared_pool_annotation_churn_every_order_of_cpus_gives_one_answer() -> None:
    expected = case_json("shared-pool-annotation-churn", "expected.json")
    machine = lscpu("shared-pool-annotation-churn")
    rows, shuffled, seen = list(machine.cpus), random.Random(3), set()
    for _ in range(100):
        shuffled.shuffle(rows)
        seen.add(share_pools(Topology(tuple(rows)), (), NodeInfo()))
    assert len(seen) == expected["distinct_texts_over_permutations"]
    (pool,) = seen.pop().ls
    assert (pool.node, str(pool.cpus), pool.socket) == (expected["node"], expected["cpuset"], 0)


def test_hybrid_whole_cores_never_half_a_pair() -> None:
    machine = lscpu("hybrid-threads-per-core")
    for count in (2, 4, 6, 8):
        taken = pack(count, machine)
        assert len(taken) == count
        assert all(threads <= taken or not threads & taken for threads in machine.siblings().values())


def test_packing_takes_whole_sockets_then_nodes_then_cores() -> None:
    assert str(pack(4, P8)) == "0-3"
    assert str(pack(5, P8)) == "0-4"
    assert str(pack(8, T16)) == "0-3,8-11"
    assert str(pack(3, T16)) == "0-1,8"
    assert str(pack(4, HT8)) == "0-1,4-5"
    assert pack(9, P8) == pack(0, P8) == CpuSet()


sets = st.builds(CpuSet, st.sets(st.integers(0, 17)))


def cpus_of(owned: list[tuple[Qos, CpuSet]], classes: set[Qos]) -> CpuSet:
    return CpuSet(cpu for qos, found in owned if qos in classes for cpu in found)


@given(st.lists(st.tuples(st.sampled_from(list(Qos)), sets), max_size=6), sets, sets, sets, st.integers(0, 20_000))
def test_pools_are_disjoint_and_hold_exactly_the_free_online_cpus(
    owned: list[tuple[Qos, CpuSet]], reserved: CpuSet, system: CpuSet, kubelet: CpuSet, mcpu: int
) -> None:
    pods = [pinned(qos, str(found), f"p{i}") for i, (qos, found) in enumerate(owned)]
    node = NodeInfo(reserved_cpus=reserved, system_qos_cpus=system, reservation_mcpu=mcpu)
    found = share_pools(T16, pods, replace(node, exclusive=Exclusive({"x": kubelet})))
    for pools in (found.ls, found.be):
        together = pool_cpus(pools)
        assert sum(len(pool.cpus) for pool in pools) == len(together)
        assert together <= T16.online
        assert not together & (reserved | system | kubelet)
    rest = T16.online - withheld(node, T16) - kubelet
    assert pool_cpus(found.be) == rest - cpus_of(owned, {Qos.LSE})
    assert pool_cpus(found.ls) == rest - cpus_of(owned, set(Qos))
    assert share_pools(T16, pods, replace(node, exclusive=Exclusive({"x": kubelet}))) == found
    assert not NOBODY.pods
