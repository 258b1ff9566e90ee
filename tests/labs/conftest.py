"""Fixtures of the labs, asked for by name."""

from __future__ import annotations

from tests.labs.cluster.fixture import cluster, cluster_node, stand_in
from tests.labs.resctrl.fixture import resctrl, resctrl_lab
from tests.labs.runtime.fixture import runtime, runtime_lab
from tests.labs.summary import pytest_terminal_summary

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
