"""`BatchLoad`: a greedy batch job of one kind, and `Surge`: an online side that suddenly wants CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from koordlet._native import ffi, lib
from koordlet.load.errors import LoadError


class BatchKind(StrEnum):
    """What the job does and, in the comment, its unit of work."""

    COMPUTE = "compute"  # 1000 rounds of arithmetic
    STORM = "storm"  # a child forked, that maps, touches and unmaps memory, and is reaped
    MEMORY = "memory"  # MiB of held memory touched
    STREAM = "stream"  # MiB copied
    DISK = "disk"  # MiB written and synced


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """workers: processes. bytes: held per worker, per child of a storm, or file size of the disk antagonist.

    burst: children that each worker of a storm keeps alive. directory: where the disk antagonist works (its file
    has no name). Work is counted for duration_s after warmup_s.
    """

    kind: BatchKind
    duration_s: float
    warmup_s: float = 0.5
    workers: int = 4
    bytes: int = 4 << 20
    burst: int = 8
    directory: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", BatchKind(self.kind))
        if self.duration_s <= 0 or self.warmup_s < 0:
            raise LoadError(f"batch load: duration_s must be above 0: {self}")
        if not 1 <= self.workers <= lib.KL_LOAD_WORKERS or not 1 <= self.burst <= lib.KL_LOAD_BURST:
            limits = f"workers 1..{lib.KL_LOAD_WORKERS}, burst 1..{lib.KL_LOAD_BURST}"
            raise LoadError(f"batch load: {limits}: {self}")
        if self.kind not in (BatchKind.COMPUTE, BatchKind.STORM) and self.bytes < 2 << 20:
            raise LoadError(f"batch load: bytes must be at least 2 MiB: {self}")
        if self.kind is BatchKind.DISK and not self.directory:
            raise LoadError(f"batch load: the disk antagonist needs a directory: {self}")


def typical(kind: BatchKind, duration_s: float, cpus: int, directory: str = "") -> BatchLoad:
    """A job of that kind that wants more than `cpus` CPUs; the storm is a parallel build of very small files."""
    if kind is BatchKind.STORM:
        return BatchLoad(kind, duration_s, workers=min(8 * cpus, 256), bytes=256 << 10, burst=16)
    workers = min(2 * cpus, lib.KL_LOAD_WORKERS)
    return BatchLoad(kind, duration_s, workers=workers, bytes=64 << 20, directory=directory)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """work: units done in the counted time."""

    work: int


@dataclass(frozen=True, slots=True)
class Surge:
    """`threads` threads that compute for duty_permille of each 10 ms, for duration_s from each `go`."""

    threads: int
    duty_permille: int
    duration_s: float


def run_batch(load: BatchLoad, start_ns: int) -> BatchResult:
    """Run the job in forked children until its deadline; blocks until then."""
    count_from_ns = start_ns + round(load.warmup_s * 1e9)
    deadline_ns = count_from_ns + round(load.duration_s * 1e9)
    directory = ffi.new("char[]", os.fsencode(load.directory)) if load.directory else ffi.NULL
    kind = getattr(lib, f"KL_LOAD_{load.kind.name}")
    fields = (kind, load.workers, load.burst, load.bytes, count_from_ns, deadline_ns, directory)
    work = ffi.new("uint64_t *")
    error = lib.kl_load_batch_run(ffi.new("struct kl_load_batch *", fields), work)
    if error < 0:
        raise LoadError(f"batch load {load.kind}: {os.strerror(-error)}")
    return BatchResult(work=int(work[0]))


def run_surge(surge: Surge, start_ns: int) -> None:
    """Compute until duration_s after start_ns; blocks until then."""
    error = lib.kl_load_spin(surge.threads, surge.duty_permille, start_ns + round(surge.duration_s * 1e9))
    if error < 0:
        raise LoadError(f"surge: {os.strerror(-error)}")
