"""Fixtures of this room."""

from __future__ import annotations

import pytest

from koordlet.kernel.host import CgroupVersion
from tests.native.tables import NewTable, Table
from tests.native.trees import Tree


@pytest.fixture
def new_table(tmp_path_factory: pytest.TempPathFactory) -> NewTable:
    return lambda version=CgroupVersion.V1: Table(Tree(tmp_path_factory.mktemp("tree"), version))
