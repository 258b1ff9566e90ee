"""The agent against a real kernel: an online surge shrinks the best-effort allowance, which grows back slowly."""

from __future__ import annotations

import itertools
import time

import pytest

from koordlet.model.cpuset import CpuSet
from tests.live.node import BASE, CPUS, V2, Node, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

NODE_US = CPUS * 100_000
FLOOR_US = 2_000
CAP = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 65}


def surge(node: Node, target: str, share: float, seconds: float) -> None:
    for _ in range(CPUS):
        node.spin(target, share, seconds)


def test_an_online_burst_shrinks_the_quota_and_it_grows_back_slowly(node: Node) -> None:
    online, batch = node.add_pod("web", "LS"), node.add_pod("job", "BE")
    node.write_policy(CAP)
    for _ in range(CPUS):
        node.spin(batch, 1.0, 120)
    with node.agent():
        until("a first quota", lambda: node.quota(node.besteffort) > 0.3 * NODE_US, 30)
        before = node.quota(node.besteffort)
        surge(node, online, 0.9, 6)
        delay = until("a lower quota", lambda: 0 < node.quota(node.besteffort) < 0.7 * before, 10)
        assert delay <= 2.5  # two ticks, and the time to start the load

        seen = [(time.monotonic(), node.quota(node.besteffort))]
        while time.monotonic() < seen[0][0] + 14:
            value = node.quota(node.besteffort)
            if value != seen[-1][1]:
                seen.append((time.monotonic(), value))
            time.sleep(0.02)
        values = [v for _, v in seen]
        assert min(values) >= FLOOR_US
        assert max(values[1:]) > min(values), "it never grew back"
        for (t0, a), (t1, b) in itertools.pairwise(seen):
            assert b - a <= 0.1 * NODE_US + 1, f"grew by {b - a} us in one step: {seen}"
            if b > a and seen.index((t1, b)) > 1:
                assert t1 - t0 > 0.5, f"grew twice within a tick: {seen}"


def test_a_batch_burst_alone_does_not_lower_the_quota(node: Node) -> None:
    batch = node.add_pod("job", "BE")
    node.add_pod("web", "LS")
    node.write_policy(CAP)
    with node.agent():
        until("a first quota", lambda: node.quota(node.besteffort) > 0.3 * NODE_US, 30)
        for _ in range(CPUS):
            node.spin(batch, 1.0, 30)
        lows = []
        for _ in range(60):
            lows.append(node.quota(node.besteffort))
            time.sleep(0.05)
        assert min(lows) > 0.25 * NODE_US


def test_cpuset_policy_keeps_whole_cores_and_spreads_over_numa_nodes(node: Node) -> None:
    if CPUS < 8:
        pytest.skip("needs 8 CPUs on 2 NUMA nodes: runs in the kernel lab")
    online = node.add_pod("web", "LS")
    batch = node.add_pod("job", "BE")
    node.write_policy({"enable": True, "cpuSuppressPolicy": "cpuset", "cpuSuppressThresholdPercent": 65})
    for _ in range(3):
        node.spin(online, 0.9, 60)
    with node.agent():
        until("a smaller cpuset", lambda: 0 < len(CpuSet.parse(node.cpuset(node.besteffort))) < CPUS, 60)
        time.sleep(6)
        chosen = CpuSet.parse(node.cpuset(node.besteffort))
        assert 2 <= len(chosen) < CPUS
        cores = [CpuSet.parse(_siblings(cpu)) for cpu in chosen]
        odd = {str(core) for core in cores if not core <= chosen}
        assert len(odd) <= 1, f"more than one half core in {chosen}"
        per_node = [len(chosen & CpuSet.parse(text)) for text in _numa()]
        assert max(per_node) - min(per_node) <= 2, f"{chosen} is not spread over the NUMA nodes"
        assert CpuSet.parse(node.cpuset(batch)) <= chosen


def _siblings(cpu: int) -> str:
    with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
        return file.read().strip()


def _numa() -> list[str]:
    texts = []
    for number in (0, 1):
        with open(f"/sys/devices/system/node/node{number}/cpulist") as file:
            texts.append(file.read().strip())
    return texts


def test_switching_the_policy_off_lifts_the_cap_live(node: Node) -> None:
    node.add_pod("web", "LS")
    node.add_pod("job", "BE")
    node.write_policy(CAP)
    with node.agent():
        until("a quota", lambda: node.quota(node.besteffort) > 0, 30)
        node.write_policy({"enable": False})
        until("no quota", lambda: node.quota(node.besteffort) == -1, 10)


def test_a_malformed_policy_keeps_the_previous_one(node: Node) -> None:
    node.add_pod("web", "LS")
    node.add_pod("job", "BE")
    node.write_policy(CAP)
    with node.agent() as agent:
        until("a quota", lambda: node.quota(node.besteffort) > 0, 30)
        node.write_policy({"enable": True, "cpuSuppressThresholdPercent": 650})
        until("a message", lambda: "cpuSuppressThresholdPercent" in agent.text(), 15)
        assert "650" in agent.text()
        assert node.quota(node.besteffort) > 0


def test_the_kubelet_trees_weight_is_verified_and_repaired(node: Node) -> None:
    node.add_pod("job", "BE")
    with node.agent():
        time.sleep(1.5)
        node.write(node.besteffort, "cpu.shares", "1024")
        until("the weight repaired", lambda: node.read(node.besteffort, "cpu.shares") in ("2", "1"), 10)
        idle = (BASE if V2 else BASE / "cpu") / node.besteffort / "cpu.idle"
        assert not idle.exists() or idle.read_text().strip() == "0", "cpu.idle must never be set on the QoS root"
