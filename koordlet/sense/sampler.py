"""`Sampler`: one native pass per tick over every watched cgroup, and the node; hands out totals.

A steady tick makes no Python object per pod. A reading that is not there is None: a sum counts the cgroups that had a
rate in this pass, so a pod in its first tick is still inside the system usage (spec/collect W-44).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from koordlet._native import ffi, lib
from koordlet.kernel.host import Host
from koordlet.model.pod import HostApp, PodSet
from koordlet.model.view import Reading, Usage, WorkloadUsage
from koordlet.sense.node import NodeMeter
from koordlet.sense.pagecache import PageCacheMeter
from koordlet.sense.rows import Rings, Rows
from koordlet.sense.targets import Target, wanted_targets

if TYPE_CHECKING:
    from koordlet._native import CData

log = structlog.get_logger(__name__)

MAX_CPU_AGE_S: Final = 10.0
"""An older node reading gives no system usage (the reference's collect-sys-metric-outdated-interval)."""
MAX_MEMORY_AGE_S: Final = 15.0
"""memory.stat comes round every 10 passes; one late tick may be added."""
_NODE_SERIES: Final = (
    *(("node", "cpu"), ("node", "memory")),
    *(("system", "cpu"), ("system", "memory")),
    *(("be", "cpu"), ("be", "memory")),
)


@dataclass(frozen=True, slots=True)
class SamplerCounts:
    """rows: cgroups read; missing: wanted but not there; lost: went away since the start; errors: since the start.

    The rest is about the last pass: files read of each kind, containers skipped because their pod stood still.
    """

    rows: int
    descriptors: int
    missing: int
    lost: int
    errors: int
    counters: int
    raws: int
    memory_stats: int
    quotas: int
    skipped: int


class Sampler:
    """One thread at a time. nominal_time: takes every value at the tick's time, for tests in virtual time.

    throttling: asked before each pass whether the throttling of every container with a quota is wanted in it.
    page_cache, hot_cache: asked in each pass whether memory with page cache, and that without its cold part, is wanted
    in the rings. outdated_s: an older CPU reading of the node gives no system usage.
    """

    def __init__(
        self,
        host: Host,
        rings: Rings | None = None,
        *,
        nominal_time: bool = False,
        throttling: Callable[[], bool] = lambda: False,
        page_cache: Callable[[], bool] = lambda: False,
        hot_cache: Callable[[], bool] = lambda: False,
        outdated_s: float = MAX_CPU_AGE_S,
    ) -> None:
        self._rings = rings
        self._series = [] if rings is None else [rings.open(kind, "", metric) for kind, metric in _NODE_SERIES]
        self._rows = Rows(host, rings)
        self._node = NodeMeter(host)
        self._page_cache, self._hot_cache, self._outdated_s = page_cache, hot_cache, outdated_s
        self._cache = None if rings is None else PageCacheMeter(host, rings)
        self._totals = ffi.new("struct kl_totals *")
        self._flags = lib.KL_PASS_NOMINAL_TIME if nominal_time else 0
        self._throttling = throttling
        self._wanted: tuple[int, tuple[HostApp, ...], tuple[str, ...]] | None = None
        self._pods_known = False
        self._errors = 0

    def sync(self, pods: PodSet, host_apps: tuple[HostApp, ...], be_roots: tuple[str, ...]) -> None:
        """Watches exactly these from now on; cheap when nothing changed."""
        self._pods_known = pods.at_s is not None
        wanted = (pods.revision, host_apps, be_roots)
        if wanted != self._wanted:
            self._wanted = wanted
            self._rows.want(wanted_targets(pods, host_apps, be_roots))

    def sample(
        self, now_s: float, surge_mcpu: Reading | None = None, ls_pressure_permyriad: Reading | None = None
    ) -> Usage:
        """One pass. surge_mcpu and ls_pressure_permyriad are the sentinel's; they are handed through."""
        self._rows.retry()
        self._node.read(now_s)
        # Then nobody begins something of weight: who used little is read at every third tick.
        calm = self._node.moved_mcpu is not None and self._node.moved_mcpu <= lib.KL_CALM_MCPU
        totals = self._totals
        handle = ffi.NULL if self._rings is None else self._rings.handle
        throttling = self._throttling()
        flags = self._flags | (lib.KL_PASS_THROTTLING if throttling else 0) | (lib.KL_PASS_CALM if calm else 0)
        lib.kl_table_pass(self._rows.table, handle, round(now_s * 1e9), flags, totals)
        self._errors += totals.errors
        if totals.gone:
            self._rows.drop_gone(totals.gone)
        throttled = self._rows.throttled(round(now_s * 1e9), totals.throttled) if throttling else None
        usage = self._usage(now_s, surge_mcpu, ls_pressure_permyriad, throttled)
        self._append(now_s, usage)
        if self._cache is not None and self._pods_known and ((hot := self._hot_cache()) or self._page_cache()):
            self._cache.step(self._rows.items(), self._node.with_cache_bytes, now_s, hot=hot)
        return usage

    def workloads(self) -> Iterator[WorkloadUsage]:
        """Latest figures of every pod, container and host application, those without a cgroup included."""
        for target, row in self._rows.items():
            if target.kind != lib.KL_ROOT:
                yield _workload(target, row)

    def find(self, cgroup: str) -> WorkloadUsage | None:
        """Latest figures of the pod, container or host application in that cgroup, without making the others."""
        found = self._rows.find(cgroup)
        return None if found is None else _workload(*found)

    def root_usage(self) -> Iterator[WorkloadUsage]:
        """The same of the best-effort roots."""
        for target, row in self._rows.items():
            if target.kind == lib.KL_ROOT:
                yield _workload(target, row)

    @property
    def lack(self) -> str:
        """What of our own (descriptors, memory) keeps cgroups from being measured, "" when nothing does."""
        return self._rows.lack

    def counts(self) -> SamplerCounts:
        totals = self._totals
        return SamplerCounts(
            rows=len(self._rows),
            descriptors=self._rows.descriptors,
            missing=self._rows.missing,
            lost=self._rows.lost,
            errors=self._errors + self._node.errors,
            counters=totals.counters,
            raws=totals.raws,
            memory_stats=totals.memory_stats,
            quotas=totals.quotas,
            skipped=totals.skipped,
        )

    def close(self) -> None:
        """Closes every descriptor."""
        self._rows.close()
        self._node.close()
        self._wanted = None

    def _usage(
        self,
        now_s: float,
        surge_mcpu: Reading | None,
        ls_pressure_permyriad: Reading | None,
        throttled: tuple[str, ...] | None,
    ) -> Usage:
        cpu, memory = self._totals.cpu, self._totals.memory
        node_cpu, node_memory = self._node.mcpu, self._node.memory
        pods_cpu = pods_memory = nonbe_pods = None
        if self._pods_known:
            pods_cpu = _rate(cpu[lib.KL_SUM_PODS], now_s)
            nonbe_pods = _rate(cpu[lib.KL_SUM_NONBE_PODS], now_s)
            pods_memory = _weight(memory[lib.KL_SUM_PODS], now_s)
        hosts_cpu = _rate(cpu[lib.KL_SUM_HOSTS], now_s)
        hosts_memory = _weight(memory[lib.KL_SUM_HOSTS], now_s)
        return Usage(
            node_mcpu=node_cpu,
            pods_mcpu=pods_cpu,
            nonbe_pods_mcpu=nonbe_pods,
            hosts_mcpu=hosts_cpu,
            nonbe_hosts_mcpu=_rate(cpu[lib.KL_SUM_NONBE_HOSTS], now_s),
            be_mcpu=_roots(cpu[lib.KL_SUM_ROOTS], now_s),
            system_mcpu=_rest(node_cpu, pods_cpu, hosts_cpu, now_s, self._outdated_s),
            node_memory_bytes=node_memory,
            pods_memory_bytes=pods_memory,
            be_memory_bytes=_roots(memory[lib.KL_SUM_ROOTS], now_s),
            system_memory_bytes=_rest(node_memory, pods_memory, hosts_memory, now_s, MAX_MEMORY_AGE_S),
            surge_mcpu=surge_mcpu,
            ls_pressure_permyriad=ls_pressure_permyriad,
            throttled_containers=throttled,
        )

    def _append(self, now_s: float, usage: Usage) -> None:
        """The system's memory at the node's moment, though parts of it are older: averages of both must be of the same
        moments."""
        if self._rings is None:
            return
        system_memory = usage.system_memory_bytes
        if system_memory is not None and usage.node_memory_bytes is not None:
            system_memory = Reading(system_memory.value, usage.node_memory_bytes.at_s)
        readings = (
            usage.node_mcpu,
            usage.node_memory_bytes,
            usage.system_mcpu,
            system_memory,
            usage.be_mcpu,
            usage.be_memory_bytes,
        )
        for series, reading in zip(self._series, readings, strict=True):
            if reading is not None and now_s - reading.at_s < MAX_MEMORY_AGE_S:
                self._rings.push(series, reading.at_s, reading.value)


def raise_descriptor_limit() -> int:
    """Lifts this process's soft limit of open files to the hard one and returns it (four per pod, three per container).

    Call once at start, before anything copies the limit to children.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _rate(total: CData, now_s: float) -> Reading | None:
    """Sum of rates. Nobody there is a true 0; somebody there, but nobody with a rate yet, is no reading."""
    return None if total.missing and not total.rows else Reading(total.value, now_s)


def _weight(total: CData, now_s: float) -> Reading | None:
    """Sum of memory values, as old as the oldest of them."""
    if not total.rows:
        return None if total.missing else Reading(0.0, now_s)
    return Reading(total.value, min(total.oldest_ns / 1e9, now_s))


def _roots(total: CData, now_s: float) -> Reading | None:
    """The BE roots' own figures: all of them or none, a part would be misread as less."""
    return None if total.missing or not total.rows else Reading(total.value, min(total.oldest_ns / 1e9, now_s))


def _rest(
    node: Reading | None, pods: Reading | None, hosts: Reading | None, now_s: float, max_s: float
) -> Reading | None:
    """max(0, node - pods - hosts), as old as the oldest input; None when one is absent or too old."""
    if node is None or pods is None or hosts is None:
        return None
    at_s = min(node.at_s, pods.at_s, hosts.at_s)
    return Reading(max(0.0, node.value - pods.value - hosts.value), at_s) if now_s - at_s < max_s else None


def _workload(target: Target, row: CData | None) -> WorkloadUsage:
    name = target.pod.key if target.pod is not None else target.ident
    if row is None:
        return WorkloadUsage(name, target.cgroup, target.pod, target.container)
    return WorkloadUsage(
        name,
        target.cgroup,
        target.pod,
        target.container,
        cpu_mcpu=_reading(row.mcpu, row.mcpu_ns),
        memory_bytes=_reading(row.memory, row.memory_ns),
        memory_raw_bytes=_reading(row.raw, row.raw_ns),
        file_bytes=_reading(row.memory_cached - row.memory, row.memory_ns),
        throttled=_reading(row.throttled, row.throttled_ns),
    )


def _reading(value: float, at_ns: int) -> Reading | None:
    return None if at_ns == lib.KL_NEVER else Reading(value, at_ns / 1e9)
