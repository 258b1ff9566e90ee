"""`OnlineLoad`: a latency-probing online service under open-loop load, and what it measured.

Requests arrive at Poisson moments fixed beforehand; latency counts from that intended moment, so a service that
stalls is charged for every request that had to wait (no coordinated omission). Latencies in microseconds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from koordlet._native import ffi, lib
from koordlet.load.errors import LoadError

MAX_REQUESTS: Final = 4_000_000
MAX_WORKERS: Final = lib.KL_LOAD_WORKERS
SLOT_MS: Final = 100
"""Width of one slot of the timeline."""


@dataclass(frozen=True, slots=True)
class OnlineLoad:
    """What to run. work_us: CPU time of a request. rounds: the same, calibrated before (0: calibrate now).

    The first warmup_s are served but not counted. Requests still unfinished drain_s after the end are given up
    and counted with the time they had waited.
    """

    rate_per_s: float
    duration_s: float
    warmup_s: float = 0.5
    work_us: int = 300
    rounds: int = 0
    workers: int = 4
    seed: int = 1
    drain_s: float = 2.0

    def __post_init__(self) -> None:
        if not (self.rate_per_s > 0 and self.duration_s > 0 and self.warmup_s >= 0 and self.drain_s >= 0):
            raise LoadError(f"online load: rate_per_s and duration_s must be above 0: {self}")
        if self.work_us < 1 or not 1 <= self.workers <= MAX_WORKERS:
            raise LoadError(f"online load: work_us must be above 0, workers 1..{MAX_WORKERS}: {self}")
        if self.rate_per_s * (self.warmup_s + self.duration_s) > MAX_REQUESTS:
            raise LoadError(f"online load: more than {MAX_REQUESTS} requests: {self}")

    @property
    def total_s(self) -> float:
        return self.warmup_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Slot:
    """Requests intended in one slot of the timeline, at_s from the start (warm-up included)."""

    at_s: float
    count: int
    p50_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True, slots=True)
class OnlineResult:
    """count: requests counted, all that were due. given_up: those not finished in time."""

    count: int
    given_up: int
    mean_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    slots: tuple[Slot, ...] = ()


def run_online(load: OnlineLoad, start_ns: int) -> OnlineResult:
    """Serve the whole schedule in this process, from CLOCK_MONOTONIC start_ns on; blocks until it is over."""
    offsets = schedule(load)
    rounds = load.rounds or calibrate(load.work_us)
    deadline_ns = start_ns + round((load.total_s + load.drain_s) * 1e9)
    config = ffi.new("struct kl_load_online *", (start_ns, deadline_ns, rounds, load.workers))
    latencies = ffi.new("int64_t[]", max(len(offsets), 1))
    planned = ffi.new("int64_t[]", offsets or [0])
    served = lib.kl_load_online_run(config, planned, latencies, len(offsets))
    if served < 0:
        raise LoadError(f"online load: {os.strerror(-served)}")
    return summarize(load, offsets, ffi.unpack(latencies, len(offsets)), len(offsets) - served)


def calibrate(work_us: int) -> int:
    """Rounds of arithmetic that cost work_us of CPU time here and now; do it while the machine is quiet."""
    return int(lib.kl_load_calibrate(work_us * 1000))


def schedule(load: OnlineLoad) -> list[int]:
    """Intended moments in ns from the start; a function of rate, duration and seed only."""
    duration_ns = round(load.total_s * 1e9)
    expected = load.rate_per_s * load.total_s
    capacity = int(expected + 6 * math.sqrt(expected)) + 16
    out = ffi.new("int64_t[]", capacity)
    count = lib.kl_load_schedule(load.seed, load.rate_per_s, duration_ns, out, capacity)
    if count < 0:
        raise LoadError(f"online load: schedule: {os.strerror(-count)}")
    return list(ffi.unpack(out, count))


def summarize(
    load: OnlineLoad, offsets_ns: Sequence[int], latencies_ns: Sequence[int], given_up: int = 0
) -> OnlineResult:
    """Quantiles of the requests intended after the warm-up, and the timeline of all."""
    warmup_ns = round(load.warmup_s * 1e9)
    pairs = zip(offsets_ns, latencies_ns, strict=True)
    counted = sorted(latency for offset, latency in pairs if offset >= warmup_ns)
    if not counted:
        raise LoadError("online load: no request fell into the measured time; raise the rate or the duration")
    return OnlineResult(
        count=len(counted),
        given_up=given_up,
        mean_us=sum(counted) / len(counted) / 1000,
        p50_us=quantile(counted, 0.5) / 1000,
        p99_us=quantile(counted, 0.99) / 1000,
        p999_us=quantile(counted, 0.999) / 1000,
        max_us=counted[-1] / 1000,
        slots=_slots(offsets_ns, latencies_ns),
    )


def quantile(ascending: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of all values do not exceed."""
    return ascending[max(math.ceil(share * len(ascending)) - 1, 0)]


def _slots(offsets_ns: Sequence[int], latencies_ns: Sequence[int]) -> tuple[Slot, ...]:
    by_slot: dict[int, list[int]] = {}
    for offset, latency in zip(offsets_ns, latencies_ns, strict=True):
        by_slot.setdefault(offset // (SLOT_MS * 1_000_000), []).append(latency)
    made = []
    for index, found in sorted(by_slot.items()):
        found.sort()
        p50, p99 = quantile(found, 0.5) / 1000, quantile(found, 0.99) / 1000
        made.append(Slot(index * SLOT_MS / 1000, len(found), p50, p99, found[-1] / 1000))
    return tuple(made)
