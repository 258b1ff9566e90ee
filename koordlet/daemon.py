"""Composition root: the only file that knows all rooms. Builds them, starts them in order, stops them in reverse.

Start: lock -> journal -> inputs, sources, sense -> executor -> doors -> loop. What a crashed predecessor left stays in
force until the strategies have judged; then what they do not want is given back.
Stop (SIGTERM, SIGINT): loop ends -> everything written is given back (unless told to keep it) -> doors close.
SIGHUP looks at the files at once, which happens each tick anyway.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from koordlet.act.executor import Executor
from koordlet.act.job import Job
from koordlet.act.journal import Journal, JournalError, read_boot_id
from koordlet.act.lock import DirectoryLock, Lock, LockedError
from koordlet.act.reclaim import Reclaimer
from koordlet.config.flags import Flags
from koordlet.decide.strategies import STRATEGIES
from koordlet.doors.http import DoorError
from koordlet.inputs import KubepodsInput, NodeInput, PolicyInput, SupportInput
from koordlet.kernel.host import Host
from koordlet.kernel.ownpages import collapse_heap
from koordlet.kernel.write import write_file
from koordlet.loops import Engine
from koordlet.loops import run as run_loop
from koordlet.model.places import JOURNAL_FILE, LOCK_FILE, SOCKET_FILE
from koordlet.model.pod import PodSet
from koordlet.model.psi import Pressures
from koordlet.model.status import Snapshot
from koordlet.parts import Parts
from koordlet.report import logs
from koordlet.report.audit import AuditLog
from koordlet.report.auditnames import NamedAudit
from koordlet.report.metrics import Metrics
from koordlet.report.notify import Notifier, watchdog_interval_s
from koordlet.report.pages import Pages
from koordlet.sense.psi import PressureMeter
from koordlet.sense.sampler import Sampler, raise_descriptor_limit
from koordlet.sense.sentinel import Sentinel
from koordlet.sources.followed import follow_node, follow_policy
from koordlet.store.rings import RingStore
from koordlet.wiring import podrules, qosloops
from koordlet.wiring.beroots import BeInput, ls_groups
from koordlet.wiring.doors import events_page, http_door, pod_resources_door
from koordlet.wiring.evict import ThroughCluster, make_evictor
from koordlet.wiring.hardware import HardwareInput, make_resctrl
from koordlet.wiring.metrics import include_node, write_times
from koordlet.wiring.runtime import RuntimeDoors
from koordlet.wiring.sources import Sources, make_sources

if TYPE_CHECKING:
    from koordlet.wiring.cluster import Cluster

log = structlog.get_logger(__name__)

JUDGED_TICKS = 3
"""By then a rate has been taken, and every strategy has named what it wants."""
JUDGED_LATEST_S = 30.0
"""Without pods, what a predecessor left is given back after this."""


class StartError(Exception):
    """The agent cannot start; the text says why and what to do."""


def run(flags: Flags) -> int:
    """Run the agent until it is told to stop; the process's exit code."""
    logs.configure(flags.log_format, flags.log_level)
    for warning in flags.warnings:
        log.warning("flag.warning", what=warning)
    stop = Stop()
    try:
        with ExitStack() as stack:
            agent = build(flags, stack, stop)
            agent.serve()
    except (StartError, LockedError, DoorError, JournalError) as error:
        log.error("start.failed", error=str(error))
        return 1
    return 0


class Stop:
    """Signals become bytes on a pipe that the loop waits on, and flags it reads. Handlers do nothing else: they may
    interrupt anything, a log line included."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.reload = False
        self.wake_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)

    def wake(self) -> None:
        """Let the loop look for news of its sources; from any thread."""
        with suppress(BlockingIOError):  # full: it is awake already
            os.write(self._write_fd, b"\0")

    def _ask(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self.reload = True
        else:
            self.asked = signal.Signals(number)


@dataclass(slots=True)
class Agent:
    """The built agent; `serve` runs it."""

    flags: Flags
    engine: Engine
    executor: Executor
    doors: RuntimeDoors
    notifier: Notifier
    stop: Stop

    def serve(self) -> None:
        interval_s = watchdog_interval_s()
        pinged_s, started_s = 0.0, time.monotonic()
        degraded: tuple[str, ...] = ()
        reloading = False

        def after_tick(now_s: float) -> None:
            nonlocal pinged_s, degraded, reloading
            snapshot = self.engine.snapshot
            if snapshot is not None and snapshot.degraded != degraded:
                tell_degraded(degraded, snapshot.degraded)
                degraded = snapshot.degraded
            if reloading:  # this tick has looked at every file after the signal
                reloading = False
                self.notifier.ready("running")
                log.info("reload.done")
            if self.executor.owes and snapshot is not None and self._judged(snapshot, now_s - started_s):
                self.executor.give_back_left()
            if self.stop.reload:
                self.stop.reload = False
                reloading = True
                self.notifier.reloading()
                log.info("reload.asked")
            if self.engine.stats.ticks == 1:
                self.notifier.ready("running")
                settle()
                log.info("ready", node=snapshot.view.node.name if snapshot else "")
            if interval_s is not None and now_s - pinged_s >= interval_s:
                pinged_s = now_s
                self.notifier.watchdog()

        log.info("start", pid=os.getpid(), standalone=self.flags.standalone, observe=self.flags.observe)
        try:
            run_loop(self.engine, lambda: self.stop.asked is not None, self.stop.wake_fd, after_tick)
        finally:  # whatever ended the loop, nothing of ours stays behind
            asked = self.stop.asked
            log.info("stopping", signal=asked.name if asked else "")
            self.notifier.stopping()
            self.doors.close()  # or a pod of this moment would get what is being given back
            if self.flags.restore_on_exit:
                why = "clean stop" if asked else "the loop failed"
                for applier in self.engine.parts.appliers:
                    applier.restore_all(time.monotonic(), why)
                self.executor.restore_all(time.monotonic(), why)
        log.info("stopped")

    def _judged(self, snapshot: Snapshot, running_s: float) -> bool:
        """Whether what nobody wants now is not wanted: the inputs were there, or a write was refused that a value left
        behind may stand in the way of, or they have not come for too long."""
        ticks = self.engine.stats.ticks
        known = snapshot.view.pods.at_s is not None and ticks >= JUDGED_TICKS
        return known or snapshot.apply.failed > 0 or running_s >= JUDGED_LATEST_S


def build(flags: Flags, stack: ExitStack, stop: Stop) -> Agent:
    """Everything in order; `stack` undoes it in reverse. Raises StartError and the rooms' own start errors."""
    raise_descriptor_limit()
    host = make_host(flags)
    stack.enter_context(_lock(flags.run_dir))
    if not flags.observe:
        stack.enter_context(_tree_lock(host, flags.cgroup_root))
    audit = AuditLog(
        flags.audit_log_dir if flags.audit else None,
        verbose=flags.audit_verbose,
        max_mb=flags.audit_max_disk_space_bytes >> 20,
    )
    journal: Journal | None = None
    if not flags.observe:
        journal = open_journal(flags.state_dir, host, stack)
    own_version = version("koordlet")
    rings = RingStore()
    sampler = Sampler(
        host,
        rings,
        throttling=qosloops.ThrottlingWanted(lambda: policy.current, lambda: engine),
        page_cache=lambda: cluster is not None and cluster.page_cache(),
        hot_cache=lambda: cluster is not None and cluster.hot_cache(),
        outdated_s=flags.collect_sys_metric_outdated_interval_s,
    )
    stack.callback(sampler.close)
    kubepods = KubepodsInput(flags, host)
    engine: Engine
    metrics = Metrics(
        lambda: engine.snapshot,
        lambda: engine.workloads(),
        lambda: _extra(sampler, sentinel, audit, sources, cluster) | doors.figures(),
        start_time_s=time.time(),
        version=own_version,
        node=flags.node_name,
    )
    include_node(metrics, flags)
    cluster = None if flags.standalone else _cluster(flags, host, rings, metrics, stack)
    kubelet = cluster.pods if cluster else None
    sources = make_sources(flags, host, kubepods, stack, lambda now_s: node.poll(now_s), kubelet, stop.wake)
    policy = PolicyInput(
        flags,
        kubepods,
        metrics.count_policy_reload_failed,
        follow_policy(cluster.slo, kubepods.host_app_dir, lambda: kubepods.get) if cluster else None,
        hooked=lambda: doors.hooked,
    )
    doors = RuntimeDoors(
        flags,
        kubepods,
        lambda: engine.snapshot,
        lambda: policy.current,
        metrics.observe_hook,
        pods=lambda: engine.pods,
    )
    stack.callback(doors.inbox.close)
    stack.callback(doors.close)
    be = BeInput(host, kubepods, lambda: policy.current, lambda now_s: node.poll(now_s))
    stack.callback(be.close)
    node = NodeInput(flags, host, metrics.count_collect, follow_node(cluster.node) if cluster else None)
    timed = write_times(metrics)

    def observed(job: Job, ms: float, ok: bool) -> None:
        timed(job, ms, ok)
        engine.between_writes(time.monotonic())

    executor = Executor(
        host,
        journal,
        NamedAudit(audit, lambda: engine.pods),
        observe=flags.observe,
        force_s=flags.resource_force_update_s,
        observed=observed,
        replies=doors.replies,
    )
    support = SupportInput(host, lambda: be.first, executor.reprobe)
    sentinel = Sentinel(host)
    stack.callback(sentinel.close)

    def online(pods: PodSet) -> tuple[str, ...]:
        return ls_groups(pods, kubepods.get if kubepods.wanted else None)

    def degraded() -> tuple[str, ...]:
        reasons = [*executor.degraded(), policy.error, node.error, sampler.lack, *sources.errors(), *doors.errors()]
        reasons += cluster.errors() if cluster else ()
        if audit.last_error:
            reasons.append(f"audit: {audit.last_error}")
        return tuple(reason for reason in reasons if reason)

    through = ThroughCluster(cluster.evictions) if cluster else None
    attributes = podrules.open_attributes(flags, host)
    evictor = make_evictor(flags, host, audit, metrics, attributes, through)
    hardware = HardwareInput(flags, host, sampler.workloads)
    stack.callback(hardware.close)
    engine = Engine(
        Parts(
            sources=(*sources.all, doors),
            sense=sampler,
            be=be,
            watch=sentinel,
            act=executor,
            strategies=STRATEGIES,
            policy=policy.poll,
            node=node.poll,
            support=support.poll,
            degraded=degraded,
            notes=lambda: (*policy.notes, *node.notes, *sources.notes(), *(cluster.notes() if cluster else ())),
            ls_groups=online,
            pressures=_pressures(flags, PressureMeter(host, flags.psi_collector_interval_s), online),
            appliers=(
                evictor,
                make_resctrl(flags, host, audit, _timed(metrics, "resctrl-schema")),
                *podrules.make_appliers(flags, host, attributes, doors.replies.score, metrics),
                Reclaimer(host, audit, observe=flags.observe),
            ),
            blocks=qosloops.blocks(host, cluster.claims if cluster else None, metrics.count_collect),
            evictions=evictor.book,
            hardware=hardware.poll,
            intervals_s={
                "suppress": flags.cpu_suppress_interval_s,
                "be_cpus": flags.cpu_suppress_interval_s,
                "cpu_evict": flags.cpu_evict_interval_s,
                "memory_evict": flags.memory_evict_interval_s,
                **qosloops.intervals_s(flags),
            },
            interval_s=flags.collect_res_used_interval_s,
            observe=flags.observe,
            inbox=doors.inbox,
        )
    )
    pages = Pages(
        metrics,
        lambda: engine.snapshot,
        engine.workloads,
        audit,
        version=own_version,
        events=events_page(flags),
        pins=sources.pinned,
    )
    socket_path = str(flags.run_dir / SOCKET_FILE)
    door = http_door(flags, socket_path, pages)
    door.start()
    stack.callback(door.close)
    proxy = pod_resources_door(
        flags,
        host,
        lambda: engine.snapshot.view.pods.pods if engine.snapshot else (),
        cluster.gpu_ids if cluster else dict,
    )
    if proxy is not None:
        stack.callback(proxy.close)
    if cluster is not None:
        cluster.publish(lambda: engine.snapshot, stack)
    log.info("listening", addr=flags.addr, port=door.port, socket=socket_path)
    doors.start()
    return Agent(flags, engine, executor, doors, Notifier(), stop)


def settle() -> None:
    """What lives until now lives for good: keep the collector off it, and make it cheap to reach."""
    gc.collect()
    gc.freeze()
    collapse_heap()


def tell_degraded(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    """What is new is a warning, what is over is none."""
    if over := [reason for reason in before if reason not in now]:
        log.info("degraded.over", reasons=over, left=len(now))
    if fresh := [reason for reason in now if reason not in before]:
        log.warning("degraded", reasons=fresh)


def make_host(flags: Flags) -> Host:
    """The host's root directories as the flags have them."""
    return Host.preset(
        "host" if flags.host_mode else "daemonset",
        cgroup_root=flags.cgroup_root_dir,
        sys_root=flags.sys_root_dir,
        sys_fs_root=flags.sys_fs_root_dir,
        proc_root=flags.proc_root_dir,
        var_run_root=flags.var_run_root_dir,
        run_root=flags.run_root_dir,
        kubelet_root=flags.var_lib_kubelet_dir,
    )


def open_journal(state_dir: Path, host: Host, stack: ExitStack) -> Journal:
    """The restore journal of a state directory, locked: `koordlet undo` may know no other place of ours."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--state-dir={state_dir}: {error.strerror}; run as root, or name a writable one") from error
    stack.enter_context(DirectoryLock(state_dir))
    journal = Journal(state_dir / JOURNAL_FILE, read_boot_id(host))
    stack.callback(journal.close)
    return journal


def _lock(run_dir: Path) -> Lock:
    try:
        return Lock(run_dir / LOCK_FILE)
    except LockedError:
        raise
    except OSError as error:
        raise StartError(f"--run-dir={run_dir}: {error.strerror}; run as root, or name a writable one") from error


def _tree_lock(host: Host, cgroup_root: str) -> DirectoryLock:
    """Two agents with different run directories must not share a tree either."""
    place = host.dir("cpu", cgroup_root.strip("/"))
    try:
        return DirectoryLock(place if place.is_dir() else host.dir("cpu", ""))
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}; no cgroups there, see --cgroup-root-dir") from error


def _cluster(flags: Flags, host: Host, rings: RingStore, metrics: Metrics, stack: ExitStack) -> Cluster:
    from koordlet.kube.errors import AccessError
    from koordlet.wiring.cluster import connect  # 8 MB, and only a member of a cluster pays them

    try:
        return connect(flags, host, rings, metrics, stack)
    except AccessError as error:
        raise StartError(f"{error}; without a cluster use --mode standalone") from error


def _pressures(
    flags: Flags, meter: PressureMeter, online: Callable[[PodSet], tuple[str, ...]]
) -> Callable[[PodSet, float], Pressures | None]:
    """Node and online groups always; every live pod and container with gate PSICollector."""
    every_pod = "PSICollector" in flags.gates.enabled

    def groups(pods: PodSet) -> Iterator[str]:
        yield from online(pods)
        for pod in pods.pods if every_pod else ():
            if pod.active:
                yield pod.cgroup
                yield from (container.cgroup for container in pod.containers if container.cgroup)

    return lambda pods, now_s: meter.collect(now_s, lambda: tuple(groups(pods)))


def _timed(metrics: Metrics, kind: str = "cgroup") -> Callable[[Path, bytes], None]:
    def write(path: Path, data: bytes) -> None:
        begun = time.perf_counter()
        status = "failed"
        try:
            write_file(path, data)
            status = "success"
        finally:
            metrics.observe_update((time.perf_counter() - begun) * 1e3, kind, status)

    return write


def _extra(
    sampler: Sampler,
    sentinel: Sentinel,
    audit: AuditLog,
    sources: Sources,
    cluster: Cluster | None,
) -> dict[str, float]:
    """Figures of single rooms for /metrics."""
    counts = sampler.counts()
    watch = sentinel.stats()
    return {
        "cgroups_watched": counts.rows,
        "descriptors": counts.descriptors,
        "cgroups_lost_total": counts.lost,
        "read_errors_total": counts.errors,
        "sentinel_fires_total": watch["fires"],
        "sentinel_looks_total": watch["looks"],
        "audit_write_errors_total": audit.write_errors,
        "source_faults": len(sources.errors()),
        **{f"source_errors_total{{source={name}}}": count for name, count in sources.failures().items()},
        **(cluster.counts() if cluster else {}),
    }
