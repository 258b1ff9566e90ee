"""Families of other rooms on the agent's /metrics."""

from __future__ import annotations

from koordlet.config.flags import Flags
from koordlet.report.families_node import allocatable_families, pool_families
from koordlet.report.metrics import Metrics, Which


def include_node(metrics: Metrics, flags: Flags) -> None:
    per_cpu = "PerCPUMetric" in flags.gates.enabled
    metrics.include(lambda families, snapshot: pool_families(families, snapshot, per_cpu=per_cpu))
    metrics.include(allocatable_families, Which.EXTERNAL)
