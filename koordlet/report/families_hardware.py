"""Families about caches, bandwidth and cycles (spec/api 4.4), and our own about interference. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from koordlet.model.hardware import Hardware
from koordlet.model.pod import Pod
from koordlet.model.resctrl import DomainReading, GroupReading
from koordlet.model.status import Snapshot
from koordlet.report.families import Families

STALE_S: Final = 180.0
_SOFTWARE: Final = ("cpu_clock_ns", "task_clock_ns", "context_switches", "page_faults")


def hardware_families(families: Families, snapshot: Snapshot) -> None:
    hardware, now_s = snapshot.view.hardware, snapshot.view.now_s
    live = [pod for pod in snapshot.view.pods.pods if pod.active]
    _cpi(families, hardware, live, now_s)
    cache = hardware.cache
    if cache is not None and now_s - cache.at_s < STALE_S:
        for name, group in cache.classes.items():
            _class(families, name, group)
        for pod in live:
            if pod.uid in cache.pods:
                _pod(families, pod, cache.pods[pod.uid])
    for row in hardware.online:
        if row.excess is not None and now_s - row.at_s < STALE_S:
            about = "How far an online workload's signal is above its own baseline, as a share of it."
            families.node_gauge("online_interference_excess", about, row.excess, workload=row.name, signal=row.signal)


def _cpi(families: Families, hardware: Hardware, live: list[Pod], now_s: float) -> None:
    for pod in live if hardware.counts else ():
        for container in pod.containers:
            counts = hardware.counts.get(pod.directory(container))
            if counts is None or now_s - counts.at_s >= STALE_S:
                continue
            labels = {
                "container_id": container.id,
                "container_name": container.name,
                "pod_uid": pod.uid,
                "pod_name": pod.name,
                "pod_namespace": pod.namespace,
            }
            for field in ("cycles", "instructions"):
                value = getattr(counts, field)
                if value is not None:
                    about = "Cycles and instructions of a container in the last window."
                    families.node_gauge("container_cpi", about, value, **labels, cpi_field=field)
            if counts.llc_misses is not None:
                about = "Last-level cache misses of a container in the last window."
                families.node_gauge("container_llc_misses", about, counts.llc_misses, **labels)
            for field in _SOFTWARE:
                value = getattr(counts, field)
                if value is not None:
                    about = "Software events of a container in the last window, where there are no hardware counters."
                    families.node_gauge("container_perf_events", about, value, **labels, event=field)


def _class(families: Families, qos: str, group: GroupReading) -> None:
    for cache_id, row in group.domains.items():
        labels = {"cache_id": str(cache_id), "qos": qos}
        if row.llc_bytes is not None:
            about = "Last-level cache that a class occupies, bytes."
            families.node_gauge("resctrl_llc_occupancy", about, row.llc_bytes, **labels)
        for kind, total, rate in _bandwidth(row):
            if total is not None:
                about = "Memory traffic of a class since its group was made, bytes."
                families.node_gauge("resctrl_memory_bandwidth", about, total, **labels, mb_type=kind)
            if rate is not None:
                about = "Memory bandwidth of a class, bytes per second."
                families.node_gauge("resctrl_memory_bandwidth_bytes_per_second", about, rate, **labels, mb_type=kind)
    for node, row in group.nodes.items():
        if row.llc_bytes is not None:
            about = (
                "Last-level cache that a class occupies in one NUMA node of a cache that is shared by several, bytes."
            )
            families.node_gauge("resctrl_llc_occupancy_numa", about, row.llc_bytes, numa_node_id=str(node), qos=qos)


def _pod(families: Families, pod: Pod, group: GroupReading) -> None:
    labels = {"pod_uid": pod.uid, "pod_name": pod.name, "pod_namespace": pod.namespace}
    for cache_id, row in group.domains.items():
        if row.llc_bytes is not None:
            about = "Last-level cache that a pod occupies, bytes."
            families.node_gauge("pod_llc_occupancy_bytes", about, row.llc_bytes, **labels, cache_id=str(cache_id))
        for kind, _, rate in _bandwidth(row):
            if rate is not None:
                about = "Memory bandwidth of a pod, bytes per second."
                families.node_gauge(
                    "pod_memory_bandwidth_bytes_per_second",
                    about,
                    rate,
                    **labels,
                    cache_id=str(cache_id),
                    mb_type=kind,
                )


def _bandwidth(row: DomainReading) -> Iterator[tuple[str, int | None, float | None]]:
    yield "mbm_total_bytes", row.total_bytes, row.total_rate
    yield "mbm_local_bytes", row.local_bytes, row.local_rate
