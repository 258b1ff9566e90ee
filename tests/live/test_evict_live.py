"""Eviction by the real agent on this machine's cgroups: the right pod ends, its neighbours do not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from koordlet.act.reap import Reaper
from tests.live.node import BASE, V2, Node, until

pytestmark = pytest.mark.live

HOLD = """
import mmap, time
held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
print("full", flush=True)
time.sleep(300)
"""
FULL = {"enable": True, "memoryEvictThresholdPercent": 1, "memoryEvictLowerPercent": 0}


@pytest.mark.parametrize("observe", [False, True])
def test_memory_eviction_ends_best_effort_alone(node: Node, observe: bool) -> None:
    holders = {}
    for name, qos in (("batch", "BE"), ("online", "LS")):
        holders[name] = node.run_in(node.add_pod(name, qos), HOLD)
        assert holders[name].stdout is not None
        assert holders[name].stdout.readline() == b"full\n"
    node.write_policy(FULL)
    words = ["--feature-gates=BEMemoryEvict=true", "--evict-by=kill", *(["--observe"] if observe else [])]
    with node.agent(*words) as agent:
        until("the eviction is told", lambda: "pod.evict" in agent.text(), 30, agent.text)
        if not observe:
            until("the batch pod is gone", lambda: holders["batch"].poll() is not None, 10, agent.text)
        records = [json.loads(line) for line in (node.tmp / "audit/audit.log").read_text().splitlines()]
        (record,) = [row for row in records if row["reason"] == "BEMemoryEvict"]
        assert (record["level"], record["name"]) == (0, "batch")
        assert (holders["batch"].poll() is None) is observe
        assert holders["online"].poll() is None
        agent.stop()


@pytest.mark.live_v1
def test_a_killed_process_that_cannot_run_is_freed_by_us(node: Node) -> None:
    """One in a frozen cgroup of v1 stays dead and whole until it is thawed: its memory must not wait for that."""
    freezer = BASE / "freezer" / node.root
    if V2 or not freezer.parent.is_dir():
        pytest.skip("no freezer of cgroup v1 here")
    holder = node.run_in(node.add_pod("batch", "BE"), HOLD)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"full\n"
    freezer.mkdir()
    try:
        (freezer / "cgroup.procs").write_text(str(holder.pid))
        (freezer / "freezer.state").write_text("FROZEN")
        until("it is frozen", lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", 10)
        reaper = Reaper()
        pidfds = reaper.open([holder.pid])
        holder.kill()
        assert resident_bytes(holder.pid) > 64 << 20
        reaper.free(pidfds)
        until("its memory is freed", lambda: resident_bytes(holder.pid) < 32 << 20, 10)
        assert holder.poll() is None
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        holder.wait(10)
        freezer.rmdir()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
