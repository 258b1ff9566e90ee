"""The agent on a machine of the resctrl lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.act.resctrl_tree import ResctrlTree
from tests.labs.resctrl.agent import Agent, Make
from tests.labs.resctrl.lab import Lab


@pytest.fixture
def agent(resctrl: Lab, tmp_path: Path) -> Make:
    def make(shape: str = "intel", era: str | None = None, tree: type[ResctrlTree] = ResctrlTree) -> Agent:
        resctrl.reset(shape, era)
        return Agent(resctrl, tmp_path, tree)

    return make
