"""What tests on the cluster lab's real node share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs.cluster.node import Node


@pytest.fixture
def pods(cluster_node: Node) -> Iterator[list[dict[str, Any]]]:
    """Pods to take away after the test; their cgroups are gone too when the next one begins."""
    made: list[dict[str, Any]] = []
    yield made
    for one in made:
        cluster_node.remove(one)
    if made:
        cluster_node.settle()
