"""The drills in which the online side suddenly wants more: CPU, memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from koordlet.drill.node import Others, cpus, memory, oom_kills
from koordlet.drill.stage import TOO_BUSY, Agent, Check, Stage, Verdict, took, until
from koordlet.load import child
from koordlet.load.batch import BatchKind, BatchLoad, Surge, typical
from koordlet.load.cgroups import Group
from koordlet.load.errors import LoadError

SUPPRESS_PERCENT: Final = 65
TICKS: Final = "koordlet_ticks_total"
LOOPS: Final = 2
LOOP_S: Final = 1.0
LOOPS_S: Final = 2.5
"""Two loops of a second, and the time to look."""
RUNNING_S: Final = 0.02
"""Of each CPU: who has used that much has begun."""
SLOW_LOOPS_S: Final = 15.0
"""Until when the loops are counted instead, on a machine that is too busy for one each second."""
RAMP_S: Final = 30.0
"""From nothing to all in steps of a tenth per second, three times over for a machine that does other things too."""
GIVEN_BACK: Final = 0.7
"""Of what best effort had before, or of what others leave of it now. The agent keeps small gains back for a while."""
MIN_SHARE: Final = 0.25
"""Of the node, in best effort's hands before the surge."""
HELD_PERCENT: Final = 2
"""Of the node's memory: what best effort holds in the memory drill; the online side adds about three times that."""
ABOVE_PERCENT: Final = 4
"""Where the threshold is, above what is in use: so that the lower line is not reached either at first."""
GAP_PERCENT: Final = 2
"""Between the lower line, from which best effort is held, and the threshold, from which somebody is evicted."""
MAX_BYTES: Final = 8 << 30
YIELD_S: Final = 8.0
LONGEST_S: Final = 300.0
"""How long memory is held at most: as long as an agent may take to start, and its answers."""


def cpu_surge(stage: Stage) -> Verdict:
    layout = stage.layout()
    threshold = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": SUPPRESS_PERCENT}
    words = () if stage.protected else ("--feature-gates=BECPUSuppress=false",)
    longest_s = stage.seconds + RAMP_S + 40
    online_load = Surge(threads=cpus(), duty_permille=900, duration_s=stage.seconds)
    with (
        stage.directory() as directory,
        child.start(online_load, layout.online.procs_files) as online,
        child.start(typical(BatchKind.COMPUTE, longest_s, cpus()), layout.batch.procs_files) as batch,
        Agent(layout, directory, threshold, *words) as agent,
    ):
        batch.go(time.monotonic_ns())

        def quota_us() -> int:
            return layout.be_root.quota_us() or cpus() * 100_000

        enough_us = MIN_SHARE * cpus() * 100_000
        if stage.protected:
            until(lambda: layout.be_root.quota_us() is not None, 5)
        if until(lambda: quota_us() >= enough_us, 20) is None:
            raise LoadError(TOO_BUSY)
        time.sleep(3)
        before, loops = quota_us(), agent.metric(TICKS) or 0.0
        idle_ns = layout.online.usage_ns()
        online.go(time.monotonic_ns())
        # Where other work keeps its threads waiting, the surge begins later.
        until(lambda: layout.online.usage_ns() - idle_ns >= RUNNING_S * cpus() * 1e9, SLOW_LOOPS_S, 0.001)
        reduced = until(lambda: quota_us() < 0.7 * before, min(SLOW_LOOPS_S, stage.seconds))
        asked_s = time.monotonic()
        loops = (agent.metric(TICKS) or 0.0) - loops
        loops = max(loops - (time.monotonic() - asked_s) // LOOP_S, 0)  # some passed while the agent answered
        lowest = quota_us()
        end_s = time.monotonic() + stage.seconds
        while time.monotonic() < end_s:
            lowest = min(lowest, quota_us())
            time.sleep(0.05)
        others = Others(layout.batch, layout.online)

        def left_us() -> float:
            """What best effort can get back: others may have become busier since the surge."""
            return min(before, (SUPPRESS_PERCENT / 100 - others.look()) * cpus() * 100_000)

        restored = until(
            lambda: layout.be_root.quota_us() is not None and quota_us() >= GIVEN_BACK * max(left_us(), enough_us),
            RAMP_S,
            0.05,
        )
        if restored is None and stage.protected and left_us() < enough_us:
            raise LoadError(TOO_BUSY)
        evicted = [row for row in agent.audit() if "Evict" in row.get("reason", "")]
    return Verdict(
        "cpu-surge",
        (
            Check(
                "best effort's quota cut within two loops",
                reduced is not None and (reduced <= LOOPS_S or loops <= LOOPS),
                f"{took(reduced)}, {loops:.0f} loops",
            ),
            Check("lowest quota", lowest < 0.5 * before, f"{lowest / 1e5:.2f} of {before / 1e5:.2f} CPUs"),
            Check("nobody evicted", not evicted, f"{len(evicted)} evictions"),
            Check("given back within a growth ramp", restored is not None, took(restored)),
        ),
    )


def mem_surge(stage: Stage) -> Verdict:
    """The online side grows twice: to where best effort is to be held and nobody evicted, then over the threshold."""
    layout = stage.layout()
    if "memory" not in layout.batch.where.roots:
        raise LoadError("mem-surge needs the memory controller")
    total, available = memory()
    amount = total * HELD_PERCENT // 100
    if amount * 4 > min(available // 2, MAX_BYTES):
        raise LoadError(f"mem-surge would need {amount * 4 >> 20} MiB, more than this node can spare")
    used = total - available + amount
    upper = used * 100 // total + ABOVE_PERCENT
    lower = upper - GAP_PERCENT
    threshold = {"enable": True, "memoryEvictThresholdPercent": upper, "memoryEvictLowerPercent": lower}
    gates = ("--feature-gates=BEMemoryEvict=true",) if stage.protected else ("--memory-ladder=false",)
    kills, high = oom_kills(), _high_file(layout.batch)

    def holds(size: int) -> BatchLoad:
        return BatchLoad(BatchKind.MEMORY, stage.seconds + LONGEST_S, warmup_s=0, workers=1, bytes=size)

    to_lower = total * lower // 100 - used + total // 200
    with (
        stage.directory() as directory,
        child.start(holds(amount), layout.batch.procs_files) as batch,
        child.start(holds(to_lower), layout.online.procs_files) as online,
        child.start(holds(total * (GAP_PERCENT + 1) // 100), layout.online.procs_files) as more,
    ):
        batch.go(time.monotonic_ns())  # before the agent begins: one that saw it grow would hold it already
        until(lambda: _anon(layout.batch) > 0.9 * amount, 20, 0.05)
        with Agent(layout, directory, threshold, *gates) as agent:
            online.go(time.monotonic_ns())
            until(lambda: bool(_noticed(agent)), YIELD_S if high is not None else 1.0, 0.1)
            noticed, early = _noticed(agent), _evictions(agent)
            more.go(time.monotonic_ns())
            gone = until(lambda: not _members(layout.batch), YIELD_S)
            until(lambda: bool(_evictions(agent)), YIELD_S if gone is not None else 0, 0.1)
            evictions = _evictions(agent)
            online_alive = bool(_members(layout.online))
    checks = [
        Check("best effort yielded", gone is not None and bool(evictions), took(gone)),
        Check("one eviction, with the feature as reason", len(evictions) == 1, f"{len(evictions)} records"),
        Check("the online side went on", online_alive, "running" if online_alive else "gone"),
        Check("no kill by the kernel", oom_kills() == kills, f"{oom_kills() - kills} kills"),
    ]
    if high is not None:
        first = bool(noticed) and not early
        checks.append(Check("held or reclaimed first", first, f"{len(noticed)} writes, {len(early)} evictions by then"))
    return Verdict("mem-surge", tuple(checks))


def _noticed(agent: Agent) -> list[dict[str, Any]]:
    return [row for row in agent.audit() if row.get("knob") in ("memory.high", "memory.reclaim")]


def _evictions(agent: Agent) -> list[dict[str, Any]]:
    return [row for row in agent.audit() if row.get("reason") == "BEMemoryEvict"]


def _members(group: Group) -> list[str]:
    return (group.dir("memory") / "cgroup.procs").read_text().split()


def _anon(group: Group) -> int:
    key = "anon " if group.where.v2 else "total_rss "
    for line in (group.dir("memory") / "memory.stat").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    return 0


def _high_file(group: Group) -> Path | None:
    path = group.dir("memory") / "memory.high"
    return path if path.exists() else None
