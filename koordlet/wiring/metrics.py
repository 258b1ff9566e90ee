"""Families of other rooms on the agent's /metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from koordlet.act.job import Job
from koordlet.config.flags import Flags
from koordlet.decide import podrules
from koordlet.kernel.knobs import KNOBS, Base
from koordlet.report.families_attributes import attribute_families
from koordlet.report.families_node import (
    allocatable_families,
    gpu_families,
    pool_families,
    prediction_families,
    reclaimable_families,
    status_families,
)
from koordlet.report.metrics import Metrics, Which

if TYPE_CHECKING:
    from koordlet.wiring.nodemetric import NodeMetricReport


_POD: Final = re.compile(r"pod[^/]+|[^/]+-pod[^/]+\.slice")


def write_times(metrics: Metrics) -> Callable[[Job, float, bool], None]:
    """What the executor tells of each write; those of the pod rules count as the reconciler's, too."""

    def told(job: Job, ms: float, ok: bool) -> None:
        kind = "cgroup" if KNOBS[job.knob].base is Base.CGROUP else "default"
        metrics.observe_update(ms, kind, "success" if ok else "failed")
        if job.owner == podrules.NAME:
            metrics.observe_reconcile(level(job.target), job.knob.value, ms, ok=ok)

    return told


def level(cgroup: str) -> str:
    """Of a kubelet's tree by the names that it gives; any other group is a workload's, which counts as a pod."""
    parent, _, name = cgroup.rpartition("/")
    if _POD.fullmatch(parent.rpartition("/")[2]):
        return "container"
    return "kubeqos" if "kubepods" in cgroup and not _POD.fullmatch(name) else "pod"


def include_node(metrics: Metrics, flags: Flags) -> None:
    per_cpu = "PerCPUMetric" in flags.gates.enabled
    metrics.include(lambda families, snapshot: pool_families(families, snapshot, per_cpu=per_cpu))
    metrics.include(attribute_families)
    metrics.include(allocatable_families, Which.EXTERNAL)


def include_node_metric(metrics: Metrics, flags: Flags, report: NodeMetricReport) -> None:
    """What was last reported and predicted, as soon as there is a report."""
    metrics.include(lambda families, snapshot: prediction_families(families, report.predicted))
    metrics.include(
        lambda families, snapshot: (
            reclaimable_families(families, report.predicted) if report.publication.told else None
        ),
        Which.EXTERNAL,
    )
    if (gpu := report.gpu) is not None:
        metrics.include(lambda families, snapshot: gpu_families(families, snapshot, gpu), Which.EXTERNAL)
    if "NodeMetricPromMetrics" in flags.gates.enabled:
        metrics.include(lambda families, snapshot: status_families(families, report.publication.told))
