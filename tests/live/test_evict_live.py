"""Eviction by the real agent on this machine's cgroups: the right pod ends, its neighbours do not."""

from __future__ import annotations

import json

import pytest

from tests.live.node import Node, until

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
