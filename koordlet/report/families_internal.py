"""Families about the agent itself and the node (spec/api 4.4, internal registry, and our own)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from koordlet.model.psi import Psi, Resource
from koordlet.model.status import HeldState, Snapshot
from koordlet.model.view import Reading, WorkloadUsage
from koordlet.report.families import Families

PSI_NAMES: Final[dict[Resource, str]] = {"cpu": "cpu", "memory": "mem", "io": "io"}
"""compat: the reference's label values."""
FRESH_INTERVALS: Final = 10
"""A reading older than this many intervals gives no sample."""

_NODE_GAUGES: Final = {
    "be_suppress_cpu_cores": "CPU granted to best-effort work, cores.",
    "be_suppress_ls_used_cpu_cores": "CPU used by everything but best-effort work, cores.",
    "be_suppress_be_used_cpu_cores": "CPU used by best-effort work, cores.",
    "container_scaled_cfs_burst_us": "Burst set for a container, microseconds.",
    "container_scaled_cfs_quota_us": "Quota set for a container, microseconds.",
    "cpuset_share_pool_cpu_cores": "CPUs in the shared pool.",
    "cpuset_be_share_pool_cpu_cores": "CPUs in the best-effort shared pool.",
}
"""Gauges that strategies emit and whose label list starts with `node`; others keep their labels as they are."""


def fresh(reading: Reading | None, snapshot: Snapshot) -> Reading | None:
    """The reading, unless it is old by the view's clock."""
    view = snapshot.view
    if reading is None or reading.age_s(view.now_s) > FRESH_INTERVALS * view.interval_s:
        return None
    return reading


def internal_families(families: Families, snapshot: Snapshot | None, workloads: Sequence[WorkloadUsage]) -> None:
    if snapshot is None:
        return
    _node(families, snapshot)
    _pressure(families, snapshot)
    _strategies(families, snapshot)
    _host_apps(families, snapshot, workloads)
    _loop(families, snapshot)
    _knobs(families, snapshot)
    for kind, report in snapshot.effects.items():
        families.gauge("effects_failing", "What could not be carried out that is no knob.", report.failed, kind=kind)
    for row in snapshot.view.support.table.values():
        families.gauge("capability", "What this machine can do; 1 per row.", 1, name=row.name, level=row.level)


def _node(families: Families, snapshot: Snapshot) -> None:
    usage = snapshot.view.usage
    cpu, memory = fresh(usage.node_mcpu, snapshot), fresh(usage.node_memory_bytes, snapshot)
    if cpu:
        families.node_gauge("node_used_cpu_cores", "CPU used on the node, cores.", cpu.value / 1000)
    if memory:
        about = "Memory used on the node without page cache, bytes."
        families.node_gauge("node_used_memory_bytes", about, memory.value)
    about = "Age of each reading at the last tick, seconds."
    for name, reading in usage.readings():
        if reading is not None:
            age_s = max(0.0, reading.age_s(snapshot.view.now_s))
            families.gauge("reading_age_seconds", about, round(age_s, 3), reading=name)


def _pressure(families: Families, snapshot: Snapshot) -> None:
    for resource, psi in (snapshot.pressures.node if snapshot.pressures else {}).items():
        for precision, degree, percent in psi_samples(psi):
            about = "Share of time in which tasks of the node waited for a resource, percent."
            labels = {"psi_resource_type": PSI_NAMES[resource], "psi_precision": precision, "psi_degree": degree}
            families.node_gauge("node_psi", about, percent, **labels)


def psi_samples(psi: Psi) -> Iterator[tuple[str, str, float]]:
    """(precision, degree, percent); full only where the kernel has it."""
    for degree, line in (("some", psi.some), ("full", psi.full)):
        if degree == "some" or psi.full_supported:
            yield "avg10", degree, line.avg10
            yield "avg60", degree, line.avg60
            yield "avg300", degree, line.avg300


def _strategies(families: Families, snapshot: Snapshot) -> None:
    for outcome in snapshot.outcomes.values():
        for name, labels, value in outcome.gauges:
            if name in _NODE_GAUGES:
                pairs = {key: text for key, text in labels if key != "node"}
                families.node_gauge(name, _NODE_GAUGES[name], value, **pairs)
            else:
                families.gauge(name, name.replace("_", " "), value, **dict(labels))
    be = fresh(snapshot.view.usage.be_mcpu, snapshot)
    if be and not families.has("be_suppress_be_used_cpu_cores"):
        name = "be_suppress_be_used_cpu_cores"
        families.node_gauge(name, _NODE_GAUGES[name], be.value / 1000)
    about = "1 while a strategy raises; its previous decisions stay."
    for name in sorted({*snapshot.outcomes, *snapshot.stats.strategy_errors}):
        families.gauge("strategy_failing", about, float(name in snapshot.stats.strategy_errors), strategy=name)


def _host_apps(families: Families, snapshot: Snapshot, workloads: Sequence[WorkloadUsage]) -> None:
    apps = {app.name: app for app in snapshot.view.host_apps}
    if not apps:
        return
    about = "Usage of a host application: cpu in cores, memory in bytes."
    for row in workloads:
        app = apps.get(row.name) if row.pod is None else None
        if app is None:
            continue
        for resource, reading, unit in (("cpu", row.cpu_mcpu, 1000), ("memory", row.memory_bytes, 1)):
            if found := fresh(reading, snapshot):
                families.node_gauge(
                    "host_application_resource_usage",
                    about,
                    found.value / unit,
                    host_application_name=app.name,
                    resource=resource,
                    priority_class=app.priority_class,
                    qos=app.qos or "",
                )


def _loop(families: Families, snapshot: Snapshot) -> None:
    stats = snapshot.stats
    families.counter("ticks", "Rounds of the control loop.", stats.ticks)
    families.counter("tick_overruns", "Rounds that started late by more than one interval.", stats.overruns)
    families.gauge("tick_duration_milliseconds", "Time that the last round took.", round(stats.last_ms, 3))
    families.gauge("last_tick_timestamp_seconds", "Wall clock of the last round, seconds.", snapshot.wall_s)
    families.counter("surges", "Rounds between two ticks, because the sentinel woke the loop.", stats.surges)
    families.gauge("observe_mode", "1 while nothing is written (--observe).", float(snapshot.observe))
    families.gauge("degraded", "Number of reasons why the agent is degraded.", len(snapshot.degraded))
    families.gauge(
        "notes", "Number of things that the operator should know and that are no fault.", len(snapshot.notes)
    )
    families.gauge("pods", "Known workloads.", len(snapshot.view.pods.pods))


def _knobs(families: Families, snapshot: Snapshot) -> None:
    about = "Kernel values wanted by a strategy, by its name and what became of them."
    book = Counter((held.owner, held.state) for held in snapshot.apply.held)
    for (owner, state), count in sorted(book.items()):
        families.gauge("knobs", about, count, owner=owner, state=state)
    failing = sum(held.state is HeldState.FAILED for held in snapshot.apply.held)
    families.gauge("knobs_failing", "Kernel values that are refused at present.", failing)
