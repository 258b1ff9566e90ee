"""In the kernel lab only, because it fills the whole machine: an online workload that allocates as fast as it can, on a
node that best effort has filled. Once with koordlet as it is, once as a loop that looks each second and then kills, for
comparison.

The threshold is high, as where much memory is lent: behind it there is less than the online side takes in a second. How
long it waits for memory is the kernel's own account (memory.pressure of its cgroup), beside the clock's: an emulated
machine on a busy host waits for other reasons, too.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.node import V2, Node, why_not

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
import json, mmap, os, sys, time
POPULATE_WRITE, STEP = 23, 4 << 20
held = mmap.mmap(-1, int(sys.argv[1]) // STEP * STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pressure = os.open(sys.argv[2], os.O_RDONLY)
def stalled():
    return int(os.pread(pressure, 256, 0).split(b"total=", 2)[1].split()[0])
sys.stdin.readline()
worst, waited, before, begun = 0.0, 0, stalled(), time.monotonic()
first = before
for start in range(0, len(held), STEP):
    clock = time.monotonic()
    held.madvise(POPULATE_WRITE, start, STEP)
    worst = max(worst, time.monotonic() - clock)
    now = stalled()
    waited, before = max(waited, now - before), now
took = time.monotonic() - begun
print(json.dumps({"worst_ms": worst * 1e3, "stall_ms": waited / 1e3, "stalls_ms": (before - first) / 1e3,
                  "mb_s": len(held) / 1e6 / took}), flush=True)
time.sleep(600)
"""
UPPER = 97
FILLED = 93
ALLOCATORS = 3
BE_PODS = 8
"""Smaller than what the online side wants: a loop that ends one of them, and pauses for 4 s then, comes too late."""
OTHERS_BYTES = 180 << 20
"""The agent and the interpreters of the workloads."""
MAX_STALL_MS = 200
HUGE = Path("/sys/kernel/mm/transparent_hugepage")
HUGE_PAGES = {"enabled": "always", "defrag": "never"}
"""The emulator zeroes large pages ten times as fast as it takes faults; compaction is another cause of waiting."""


def meminfo() -> dict[str, int]:
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}


def oom_kills() -> int:
    return int(Path("/proc/vmstat").read_text().split("oom_kill ", 1)[1].split()[0])


def stalls() -> int:
    """Allocations that had to reclaim or compact themselves, of the whole machine since boot."""
    rows = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(count) for name, count in rows if name.startswith(("allocstall", "compact_stall")))


@pytest.fixture
def spared() -> Any:
    """What the test itself needs must outlive an experiment that goes wrong."""
    mine = Path("/proc/self/oom_score_adj")
    before = mine.read_text()
    mine.write_text("-900")
    switches = {name: re.search(r"\[(.+?)\]", (HUGE / name).read_text()) for name in HUGE_PAGES}
    for name, value in HUGE_PAGES.items():
        (HUGE / name).write_text(value)
    yield
    for name, found in switches.items():
        assert found is not None
        (HUGE / name).write_text(found[1])
    mine.write_text(before)


def experiment(node: Node, *words: str) -> dict[str, Any]:
    """Numbers of one run: the online side's longest wait for 4 MiB, its rate, who was killed by whom."""
    free = meminfo()
    total, used = free["MemTotal"], free["MemTotal"] - free["MemAvailable"]
    each = (total * FILLED // 100 - used - OTHERS_BYTES) // BE_PODS
    batch = [node.add_pod(f"batch-{number}", "BE") for number in range(BE_PODS)]
    online = [node.add_pod(f"online-{number}", "LS") for number in range(ALLOCATORS)]
    holders = [node.run_in(target, HOLD, str(each)) for target in batch]
    for holder in holders:
        Path(f"/proc/{holder.pid}/oom_score_adj").write_text("1000")  # as a kubelet has it
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"full\n"
    wanted = total * 35 // 100 // ALLOCATORS
    allocators = [
        node.run_in(target, ALLOCATE, str(wanted), str(node.path(target, "memory.pressure"))) for target in online
    ]
    for process in allocators:
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("0")
    node.write_policy({"enable": True, "memoryEvictThresholdPercent": UPPER})
    gates = "--feature-gates=BEMemoryEvict=true"
    with node.agent(gates, "--evict-by=kill", *words) as agent:
        time.sleep(5)
        kills, waits, low = oom_kills(), stalls(), total
        full = 100 - 100 * meminfo()["MemAvailable"] / total
        for process in allocators:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        deadline_s = time.monotonic() + 120
        while not all(map(_ended_or_done, allocators)) and time.monotonic() < deadline_s:
            low = min(low, meminfo()["MemAvailable"])
            time.sleep(0.05)
        lines = [process.stdout.readline() for process in allocators if process.stdout and _ended_or_done(process)]
        results = [json.loads(line) for line in lines if line]
        found: dict[str, Any] = {
            name: max((round(one[name]) for one in results), default=None)
            for name in ("worst_ms", "stall_ms", "stalls_ms")
        }
        found["mb_s"] = round(sum(one["mb_s"] for one in results))
        found["online_alive"] = sum(process.poll() is None for process in allocators)
        found["oom_kills"] = oom_kills() - kills
        found["direct_reclaims"] = stalls() - waits
        found["full_percent"] = round(full, 1)
        found["least_available_mb"] = low >> 20
        found["batch_gone"] = sum(holder.poll() is not None for holder in holders)
        found["evictions"] = agent.text().count("pod.evict")
    return found


def _ended_or_done(process: Any) -> bool:
    return process.poll() is not None or bool(select.select([process.stdout], [], [], 0)[0])


MEASURED: dict[str, dict[str, Any]] = {}


def test_best_effort_yields_before_the_kernel_kills(node: Node, spared: Any) -> None:
    if (reason := why_not()) or not V2:
        pytest.skip(reason or "cgroup v2")
    MEASURED["koordlet"] = found = experiment(node)
    print(f"koordlet: {json.dumps(found)}")
    assert found["online_alive"] == ALLOCATORS
    assert found["oom_kills"] == 0
    assert found["batch_gone"] >= 1
    assert found["stall_ms"] <= MAX_STALL_MS


def test_a_look_per_second_for_comparison(node: Node, spared: Any) -> None:
    """The same minute, the same load. There the online side reclaims by itself and waits; the kernel may even kill."""
    if (reason := why_not()) or not V2:
        pytest.skip(reason or "cgroup v2")
    found = experiment(node, "--memory-ladder=false", "--memory-watch=false")
    print(f"polling: {json.dumps(found)}")
    if mine := MEASURED.get("koordlet"):
        assert found["stalls_ms"] >= mine["stalls_ms"]
        assert found["direct_reclaims"] >= mine["direct_reclaims"]
        assert found["least_available_mb"] <= mine["least_available_mb"]
