"""Checkpoints after a restart: known models stay, the rest goes, nothing stops the restore."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.store.checkpoint import parse, restore
from tests.hosts.cases import case_json

CASE = "predictor-restore-known-models"
HISTOGRAM = {
    "referenceTimestamp": "2026-01-01T00:00:00Z",
    "bucketWeights": {"22": 10000, "45": 1111},
    "totalWeight": 100,
}
GOOD = json.dumps({"UID": "x", "CPU": HISTOGRAM, "Memory": HISTOGRAM, "LastUpdated": "2026-01-01T00:00:00Z"})


def test_case_predictor_restore_known_models(tmp_path: Path) -> None:
    for item in case_json(CASE, "checkpoints.json"):
        name, text = (item["name"], GOOD[:40]) if isinstance(item, dict) else (item, GOOD)
        (tmp_path / name).write_text(text)
    before = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "__node__.tmp").write_text("half")

    found = restore(tmp_path, case_json(CASE, "pods.json"))

    expected = case_json(CASE)
    assert sorted(found) == expected["restored"]
    assert sorted(before - {path.name for path in tmp_path.iterdir()}) == sorted(expected["deleted"])
    assert not (tmp_path / "__node__.tmp").exists()


def test_weights_are_scaled_back() -> None:
    """W-38."""
    cpu = parse(GOOD).cpu
    assert cpu.weights[22] == pytest.approx(90.0009, abs=1e-4)
    assert cpu.weights[45] == pytest.approx(9.9991, abs=1e-4)


@pytest.mark.parametrize(
    "change",
    [{"bucketWeights": {"158": 1}}, {"bucketWeights": {"-1": 1}}, {"bucketWeights": {"1": 1.5}}, {"totalWeight": "1"},
     {"bucketWeights": []}, {"totalWeight": float("inf")}],
)  # fmt: skip
def test_a_wrong_histogram_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="CPU"):
        parse(json.dumps({"CPU": HISTOGRAM | change, "Memory": HISTOGRAM}))


@given(st.text(max_size=200))
def test_garbage_raises_value_error_only(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any message will do
        parse(text)


def test_no_directory_is_no_model(tmp_path: Path) -> None:
    assert restore(tmp_path / "none", ()) == {}
