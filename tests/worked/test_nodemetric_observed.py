"""Reports recorded on the reference agent: the same pods with the same figures give the same report.

Pods and policy go through our own readers; the figures that were recorded are measured again, each second for a minute.
"#" stands for what changes from run to run. What the reference's later versions add is left out of the comparison.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from koordlet.config.nodemetric import read_metric_policy
from koordlet.config.nodeslo import decode
from koordlet.kernel.kubepods import Driver, Kubepods, host_app_dir
from koordlet.model.pod import PodSet
from koordlet.model.prediction import Amount
from koordlet.model.quantity import parse_mcpu, parse_units
from koordlet.model.view import NodeView
from koordlet.report.nodemetric import build_status
from koordlet.sources.podlist import decode_pods
from koordlet.store.predictor import Predictor, PredictorConfig
from koordlet.store.prodpeak import ProdConfig, predict_prod
from koordlet.store.rings import RingStore

OBSERVED = Path(__file__).parents[1] / "observed" / "nodemetric"
TREE = Kubepods(Driver.CGROUPFS, "/")
NOW_S, WALL_S = 1000.0, 1_767_225_600.0
NODE = Amount(2000, 24 << 30)


def pod_item(pod: dict[str, Any]) -> dict[str, Any]:
    containers = [
        {"name": one["name"], "resources": {"requests": one.get("req", {}), "limits": one.get("lim", {})}}
        for one in pod["containers"]
    ]
    return {
        "metadata": {"name": pod["name"], "namespace": "default", "uid": pod["name"], "labels": pod.get("labels", {})},
        "spec": {"containers": containers, "priority": pod.get("priority")},
        "status": {"phase": "Running"},
    }


def measure(rings: RingStore, kind: str, name: str, usage: dict[str, Any]) -> None:
    memory = {"#": "900366477", "#Ki": "68Ki"}.get(usage["resources"]["memory"], usage["resources"]["memory"])
    figures = {"cpu": parse_mcpu(usage["resources"]["cpu"].replace("#", "500")), "memory": parse_units(memory)}
    for metric, value in figures.items():
        for age_s in range(30, -1, -1):
            rings.push(rings.open(kind, name, metric), NOW_S - age_s, float(value))


def masked(given: Any, like: Any) -> Any:
    """`given`, its figures replaced by "#" where the recording has it."""
    if isinstance(like, dict) and isinstance(given, dict):
        return {key: masked(value, like.get(key)) for key, value in given.items()}
    if isinstance(like, list) and isinstance(given, list) and len(like) == len(given):
        return [masked(*pair) for pair in zip(given, like, strict=True)]
    return re.sub(r"^[0-9]+", "#", given) if isinstance(like, str) and like.startswith("#") else given


@pytest.mark.parametrize("name", ["batch-1c", "batch-drift", "host-app", "idle-report", "no-label"])
def test_recorded_report(name: str) -> None:
    recorded = json.loads((OBSERVED / f"{name}.json").read_text())
    expected = recorded["nodemetric"]
    pods = decode_pods(json.dumps({"items": [pod_item(pod) for pod in recorded["pods"]]}).encode(), TREE)
    slo = decode(recorded["nodeslo"], host_app_dir=lambda *app: host_app_dir(TREE, *app))
    rings = RingStore()
    measure(rings, "node", "", expected["nodeMetric"]["nodeUsage"])
    measure(rings, "system", "", expected["nodeMetric"]["systemUsage"])
    for row in expected["podsMetric"]:
        measure(rings, "pod", row["name"], row["podUsage"])
    for row in expected.get("hostApplicationMetric", ()):
        measure(rings, "host", row["name"], row["usage"])
    known = PodSet(pods.pods, 1, NOW_S)
    predictor = Predictor(rings, PredictorConfig())
    assert predictor.step(known, NOW_S, WALL_S)

    status = build_status(
        rings,
        NodeView(now_s=NOW_S, pods=known, host_apps=slo.host_apps),
        read_metric_policy({}),
        lambda listed: predict_prod(listed, predictor.peak, NODE, ProdConfig(), WALL_S),
        WALL_S,
    )

    del status["updateTime"], status["prodPeakMetric"]
    assert masked(status, expected) == expected
