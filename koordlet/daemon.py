"""Composition root: the only file that knows all rooms. Builds them, starts them in order, stops them in reverse.

Start: lock -> journal -> inputs, sources, sense -> executor -> doors -> loop. What a crashed predecessor left stays in
force until the strategies have judged; then what they do not want is given back. wiring/lifetime has the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from koordlet.act.executor import Executor
from koordlet.act.job import Job
from koordlet.act.journal import Journal, JournalError
from koordlet.act.lock import LockedError
from koordlet.act.reclaim import Reclaimer
from koordlet.config.flags import Flags
from koordlet.decide.strategies import STRATEGIES
from koordlet.doors.http import DoorError
from koordlet.inputs import KubepodsInput, NodeInput, PolicyInput, SupportInput
from koordlet.kernel.host import Host
from koordlet.kernel.write import write_file
from koordlet.loops import Engine
from koordlet.model.places import SOCKET_FILE
from koordlet.model.pod import PodSet
from koordlet.model.psi import Pressures
from koordlet.parts import Parts
from koordlet.report import logs
from koordlet.report.audit import AuditLog
from koordlet.report.auditnames import NamedAudit
from koordlet.report.metrics import Metrics
from koordlet.report.notify import Notifier
from koordlet.report.pages import Pages
from koordlet.sense.psi import PressureMeter
from koordlet.sense.sampler import Sampler, raise_descriptor_limit
from koordlet.sense.sentinel import Sentinel
from koordlet.sources.followed import follow_node, follow_policy
from koordlet.store.rings import RingStore
from koordlet.wiring import podrules, qosloops
from koordlet.wiring.beroots import BeInput, ls_groups
from koordlet.wiring.changes import make_changed
from koordlet.wiring.doors import events_page, http_door, pod_resources_door
from koordlet.wiring.evict import ThroughCluster, make_evictor
from koordlet.wiring.hardware import HardwareInput, make_resctrl
from koordlet.wiring.lifetime import Agent, Stop
from koordlet.wiring.metrics import include_node, write_times
from koordlet.wiring.places import StartError, lock_node, lock_tree, make_host, open_journal
from koordlet.wiring.runtime import RuntimeDoors
from koordlet.wiring.sources import Sources, make_sources

if TYPE_CHECKING:
    from koordlet.wiring.cluster import Cluster

log = structlog.get_logger(__name__)


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


def build(flags: Flags, stack: ExitStack, stop: Stop) -> Agent:
    """Everything in order; `stack` undoes it in reverse. Raises StartError and the rooms' own start errors."""
    raise_descriptor_limit()
    host = make_host(flags)
    stack.enter_context(lock_node(flags.run_dir))
    if not flags.observe:
        stack.enter_context(lock_tree(host, flags.cgroup_root))
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
        lambda: engine.latest(),
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
            changed=make_changed(flags, host, kubepods, be, sources, doors, cluster),
        )
    )
    pages = Pages(
        metrics,
        lambda: engine.snapshot,
        engine.latest,
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
