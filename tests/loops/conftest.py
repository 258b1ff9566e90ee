from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loops.engine_rig import Rig, made_rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with made_rig(tmp_path) as made:
        yield made
