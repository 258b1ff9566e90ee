"""Reversibility on a real kernel: after undo, or a clean stop, every file holds its first bytes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.node import CPUS, Node, koordlet, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(1500)]

KILLS = 50
ALL_CPUS = Path("/sys/devices/system/cpu/possible").read_bytes()


def populate(node: Node, policy: str) -> dict[str, bytes]:
    """Pods under load, with values that a kubelet may have left there. Returns the first bytes of every knob."""
    online = node.add_pod("web", "LS")
    node.add_pod("pinned", "LSR", annotations={"scheduling.koordinator.sh/resource-status": '{"cpuset": "0"}'})
    for number in range(4):
        batch = node.add_pod(f"job-{number}", "BE")
    node.write(batch, "cpu.shares", "512")
    node.write(batch, "cpu.cfs_quota_us", "50000")
    node.spin(online, 0.1, 1400)
    node.spin(batch, 0.1, 1400)
    write_policy(node, policy, 50)
    return node.knobs()


def write_policy(node: Node, policy: str, percent: int) -> None:
    node.write_policy(
        {
            "enable": True,
            "cpuSuppressPolicy": policy,
            "cpuSuppressThresholdPercent": percent,
            "cpuSuppressMinPercent": 5,
        }
    )


def differences(node: Node, first: dict[str, bytes]) -> dict[str, tuple[bytes, bytes]]:
    """path -> (first bytes, present bytes) where they differ.

    v2 refuses to empty a CPU list while processes run in the cgroup; there all CPUs, which mean the same, count as
    its first bytes. `emptied` looks at these bytes when the processes have ended.
    """
    now = node.knobs()
    return {
        path: (bytes_, now.get(path, b"gone"))
        for path, bytes_ in first.items()
        if now.get(path) != bytes_ and not (lasting(path) and not bytes_.strip() and now.get(path) == ALL_CPUS)
    }


def lasting(path: str) -> bool:
    """A v2 CPU list of a cgroup in which, or below which, processes run."""
    events = Path(path).with_name("cgroup.events")
    return path.endswith("/cpuset.cpus") and events.exists() and "populated 1" in events.read_text()


def emptied(node: Node, first: dict[str, bytes]) -> bool:
    """Whether every file holds its first bytes, without exception, once nothing runs any more."""
    node.stop_load()
    until("no process left", lambda: not any(lasting(path) for path in first), 10)
    undo(node)
    return node.knobs() == first


def undo(node: Node) -> str:
    done = koordlet(
        "undo",
        *(f"--state-dir={node.tmp}/state", f"--run-dir={node.tmp}/run", f"--audit-log-dir={node.tmp}/audit", "--yes"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_a_clean_stop_restores_every_byte(node: Node, policy: str) -> None:
    first = populate(node, policy)
    with node.agent("--idle-on-be-pods") as agent:
        file = "cpu.cfs_quota_us" if policy == "cfsQuota" else "cpuset.cpus"
        written: Callable[[], bool] = lambda: node.raw(node.besteffort, file) != first[node.name(node.besteffort, file)]  # noqa: E731
        if policy == "cfsQuota" or CPUS > 2:  # two CPUs are the least that the cpuset policy leaves
            until(f"{file} written", written, 60)
        until("the pods idle", lambda: len(differences(node, first)) >= 4, 60)
        assert agent.stop() == 0, agent.text()
        assert differences(node, first) == {}, agent.text()
    assert emptied(node, first)


def test_fifty_kills_at_random_moments_then_undo(node: Node) -> None:
    seed = int(os.environ.get("KILL_SEED") or random.randrange(10**6))
    chance = random.Random(seed)
    first = populate(node, "cfsQuota")
    with node.agent("--idle-on-be-pods", wait=False):
        few = [Path(path) for path in first if path.endswith("cpu.idle")]  # all take long to read
        changed: Callable[[], bool] = lambda: any(path.read_bytes() != first[str(path)] for path in few)  # noqa: E731
        usual_s = until("a written knob", changed, 120)
    print(f"seed {seed}, the first knob is written {usual_s:.1f} s after the start")
    dirty = 0
    for kill in range(KILLS):
        write_policy(node, chance.choice(["cfsQuota", "cpuset"]), chance.randrange(20, 90))
        with node.agent("--idle-on-be-pods", wait=False) as agent:
            time.sleep(chance.uniform(0.3 * usual_s, 1.1 * usual_s + 0.3))
            agent.kill()
        dirty += changed()
        if kill % 10 == 9:  # what the others left is undone by the next start, which may be killed while it does that
            told = undo(node)
            assert differences(node, first) == {}, f"kill {kill}, seed {seed}: {told}"
    assert emptied(node, first)
    print(f"{dirty} of {KILLS} kills left changed knobs behind")
    assert dirty >= KILLS // 3, f"only {dirty} kills met a changed tree: nothing was tested"


def test_the_next_start_undoes_what_a_killed_agent_left(node: Node) -> None:
    first = populate(node, "cfsQuota")
    with node.agent() as agent:
        until("a quota", lambda: node.quota(node.besteffort) > 0, 60)
        agent.kill()
    assert differences(node, first)
    node.write_policy({"enable": False})
    with node.agent("--identity=false", "--feature-gates=AllBeta=false"):
        until("first bytes again", lambda: not differences(node, first), 60)


def test_observe_writes_nothing(node: Node) -> None:
    populate(node, "cfsQuota")
    node.write(node.besteffort, "cpu.shares", "1024")
    first = node.knobs()
    with node.agent("--observe") as agent:
        until("three ticks", lambda: agent.ask("/v1/top")["tick"]["ticks"] >= 3, 60)
        shown = koordlet("explain", "be", f"--socket={agent.socket}", "--output=json")
        assert shown.returncode == 0, shown.stderr
        assert "cpu.cfs_quota_us" in shown.stdout
        assert agent.stop() == 0, agent.text()
    assert differences(node, first) == {}


def test_a_second_agent_on_the_same_node_is_refused(node: Node) -> None:
    with node.agent(), node.agent(wait=False) as second:
        assert second.process.wait(60) != 0
        assert "already" in second.text() or "running" in second.text()
