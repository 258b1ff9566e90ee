"""One phase: online service and batch job side by side for some seconds, and what each got."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from koordlet.demo import agent
from koordlet.demo.counters import Reading, Sample, cpus_between, read, to_samples
from koordlet.demo.layout import Layout, cpu_count, make_layout
from koordlet.demo.options import Options
from koordlet.load import child
from koordlet.load.batch import BatchKind, typical
from koordlet.load.cgroups import ScratchTree
from koordlet.load.online import MAX_WORKERS, OnlineLoad, OnlineResult

ONLINE_SHARE: Final = 0.36
"""Of the node, used by the online service: the load of a service that is sized with some reserve."""
WORK_US: Final = 300
QUOTA_SHARE: Final = 0.60
WARMUP_S: Final = 0.5
SAMPLE_S: Final = 0.1
RESULT_TIMEOUT_S: Final = 60.0


class Phase(StrEnum):
    ALONE = "alone"
    UNMANAGED = "unmanaged"
    QUOTA = "quota only"
    KOORDLET = "koordlet"


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU figures are mean CPUs over the measured time. other_cpus: everything else on the machine, stolen time too.

    work: the batch job's units. idle_share: batch CPU as a share of what the others left, None without a batch job.
    """

    phase: Phase
    antagonist: BatchKind | None
    online: OnlineResult
    online_cpus: float
    batch_cpus: float
    other_cpus: float
    work: int
    idle_share: float | None
    samples: tuple[Sample, ...]


def measure(
    tree: ScratchTree, options: Options, phase: Phase, kind: BatchKind | None, rounds: int, seed: int
) -> Measured:
    """Run one phase in a fresh tree. rounds: calibrated cost of a request. seed: of the arrivals."""
    layout = make_layout(tree, options.tree)
    load = OnlineLoad(
        rate_per_s=ONLINE_SHARE * cpu_count() * 1e6 / WORK_US,
        duration_s=options.phase_s,
        warmup_s=WARMUP_S,
        work_us=WORK_US,
        rounds=rounds,
        workers=min(2 * cpu_count(), MAX_WORKERS),
        seed=seed,
    )
    with ExitStack() as stack:
        # The online side first: its interpreter starts on a quiet machine.
        online = stack.enter_context(child.start(load, layout.online.procs_files))
        batch = None
        if kind is not None:
            job = typical(kind, options.phase_s, cpu_count())
            batch = stack.enter_context(child.start(job, layout.batch.procs_files))
        stack.enter_context(_setting(layout, phase, options))
        start_ns = child.soon_ns()
        for runner in filter(None, (online, batch)):
            runner.go(start_ns)
        readings = list(_readings(layout, start_ns, options.phase_s))
        served = online.online_result(RESULT_TIMEOUT_S)
        work = batch.batch_result(RESULT_TIMEOUT_S).work if batch else 0
    return _account(phase, kind, served, work, readings, start_ns)


def _setting(layout: Layout, phase: Phase, options: Options) -> AbstractContextManager[None]:
    if phase is Phase.QUOTA:
        layout.be_root.set_quota_us(round(QUOTA_SHARE * cpu_count() * 100_000))
    if phase is Phase.KOORDLET:
        return agent.stand_in(layout) if options.stand_in else agent.koordlet(layout)
    return nullcontext()


def _readings(layout: Layout, start_ns: int, phase_s: float) -> Iterator[Reading]:
    """Counters every SAMPLE_S and at the end; when we were kept waiting, half a step apart to catch up."""
    step_ns, end_ns = round(SAMPLE_S * 1e9), start_ns + round((WARMUP_S + phase_s) * 1e9)
    due_ns = start_ns
    while True:
        time.sleep(max(due_ns - time.monotonic_ns(), 0) / 1e9)
        reading = read(layout)
        yield reading
        if reading.at_ns >= end_ns:
            return
        due_ns = min(max(due_ns + step_ns, reading.at_ns + step_ns // 2), end_ns)


def _account(
    phase: Phase, kind: BatchKind | None, served: OnlineResult, work: int, readings: list[Reading], start_ns: int
) -> Measured:
    counted_ns = start_ns + round(WARMUP_S * 1e9)
    first = next(reading for reading in readings if reading.at_ns >= counted_ns)
    online, batch, other = cpus_between(first, readings[-1])
    idle = cpu_count() - online - other
    share = batch / idle if kind is not None and idle > 0 else None
    return Measured(phase, kind, served, online, batch, other, work, share, to_samples(readings, start_ns))
