"""Families about the node's share pools and extended resources, and about what was predicted and reported of it
(spec/api 4.4). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from koordlet.decide.pools import Pool, pool_cpus, share_pools
from koordlet.model.device import Gpu, GpuUse
from koordlet.model.prediction import Amount, ProdPrediction
from koordlet.model.quantity import parse_quantity
from koordlet.model.status import Snapshot
from koordlet.report.families import Families

UNITS: Final = {"cpu": "core", "memory": "byte"}
_ALLOCATABLE: Final = (
    ("kubernetes.io/batch-cpu", "integer", "batch_cpu_mcpu"),
    ("kubernetes.io/batch-memory", "byte", "batch_memory_bytes"),
    ("kubernetes.io/mid-cpu", "integer", "mid_cpu_mcpu"),
    ("kubernetes.io/mid-memory", "byte", "mid_memory_bytes"),
)
PROD: Final = "koord-prod"


class GpuUsage(Protocol):
    """sense.gpu.GpuMeter, seen from here."""

    @property
    def at_s(self) -> float | None: ...
    @property
    def gpus(self) -> tuple[Gpu, ...]: ...
    @property
    def node(self) -> Mapping[int, GpuUse]: ...
    @property
    def pods(self) -> Mapping[tuple[str, int], GpuUse]: ...


def pool_families(families: Families, snapshot: Snapshot, *, per_cpu: bool) -> None:
    """per_cpu: gate PerCPUMetric."""
    node = snapshot.view.node
    if node.topology is None:
        return
    found = share_pools(node.topology, snapshot.view.pods.pods, node)
    _pool(families, "cpuset_share_pool", "the shared pool", found.ls, per_cpu)
    _pool(families, "cpuset_be_share_pool", "the best-effort shared pool", found.be, per_cpu)


def _pool(families: Families, name: str, what: str, pools: tuple[Pool, ...], per_cpu: bool) -> None:
    cpus = pool_cpus(pools)
    families.node_gauge(f"{name}_cpu_cores", f"CPUs in {what}.", len(cpus))
    for cpu in cpus if per_cpu else ():
        families.node_gauge(f"{name}_info", f"1 for each CPU in {what}.", 1, cpu=str(cpu))


def allocatable_families(families: Families, snapshot: Snapshot) -> None:
    """What koord-manager offers on the node; batch and mid CPU in milli-cores."""
    offered = snapshot.view.node.allocatable
    about = "Batch and mid resources that the node offers: cpu in milli-cores, memory in bytes."
    for resource, unit, column in _ALLOCATABLE:
        value: int | None = getattr(offered, column)
        if value is not None:
            families.node_gauge("node_resource_allocatable", about, value, resource=resource, unit=unit)


def prediction_families(families: Families, prediction: ProdPrediction | None) -> None:
    """The predictors' opinions, of the internal registry. None: there was none, and nothing is told."""
    if prediction is None:
        return
    for name, (reclaimable, peak) in (
        ("podReclaimablePredictor", prediction.by_pods),
        ("priorityReclaimablePredictor", prediction.by_classes),
        ("minPredictor", (prediction.reclaimable, prediction.peak)),
    ):
        about = "What online pods requested and will not use, by predictor."
        _amount(families, "node_predicted_resource_reclaimable", about, reclaimable, predictor=name)
        about = "What online pods and the system may use, by predictor."
        _amount(families, "node_predicted_resource_peak", about, peak, predictor=name)


def reclaimable_families(families: Families, prediction: ProdPrediction | None) -> None:
    """What is offered to mid resources, of the external registry; 0 and status 1 while nothing can be predicted."""
    found = prediction.reclaimable if prediction else Amount()
    about = "What online pods requested and will not use."
    _amount(families, "node_priority_resource_reclaimable", about, found, priority=PROD)
    about = "0 while it can be predicted, 1 while not."
    families.node_gauge("node_resource_priority_reclaimable_status", about, float(prediction is None), priority=PROD)


GPU_STALE_S: Final = 60.0


def gpu_families(families: Families, snapshot: Snapshot, gpus: GpuUsage) -> None:
    """What GPUs and pods used when last measured: percent of the device's time, and bytes."""
    if gpus.at_s is None or snapshot.view.now_s - gpus.at_s > GPU_STALE_S:
        return
    ids = {gpu.minor: gpu.id for gpu in gpus.gpus}
    pods = {pod.uid: pod for pod in snapshot.view.pods.pods if pod.active}
    for minor, use in gpus.node.items():
        _gpu(families, "node", use, gpu_minor=str(minor), gpu_device_uuid=ids.get(minor, ""))
    for (uid, minor), use in gpus.pods.items():
        if (pod := pods.get(uid)) is not None:
            labels = {"pod_uid": uid, "pod_name": pod.name, "pod_namespace": pod.namespace}
            _gpu(families, "pod", use, **labels, gpu_minor=str(minor), gpu_device_uuid=ids.get(minor, ""))


def _gpu(families: Families, what: str, use: GpuUse, **labels: str) -> None:
    if use.core_percent is not None:
        about = f"Time in which a GPU computed for the {what}, percent."
        families.node_gauge(f"{what}_gpu_core_usage", about, use.core_percent, **labels)
    if use.memory_bytes is not None:
        about = f"Memory of a GPU that the {what} uses, bytes."
        families.node_gauge(f"{what}_gpu_memory_usage", about, use.memory_bytes, **labels)


def status_families(families: Families, status: Mapping[str, Any]) -> None:
    """The last NodeMetric status as it was reported (gate NodeMetricPromMetrics)."""
    told = status.get("nodeMetric", {})
    for name, key in (("node_metric_node_usage", "nodeUsage"), ("node_metric_system_usage", "systemUsage")):
        _usage(families, name, "as reported in NodeMetric", told.get(key, {}))
    for row in told.get("numaUsages", ()):
        number = str(row["numaNodeID"])
        for name, key in (
            ("node_metric_numa_node_usage", "nodeUsage"),
            ("node_metric_numa_system_usage", "systemUsage"),
        ):
            about = "of a NUMA node as reported in NodeMetric"
            _usage(families, name, about, row.get(key, {}), numa_node_id=number)


def _usage(families: Families, name: str, about: str, found: Mapping[str, Any], **labels: str) -> None:
    for resource, unit in UNITS.items():
        text = found.get("resources", {}).get(resource)
        if text is not None:
            amount = float(parse_quantity(text))
            about_all = f"Usage {about}: cpu in cores, memory in bytes."
            families.node_gauge(name, about_all, amount, **labels, resource=resource, unit=unit)


def _amount(families: Families, name: str, about: str, amount: Amount, **labels: str) -> None:
    families.node_gauge(name, about, amount.mcpu / 1000, **labels, resource="cpu", unit="core")
    families.node_gauge(name, about, amount.bytes, **labels, resource="memory", unit="byte")
