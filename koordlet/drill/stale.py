"""The drill in which the agent's figures of the node stop coming."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from koordlet.demo.layout import cpu_count
from koordlet.drill.node import Others
from koordlet.drill.stage import TOO_BUSY, Agent, Check, Stage, Verdict, took, until
from koordlet.load import child
from koordlet.load.batch import BatchKind, typical
from koordlet.load.errors import LoadError

OLD_AFTER_S: Final = 4.0
"""Three intervals, and the one that has begun."""
FLOOR_AFTER_S: Final = 15.0
FLOOR_PERCENT: Final = 5
CEILING_PERCENT: Final = 95
"""Much is lent, so that a busy node leaves something to hold."""
GROW_S: Final = 20.0
FEED_S: Final = 0.1
COPIED: Final = ("stat", "meminfo")


class Feeder:
    """A proc directory for the agent: links to the real files, but /proc/stat and meminfo copied while it feeds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        for name in os.listdir("/proc"):
            if not name.isdigit() and name not in COPIED:
                (root / name).symlink_to(f"/proc/{name}")
        self._on = self._alive = True
        self._copy()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def pause(self) -> None:
        """The files turn empty: every read fails, as it does where a collector is stuck."""
        self._on = False
        time.sleep(2 * FEED_S)
        for name in COPIED:
            (self.root / name).write_bytes(b"")

    def resume(self) -> None:
        self._on = True

    def _copy(self) -> None:
        for name in COPIED:
            data = Path(f"/proc/{name}").read_bytes()
            with (self.root / name).open("r+b" if (self.root / name).exists() else "wb") as file:
                os.pwrite(file.fileno(), data, 0)
                os.ftruncate(file.fileno(), len(data))

    def _run(self) -> None:
        while self._alive:
            if self._on:
                self._copy()
            time.sleep(FEED_S)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alive = False
        self._thread.join(2)


def stale_metrics(stage: Stage) -> Verdict:
    layout = stage.layout()
    threshold = {
        "enable": True,
        "cpuSuppressPolicy": "cfsQuota",
        "cpuSuppressThresholdPercent": CEILING_PERCENT,
        "memoryEvictThresholdPercent": 99,
    }
    # 100 % is no floor at all: what best effort has is kept for ever.
    floor = FLOOR_PERCENT if stage.protected else 100
    words = (f"--stale-floor-percent={floor}", "--feature-gates=BEMemoryEvict=true")
    floor_us = cpu_count() * 1000 * FLOOR_PERCENT
    with (
        stage.directory() as directory,
        Feeder(directory / "proc") as feeder,
        child.start(typical(BatchKind.COMPUTE, 120, cpu_count()), layout.batch.procs_files) as batch,
        Agent(layout, directory, threshold, f"-proc-root-dir={directory / 'proc'}", *words) as agent,
    ):
        batch.go(time.monotonic_ns())

        def quota_us() -> int:
            return layout.be_root.quota_us() or 0

        if until(lambda: layout.be_root.quota_us() is not None, 10) is None:
            raise LoadError(f"no quota was ever set: {agent.last_words()}")
        if until(lambda: quota_us() >= 2 * floor_us, 20) is None:
            raise LoadError(TOO_BUSY)
        feeder.pause()
        paused_s = time.monotonic()
        time.sleep(OLD_AFTER_S)
        # Whoever acts on the last figures, or takes absent ones for zero, evicts now.
        agent.change_policy({**threshold, "memoryEvictThresholdPercent": 1, "memoryEvictLowerPercent": 0})
        held = quota_us()
        if held <= floor_us:  # then there is nothing left to see
            raise LoadError(TOO_BUSY)
        lowest = highest = held
        while time.monotonic() - paused_s < FLOOR_AFTER_S - 2:
            now = quota_us()
            lowest, highest = min(lowest, now), max(highest, now)
            time.sleep(0.1)
        floored = until(lambda: 0 < quota_us() <= floor_us, 8)
        evicted = [row for row in agent.audit() if row.get("reason") == "BEMemoryEvict"]
        agent.change_policy(threshold)
        feeder.resume()
        others = Others(layout.batch)

        def grows() -> bool:
            others.look()
            return quota_us() > floor_us

        grown = until(grows, GROW_S, 0.05)
        # Where others leave hardly more than the floor, best effort cannot grow.
        if grown is None and stage.protected and others.peak > (CEILING_PERCENT - 2 * FLOOR_PERCENT) / 100:
            raise LoadError(TOO_BUSY)
    return Verdict(
        "stale-metrics",
        (
            Check("the limit holds while figures are old", lowest == highest, f"{lowest}..{highest} us"),
            Check("best effort goes to its safe floor", floored is not None, f"{took(floored)} after the hold"),
            Check("nobody evicted on old figures", not evicted, f"{len(evicted)} evictions"),
            Check("it grows again with new figures", grown is not None, took(grown)),
        ),
    )
