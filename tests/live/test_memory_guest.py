"""In the kernel lab only, because it fills the whole machine: an online workload that allocates as fast as it can, on a
node that best effort has filled. Once with koordlet as it is, once as a loop that looks each second and then kills.

The numbers are printed; what they should be on a quiet machine (no wait above 200 ms, 300 MB/s at least) is not
asserted here, because an emulated machine on a busy host waits for other reasons, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.node import V2, Node, until, why_not

pytestmark = [
    pytest.mark.guest,
    pytest.mark.timeout(600),
    pytest.mark.skipif("KOORDLET_GUEST" not in os.environ, reason="fills the machine's memory: kernel lab only"),
]

HOLD = """
import mmap, sys, time
held = [mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        for _ in range(int(sys.argv[1]) >> 24)]
print("full", flush=True)
time.sleep(600)
"""
ALLOCATE = """
import json, mmap, sys, time
POPULATE_WRITE, STEP = 23, 4 << 20
held = mmap.mmap(-1, int(sys.argv[1]) // STEP * STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.madvise(mmap.MADV_HUGEPAGE)  # the emulator zeroes large pages ten times as fast as it takes faults
sys.stdin.readline()
worst, begun = 0.0, time.monotonic()
for start in range(0, len(held), STEP):
    before = time.monotonic()
    held.madvise(POPULATE_WRITE, start, STEP)
    worst = max(worst, time.monotonic() - before)
took = time.monotonic() - begun
print(json.dumps({"worst_ms": worst * 1e3, "mb_s": len(held) / 1e6 / took, "seconds": took}), flush=True)
time.sleep(600)
"""
UPPER = 94
ALLOCATORS = 3
BE_PODS = 3


def meminfo() -> dict[str, int]:
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}


def oom_kills() -> int:
    return int(Path("/proc/vmstat").read_text().split("oom_kill ", 1)[1].split()[0])


@pytest.fixture
def spared() -> Any:
    """What the test itself needs must outlive an experiment that goes wrong."""
    mine = Path("/proc/self/oom_score_adj")
    before = mine.read_text()
    mine.write_text("-900")
    yield
    mine.write_text(before)


def experiment(node: Node, *words: str) -> dict[str, Any]:
    """Numbers of one run: the online side's worst allocation of 4 MiB, its rate, who was killed by whom."""
    free = meminfo()
    total, used = free["MemTotal"], free["MemTotal"] - free["MemAvailable"]
    each = (total * (UPPER - 4) // 100 - used) // BE_PODS
    batch = [node.add_pod(f"batch-{number}", "BE") for number in range(BE_PODS)]
    online = node.add_pod("online", "LS")
    holders = [node.run_in(target, HOLD, str(each)) for target in batch]
    for holder in holders:
        Path(f"/proc/{holder.pid}/oom_score_adj").write_text("0")
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"full\n"
    wanted = total * 35 // 100
    allocators = [node.run_in(online, ALLOCATE, str(wanted // ALLOCATORS)) for _ in range(ALLOCATORS)]
    for process in allocators:
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("0")
    node.write_policy({"enable": True, "memoryEvictThresholdPercent": UPPER})
    kills = oom_kills()
    gates = "--feature-gates=BEMemoryEvict=true"
    with node.agent(gates, "--evict-by=kill", *words) as agent:
        time.sleep(5)
        for process in allocators:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        with contextlib.suppress(AssertionError):
            until("the online side has its memory", lambda: all(map(_ended_or_done, allocators)), 120)
        lines = [process.stdout.readline() for process in allocators if process.stdout and _ended_or_done(process)]
        results = [json.loads(line) for line in lines if line]
        found: dict[str, Any] = {
            "worst_ms": max((one["worst_ms"] for one in results), default=None),
            "mb_s": sum(one["mb_s"] for one in results),
            "online_alive": sum(process.poll() is None for process in allocators),
        }
        found["oom_kills"] = oom_kills() - kills
        found["batch_gone"] = sum(holder.poll() is not None for holder in holders)
        found["evictions"] = agent.text().count("pod.evict")
    return found


def _ended_or_done(process: Any) -> bool:
    return process.poll() is not None or bool(select.select([process.stdout], [], [], 0)[0])


def test_best_effort_yields_before_the_kernel_kills(node: Node, spared: Any) -> None:
    if (reason := why_not()) or not V2:
        pytest.skip(reason or "cgroup v2")
    found = experiment(node)
    print(f"koordlet: {json.dumps(found)}")
    assert found["online_alive"] == ALLOCATORS
    assert found["oom_kills"] == 0
    assert found["batch_gone"] >= 1


def test_a_look_per_second_for_comparison(node: Node, spared: Any) -> None:
    """Nothing is asserted about it: how bad it gets is the point."""
    if (reason := why_not()) or not V2:
        pytest.skip(reason or "cgroup v2")
    found = experiment(node, "--memory-ladder=false", "--memory-watch=false")
    print(f"polling: {json.dumps(found)}")
