"""Live tests: real cgroups of this machine (v1) or of the kernel lab (v2), the real agent as a child process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.node import Node, why_not


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = Node(f"{abs(hash(request.node.nodeid)) % 10**6}")
    try:
        yield made
    finally:
        made.close()
