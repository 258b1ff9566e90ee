"""What the scheduler counts for a pod, and when it was made."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.model.resources import Resources
from tests.unit.sources.test_podlist import decode, item


def container(name: str, cpu: str, memory: str = "0", **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def sidecar(name: str, cpu: str) -> dict[str, Any]:
    return container(name, cpu, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "mcpu"),
    [
        pytest.param({"containers": [container("a", "1"), container("b", "500m")]}, 1500, id="containers-add-up"),
        pytest.param({"containers": [container("a", "1")], "initContainers": [container("i", "3")]}, 3000, id="init"),
        pytest.param({"containers": [container("a", "1")], "initContainers": [sidecar("s", "2")]}, 3000, id="sidecar"),
        pytest.param({"containers": [container("a", "1")],
                      "initContainers": [sidecar("s", "2"), container("i", "4")]}, 6000, id="init-beside-a-sidecar"),
        pytest.param({"containers": [container("a", "1")],
                      "initContainers": [container("i", "4"), sidecar("s", "2")]}, 4000, id="init-before-a-sidecar"),
        pytest.param({"containers": [container("a", "1")], "overhead": {"cpu": "250m"}}, 1250, id="overhead"),
        pytest.param({"containers": [container("a", "1")], "resources": {"requests": {"cpu": "7"}},
                      "overhead": {"cpu": "250m"}}, 7250, id="pod-level"),
        pytest.param({"containers": [{"name": "a"}]}, 0, id="nothing-requested"),
    ],
)  # fmt: skip
def test_request(spec: dict[str, Any], mcpu: int) -> None:
    (pod,) = decode(item(spec=spec)).pods
    assert pod.request == Resources(cpu_mcpu=mcpu, memory_bytes=0)


def test_a_bad_amount_is_named_and_counts_as_none() -> None:
    spec = {"containers": [container("a", "1", "2Gi")], "initContainers": [container("i", "lots", "3Gi")]}
    found = decode(item(spec=spec))
    assert found.pods[0].request == Resources(cpu_mcpu=1000, memory_bytes=3 * 2**30)
    (error,) = found.errors
    assert "container i: requests.cpu" in error


@pytest.mark.parametrize(
    ("metadata", "status", "created_at_s"),
    [
        ({"creationTimestamp": "2026-01-01T00:00:00Z"}, {"startTime": "2026-01-01T00:00:09Z"}, 1767225600.0),
        ({"creationTimestamp": None}, {"startTime": "2026-01-01T00:00:09Z"}, 1767225609.0),
        ({"creationTimestamp": "yesterday"}, {}, None),
        ({}, {}, None),
    ],
    ids=["created", "static-pod", "malformed", "unknown"],
)
def test_when_it_was_made(metadata: dict[str, Any], status: dict[str, Any], created_at_s: float | None) -> None:
    made = item(metadata=metadata)
    made["status"] |= status
    assert decode(made).pods[0].created_at_s == created_at_s


def test_a_pod_that_is_being_deleted_is_known() -> None:
    going, staying = decode(
        item("a", "u-a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), item("b", "u-b")
    ).pods
    assert (going.terminating, staying.terminating) == (True, False)
