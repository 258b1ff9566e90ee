"""Families of other rooms on the agent's /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koordlet.config.flags import Flags
from koordlet.report.families_attributes import attribute_families
from koordlet.report.families_node import (
    allocatable_families,
    pool_families,
    prediction_families,
    reclaimable_families,
    status_families,
)
from koordlet.report.metrics import Metrics, Which

if TYPE_CHECKING:
    from koordlet.wiring.nodemetric import NodeMetricReport


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
    if "NodeMetricPromMetrics" in flags.gates.enabled:
        metrics.include(lambda families, snapshot: status_families(families, report.publication.told))
