"""What koord-manager keeps for the lab's node, and where."""

from __future__ import annotations

from typing import Any

from tests.labs.cluster.node import NAME

GROUP = "slo.koordinator.sh/v1alpha1"
SLO_PATH, METRIC_PATH = f"/apis/{GROUP}/nodeslos/{NAME}", f"/apis/{GROUP}/nodemetrics/{NAME}"


def node_slo(**sections: Any) -> dict[str, Any]:
    """By their names in the spec: resourceUsedThresholdWithBE=, resourceQOSStrategy= ..."""
    return _made("NodeSLO", sections)


def node_metric(report_s: int, **more: Any) -> dict[str, Any]:
    """more: of the collect policy."""
    return _made("NodeMetric", {"metricCollectPolicy": {"reportIntervalSeconds": report_s, **more}})


def _made(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": GROUP, "kind": kind, "metadata": {"name": NAME}, "spec": spec}
