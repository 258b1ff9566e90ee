"""Fixtures of the cluster lab, for a test that asks by name; one instance per run. Mark such tests `lab_cluster`.

`cluster` is the control plane, `cluster_node` a real kubelet on it, `stand_in` a pretended kubelet for many pods.
Objects that a test makes are its own to remove; `cluster.admin.delete(path)` takes them away at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.labs import binaries
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.node import Node
from tests.labs.cluster.sandbox import missing as sandbox_missing
from tests.labs.cluster.standin import StandIn
from tests.labs.runtime import image
from tests.labs.summary import tell


def missing(parts: tuple[str, ...] = ("kubernetes", "containerd")) -> str | None:
    """Why the lab cannot run here, or None. That something is to be built first is no reason."""
    wanted = [*parts, *(["etcd"] if shutil.which("etcd") is None else [])]
    if shutil.which("go") is None and not all(binaries.cached(p) for p in wanted):
        return f"go is not installed, and not in the cache: {' '.join(p for p in wanted if not binaries.cached(p))}"
    return sandbox_missing()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    reason = missing(("kubernetes",))
    if reason:
        pytest.skip(f"cluster lab: {reason}")
    lab = Cluster().start()
    try:
        yield lab
    finally:
        lab.stop()
        parts = ", ".join(f"{name} {version}" for name, version in lab.versions.items())
        starts = ", ".join(f"{what} in {seconds:.1f} s" for what, seconds in lab.starts.items())
        tell(request.config, "lab_cluster", f"{parts}; up after {starts}")


@pytest.fixture(scope="session")
def cluster_node(cluster: Cluster) -> Node:
    reason = (
        missing()
        or image.missing()
        or (None if shutil.which("runc") else "runc is not installed (apt-get install runc)")
    )
    if reason:
        pytest.skip(f"cluster lab: {reason}")
    return Node(cluster).start()


@pytest.fixture(scope="session")
def stand_in(cluster: Cluster) -> StandIn:
    return StandIn(cluster).start()
