"""Fixtures of the sampler's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion
from tests.native.trees import Tree
from tests.unit.sense.sampled import Node


@pytest.fixture(params=list(CgroupVersion), ids=str)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(Tree(tmp_path, request.param))
