"""Reversibility on a real kernel: after undo, or a clean stop, every file holds its first bytes."""

from __future__ import annotations

import random
import time

import pytest

from tests.live.node import CPUS, V2, Node, koordlet, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(1500)]

FILES = ("cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "cpu.idle")


def contents(node: Node) -> dict[tuple[str, str], bytes]:
    """Raw bytes of every knob file of every scratch cgroup."""
    return {
        (target, file): node.raw(target, file)
        for target in node._all()
        for file in FILES
        if node.path(target, file).exists()
    }


def populate(node: Node, policy: str) -> None:
    online = node.add_pod("web", "LS")
    node.add_pod("pinned", "LSR", annotations={"scheduling.koordinator.sh/resource-status": '{"cpuset": "0"}'})
    for number in range(4):
        batch = node.add_pod(f"job-{number}", "BE")
    # Values a kubelet may have left there: nothing of it may be lost.
    node.write(batch, "cpu.shares", "512")
    node.write(batch, "cpu.cfs_quota_us", "50000")
    node.spin(online, 0.5, 1400)
    node.spin(batch, 1.0, 1400)
    node.write_policy(
        {"enable": True, "cpuSuppressPolicy": policy, "cpuSuppressThresholdPercent": 50, "cpuSuppressMinPercent": 5}
    )


@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_a_clean_stop_restores_every_byte(node: Node, policy: str) -> None:
    populate(node, policy)
    first = contents(node)
    with node.agent("--idle-on-be-pods") as agent:
        changed = (lambda: contents(node) != first) if policy == "cfsQuota" or CPUS > 2 else (lambda: True)
        until("some knob written", changed, 60)
        time.sleep(2)
        assert agent.stop() == 0, agent.text()
    assert contents(node) == first


def test_fifty_kills_at_random_moments_then_undo(node: Node) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    populate(node, "cfsQuota")
    first = contents(node)
    pace = 4.0 if V2 else 1.0  # the kernel lab is that much slower
    dirty = 0
    for round_ in range(50):
        policy = chance.choice(["cfsQuota", "cpuset"])
        node.write_policy(
            {"enable": True, "cpuSuppressPolicy": policy, "cpuSuppressThresholdPercent": chance.randrange(20, 90)}
        )
        with node.agent("--idle-on-be-pods", wait=False) as agent:
            time.sleep(chance.uniform(0.1, 2.0) * pace)
            agent.kill()
        dirty += contents(node) != first
        if round_ % 5 == 4:  # the others are undone by the next start or the next undo
            done = koordlet("undo", f"--state-dir={node.tmp}/state", f"--run-dir={node.tmp}/run", "--yes")
            assert done.returncode == 0, done.stdout + done.stderr
            assert contents(node) == first, f"round {round_}, seed {seed}: {done.stdout}"
    assert dirty >= 10, f"the kills met only {dirty} changed trees: nothing was tested"


def test_the_next_start_undoes_what_a_killed_agent_left(node: Node) -> None:
    populate(node, "cfsQuota")
    first = contents(node)
    with node.agent() as agent:
        until("a quota", lambda: node.quota(node.besteffort) > 0, 60)
        agent.kill()
    assert contents(node) != first
    node.write_policy({"enable": False})
    with node.agent("--identity=false"):
        until("first bytes again", lambda: contents(node) == first, 30)


def test_observe_writes_nothing(node: Node) -> None:
    populate(node, "cfsQuota")
    node.write(node.besteffort, "cpu.shares", "1024")
    first = contents(node)
    with node.agent("--observe") as agent:
        time.sleep(4)
        assert contents(node) == first
        shown = agent.command("explain", "be", f"--socket={agent.socket}", "--output=json")
        assert shown.returncode == 0, shown.stderr
        assert "cpu.cfs_quota_us" in shown.stdout
    assert contents(node) == first


def test_a_second_agent_on_the_same_node_is_refused(node: Node) -> None:
    with node.agent(), node.agent(wait=False) as second:
        assert second.process.wait(30) != 0
        assert "already" in second.text() or "running" in second.text()
