"""Worked numbers of the peak prediction: histogram, decay, checkpoints, what prod pods will not use."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordlet.model.pod import Pod, Resources
from koordlet.model.prediction import Amount, Peak, ProdPrediction
from koordlet.model.qos import KubeQos
from koordlet.store.checkpoint import parse, save
from koordlet.store.histogram import CPU, MEMORY, Histogram, Scale
from koordlet.store.prodpeak import NotPredictable, ProdConfig, predict_prod

GI = 2**30
HOUR = 3600.0
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
SHARES = (0.6, 0.9, 0.95, 0.98, 1.0)


def milli(histogram: Histogram) -> list[int]:
    return [int(histogram.percentile(share) * 1000) for share in SHARES]


@pytest.mark.parametrize(
    ("scale", "value", "index", "upper"),
    [
        (CPU, 0.0, 0, 0.025),
        (CPU, 0.5, 14, 0.5394640897),
        (CPU, 1.0, 22, 1.0357618780),
        (CPU, 2.0, 32, 2.0015942710),
        (CPU, 4.0, 45, 4.2171290916),
        (CPU, 16.0, 71, 16.2725670765),
        (MEMORY, 0.0, 0, 5242880.0),
        (MEMORY, 1.0 * GI, 49, 1097586419.77),
        (MEMORY, 4.0 * GI, 76, 4384414627.89),
        (MEMORY, 16.0 * GI, 104, 17493669271.02),
    ],
)
def test_w34_bucket_and_upper_bound(scale: Scale, value: float, index: int, upper: float) -> None:
    assert scale.index(value) == index
    histogram = Histogram(scale, HOUR)
    histogram.add(value, NEW_YEAR)
    assert histogram.percentile(0.95) == pytest.approx(upper, rel=1e-9)


def test_w34_the_last_bucket_is_known_by_its_start() -> None:
    assert (CPU.count, MEMORY.count) == (158, 205)
    histogram = Histogram(CPU, HOUR)
    histogram.add(5000.0, NEW_YEAR)
    assert (CPU.index(1060.44), list(histogram.weights)) == (157, [157])
    assert histogram.percentile(1.0) == pytest.approx(1060.4378860)


def w35() -> Histogram:
    histogram = Histogram(CPU, 12 * HOUR)
    for value, count in ((1.0, 90), (4.0, 10)):
        for _ in range(count):
            histogram.add(value, NEW_YEAR)
    return histogram


def test_w35_percentiles_of_one_instant() -> None:
    assert milli(w35()) == [1035, 1035, 4217, 4217, 4217]


def test_w36_later_samples_weigh_more() -> None:
    histogram = Histogram(CPU, 12 * HOUR)
    for value, hours in ((4.0, 0), (1.0, 12)):
        for _ in range(60):
            histogram.add(value, NEW_YEAR + hours * HOUR)
    assert histogram.weights == {45: 60.0, 22: 120.0}
    assert milli(histogram)[:2] == [1035, 4217]


def test_w36_an_old_peak_shows_in_the_maximum_only(tmp_path: Path) -> None:
    histogram = Histogram(CPU, 12 * HOUR)
    for value, hours, count in ((4.0, 0, 60), (1.0, 12, 720), (1.0, 24, 720)):
        for _ in range(count):
            histogram.add(value, NEW_YEAR + hours * HOUR)
    assert histogram.total == pytest.approx(4380)
    assert milli(histogram) == [1035, 1035, 1035, 1035, 4217]
    save(tmp_path, "__node__", histogram, Histogram(MEMORY, HOUR), NEW_YEAR)
    assert json.loads((tmp_path / "__node__").read_text())["CPU"]["bucketWeights"] == {"22": 10000, "45": 139}


@pytest.mark.parametrize(
    ("after_s", "reference_h", "weight"),
    [(3 * HOUR, 0, 1.189207), (6 * HOUR - 1, 0, 1.414191), (6 * HOUR, 12, 0.707107)],
)
def test_w37_the_reference_is_the_nearest_multiple_of_the_half_life(
    after_s: float, reference_h: float, weight: float
) -> None:
    histogram = Histogram(CPU, 12 * HOUR)
    histogram.add(1.0, NEW_YEAR + after_s)
    assert histogram.reference_s == NEW_YEAR + reference_h * HOUR
    assert histogram.total == pytest.approx(weight, abs=1e-6)


def test_w38_a_checkpoint_keeps_percentiles(tmp_path: Path) -> None:
    memory = Histogram(MEMORY, 24 * HOUR)
    save(tmp_path, "u", w35(), memory, NEW_YEAR + 0.9)
    text = (tmp_path / "u").read_text()
    assert json.loads(text) == {
        "UID": "u",
        "CPU": {
            "referenceTimestamp": "2026-01-01T00:00:00Z",
            "bucketWeights": {"22": 10000, "45": 1111},
            "totalWeight": 100.0,
        },
        "Memory": {"referenceTimestamp": None, "bucketWeights": {}, "totalWeight": 0.0},
        "LastUpdated": "2026-01-01T00:00:00Z",
    }
    found = parse(text)
    again = Histogram(CPU, 12 * HOUR)
    again.restore(found.cpu.weights, found.cpu.total_weight, found.cpu.reference_s)
    assert again.weights == pytest.approx({22: 90.0009, 45: 9.9991}, abs=1e-4)
    assert milli(again) == milli(w35())


NOW = NEW_YEAR
CONFIG = ProdConfig(cold_start_s=24 * HOUR, margin_percent=10)


def pod(name: str, cores: int, gib: int, age_h: float, **more: Any) -> Pod:
    request = Resources(cpu_mcpu=cores * 1000, memory_bytes=gib * GI)
    made = {"priority": 9500, "created_at_s": NOW - age_h * HOUR, "request": request} | more
    return Pod(name, "online", name, f"kubepods/{name}", KubeQos.BURSTABLE, **made)


def used(mcpu: int, size: int) -> Peak:
    return Peak((0, 0, mcpu, 0, 0), (0, 0, 0, size, 0))


W39 = {
    "a": used(2000, 4 * GI),
    "__node-sys__": used(1000, 2 * GI),
    "__node-koord-prod__": used(3000, 6 * GI),
    "__node-__": used(25, 5242880),
}
A, B = pod("a", 8, 16, 72), pod("b", 4, 8, 1)


def predict(allocatable: Amount, models: dict[str, Peak], *pods: Pod) -> ProdPrediction:
    return predict_prod(pods, models.get, allocatable, CONFIG, NOW)


def test_w39_the_lower_of_both_opinions() -> None:
    found = predict(Amount(32_000, 128 * GI), W39, A, B)
    assert found.by_pods[0] == Amount(5800, 12455405159)
    assert found.by_classes[0] == Amount(7573, 16315108557)
    assert found.reclaimable == Amount(5800, 12455405159)
    assert found.by_pods[1] == Amount(6200, 13314398617)
    assert found.peak == Amount(6200, 13314398617)


def test_w40_what_the_node_cannot_give_is_not_reclaimable() -> None:
    assert predict(Amount(2000, 128 * GI), W39, A, B).reclaimable == Amount(0, 12455405159)


def test_v10() -> None:
    models = {
        "a": used(1000, 3 * GI),
        "__node-sys__": used(500, 2 * GI),
        "__node-koord-prod__": used(1500, 5 * GI),
        "__node-__": used(0, 0),
    }
    found = predict(Amount(16_000, 64 * GI), models, pod("a", 4, 8, 72), pod("b", 2, 4, 1))
    assert found.by_pods == (Amount(2900, 5046586573), Amount(3100, 7838315315))
    assert found.by_classes == (Amount(3800, 4617089844), Amount(2200, 8267812044))
    assert (found.reclaimable, found.peak) == (Amount(2900, 4617089844), Amount(3100, 8267812044))


@pytest.mark.parametrize("missing", ["a", "__node-sys__", "__node-koord-prod__", "__node-__"])
def test_without_a_model_nothing_is_predicted(missing: str) -> None:
    with pytest.raises(NotPredictable, match=missing):
        predict(Amount(32_000, 128 * GI), {name: W39[name] for name in W39 if name != missing}, A, B)


def test_pods_that_go_and_pods_of_other_classes_do_not_count() -> None:
    going = pod("going", 8, 16, 72, terminating=True)
    done = pod("done", 8, 16, 72, phase="Succeeded")
    mid = pod("mid", 8, 16, 72, priority=7500)
    allocatable = Amount(32_000, 128 * GI)
    assert predict(allocatable, W39, A, B, going, done, mid) == predict(allocatable, W39, A, B)


@pytest.mark.parametrize(("age_h", "predicted"), [(24.0, 0), (24.001, 5800)])
def test_a_pod_as_old_as_the_cold_start_is_still_cold(age_h: float, predicted: int) -> None:
    found = predict(Amount(32_000, 128 * GI), W39, pod("a", 8, 16, age_h))
    assert found.by_pods[0].mcpu == predicted
