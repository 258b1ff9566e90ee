"""Fixtures of the labs, asked for by name."""

from __future__ import annotations

from tests.labs.cluster.fixture import cluster, cluster_node, stand_in
from tests.labs.resctrl.fixture import resctrl, resctrl_lab
from tests.labs.runtime.fixture import runtime, runtime_lab

__all__ = ["cluster", "cluster_node", "resctrl", "resctrl_lab", "runtime", "runtime_lab", "stand_in"]
