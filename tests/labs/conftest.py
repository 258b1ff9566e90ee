"""Fixtures of the labs, asked for by name."""

from __future__ import annotations

import pytest

from tests.labs.cluster.fixture import cluster, cluster_node, stand_in
from tests.labs.resctrl.fixture import resctrl, resctrl_lab
from tests.labs.runtime.fixture import runtime, runtime_lab
from tests.labs.summary import MARKS, pytest_terminal_summary

__all__ = [
    "cluster",
    "cluster_node",
    "pytest_terminal_summary",
    "resctrl",
    "resctrl_lab",
    "runtime",
    "runtime_lab",
    "stand_in",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One lab after the other, the kernel lab first: what was started for the session stays up until its end, and an
    idle cluster beside it would take what the emulation needs."""
    order = {mark: place for place, mark in enumerate(MARKS)}

    def place(item: pytest.Item) -> int:
        return min((order[mark.name] for mark in item.iter_markers() if mark.name in order), default=-1)

    items.sort(key=place)
