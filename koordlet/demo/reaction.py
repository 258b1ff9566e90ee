"""How long after the start of an online surge the kernel has a lower batch limit (suppress loop on, cfsQuota)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from koordlet.demo import agent
from koordlet.demo.counters import PERIOD_US, Reading, Sample, read, to_samples
from koordlet.demo.layout import Layout, cpu_count, make_layout
from koordlet.demo.options import TreeKind
from koordlet.load import child
from koordlet.load.batch import BatchKind, Surge, typical
from koordlet.load.cgroups import ScratchTree
from koordlet.load.errors import LoadError
from koordlet.load.online import quantile

SURGE_PERMILLE: Final = 600
"""Of the node."""
SURGE_S: Final = 1.0
LOWER: Final = 0.85
"""A limit below this share of the one before the surge counts as the answer to it."""
MISSED_S: Final = 10.0
SETTLE_S: Final = 3.0
RECOVER_S: Final = 60.0
CALM_POLL_S: Final = 0.02
SURGE_POLL_S: Final = 0.001
"""Polling costs CPU that the agent takes for system usage, so the fast pace is for the few milliseconds that count."""
SAMPLE_NS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Reaction:
    """delays_ms: one per surge, None for a surge without an answer within MISSED_S. Quantiles are of the others.

    note: why there were fewer surges than asked for, or "".
    """

    delays_ms: tuple[float | None, ...]
    samples: tuple[Sample, ...]
    note: str = ""

    @property
    def missed(self) -> int:
        return self.delays_ms.count(None)

    def quantile_ms(self, share: float) -> float | None:
        known = sorted(delay for delay in self.delays_ms if delay is not None)
        return quantile(known, share) if known else None


def measure_reaction(
    tree: ScratchTree,
    kind: TreeKind,
    surges: int,
    progress: Callable[[str], None],
    recovered_share: float = 0.5,
    seed: int = 1,
) -> Reaction:
    """Batch spins all the time; each round the online side, idle until then, starts at a random phase of the tick.

    A round begins when the limit is back at recovered_share of what the threshold gives on an idle node.
    """
    layout = make_layout(tree, kind)
    full_us = agent.SUPPRESS_PERCENT * cpu_count() * PERIOD_US // 100
    longest_s = SETTLE_S + surges * (MISSED_S + RECOVER_S + SURGE_S + 2)
    surge = Surge(threads=cpu_count(), duty_permille=SURGE_PERMILLE, duration_s=SURGE_S)
    with (
        child.start(surge, layout.online.procs_files) as online,
        child.start(typical(BatchKind.COMPUTE, longest_s, cpu_count()), layout.batch.procs_files) as batch,
        agent.koordlet(layout, suppress=True),
    ):
        batch.go(time.monotonic_ns())
        watch = _Watch(layout)
        watch.until(lambda quota_us: False, SETTLE_S)
        enough_us = recovered_share * full_us
        phases, delays, note = random.Random(seed), [], ""
        for number in range(surges):
            if not watch.until(lambda quota_us: quota_us >= enough_us, RECOVER_S):
                note = f"stopped after {number}: the machine is so busy that the batch limit stays low"
                break
            watch.until(lambda quota_us: False, phases.random())
            delays.append(_one_surge(watch, online))
            progress(f"surge {number + 1}/{surges}: " + ("no answer" if delays[-1] is None else f"{delays[-1]:.1f} ms"))
        return Reaction(tuple(delays), to_samples(watch.readings, watch.readings[0].at_ns), note)


def _one_surge(watch: _Watch, online: child.Child) -> float | None:
    """Delay in ms from the moment the surge is told to start, which is a little before it does."""
    before_us = watch.quota_us()
    start_ns = time.monotonic_ns()
    online.go(start_ns)
    answered = watch.until(lambda quota_us: quota_us < LOWER * before_us, MISSED_S, SURGE_POLL_S)
    delay_ms = (time.monotonic_ns() - start_ns) / 1e6
    watch.until(lambda quota_us: False, max(SURGE_S - delay_ms / 1000, 0))
    online.wait(SURGE_S + MISSED_S)
    return delay_ms if answered else None


class _Watch:
    """Polls the quota, and keeps a reading of all counters every SAMPLE_NS for the picture."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.readings: list[Reading] = [read(layout)]

    def quota_us(self) -> int:
        quota_us = self.layout.be_root.quota_us()
        if quota_us is None:
            raise LoadError("the batch limit vanished while the suppress loop was on")
        return quota_us

    def until(self, seen: Callable[[int], bool], timeout_s: float, poll_s: float = CALM_POLL_S) -> bool:
        """Whether the quota was seen so before the time was over."""
        deadline_ns = time.monotonic_ns() + round(timeout_s * 1e9)
        while not seen(self.quota_us()):
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns:
                return False
            if now_ns - self.readings[-1].at_ns >= SAMPLE_NS:
                self.readings.append(read(self.layout))
            time.sleep(min(poll_s, (deadline_ns - now_ns) / 1e9))
        return True
