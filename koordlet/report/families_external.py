"""Families about workloads (spec/api 4.4, external registry, and our own). Live pods only.

A finished pod stays in the pod list for days; its series end with its phase, so label sets do not pile up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from koordlet.model.pod import Container, Pod, Resources
from koordlet.model.psi import Psi, Resource
from koordlet.model.status import Snapshot
from koordlet.model.view import WorkloadUsage
from koordlet.report.families import Families
from koordlet.report.families_internal import PSI_NAMES, fresh, psi_samples

_RESOURCES: Final = (
    ("kubernetes.io/batch-cpu", "batch_cpu_mcpu"),
    ("kubernetes.io/batch-memory", "batch_memory_bytes"),
    ("kubernetes.io/mid-cpu", "mid_cpu_mcpu"),
    ("kubernetes.io/mid-memory", "mid_memory_bytes"),
)


def external_families(families: Families, snapshot: Snapshot, workloads: Sequence[WorkloadUsage]) -> None:
    live = {pod.uid: pod for pod in snapshot.view.pods.pods if pod.active}
    for pod in live.values():
        for container in pod.containers:
            # compat: unit is `integer` for every request and `byte` for every limit.
            _resources(families, "container_resource_requests", "integer", pod, container, container.requests)
            _resources(families, "container_resource_limits", "byte", pod, container, container.limits)
    for row in workloads:
        if row.pod is not None and row.pod.uid in live:
            _usage(families, snapshot, row, row.pod)
    groups = snapshot.pressures.groups if snapshot.pressures else {}
    for pod in live.values() if groups else ():
        _pressure(families, "pod_psi", groups.get(pod.cgroup, {}), _pod_labels(pod))
        for container in pod.containers:
            labels = _pod_labels(pod) | {"container_id": container.id, "container_name": container.name}
            _pressure(families, "container_psi", groups.get(container.cgroup, {}), labels)


def _pressure(families: Families, name: str, found: Mapping[Resource, Psi], labels: dict[str, str]) -> None:
    about = "Share of time in which tasks waited for a resource, percent."
    cpu_full = str(found["cpu"].full_supported).lower() if "cpu" in found else "false"
    for resource, psi in found.items():
        for precision, degree, percent in psi_samples(psi):
            families.node_gauge(
                name,
                about,
                percent,
                **labels,
                psi_resource_type=PSI_NAMES[resource],
                psi_precision=precision,
                psi_degree=degree,
                cpu_full_supported=cpu_full,
            )


def _resources(families: Families, name: str, unit: str, pod: Pod, container: Container, resources: Resources) -> None:
    about = f"Batch and mid {name.rpartition('_')[2]} of a container: cpu in milli-cores, memory in bytes."
    for resource, column in _RESOURCES:
        value: int | None = getattr(resources, column)
        if value is not None:
            families.node_gauge(
                name,
                about,
                value,
                resource=resource,
                unit=unit,
                **_pod_labels(pod),
                container_id=container.id,
                container_name=container.name,
            )


def _usage(families: Families, snapshot: Snapshot, row: WorkloadUsage, pod: Pod) -> None:
    level, labels = "pod", _pod_labels(pod)
    if row.container:
        level, labels["container_name"] = "container", row.container
    cpu, memory, throttled = (fresh(r, snapshot) for r in (row.cpu_mcpu, row.memory_bytes, row.throttled))
    if cpu:
        about = f"CPU used by a {level}, cores."
        families.node_gauge(f"{level}_used_cpu_cores", about, cpu.value / 1000, **labels)
    if memory:
        about = f"Memory used by a {level} without page cache, bytes."
        families.node_gauge(f"{level}_used_memory_bytes", about, memory.value, **labels)
    if throttled:
        about = f"Share of periods in which a {level} was throttled, 0..1."
        families.node_gauge(f"{level}_cpu_throttled_ratio", about, throttled.value, **labels)


def _pod_labels(pod: Pod) -> dict[str, str]:
    return {"pod_uid": pod.uid, "pod_name": pod.name, "pod_namespace": pod.namespace}
