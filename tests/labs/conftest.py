"""Fixtures of the labs, asked for by name."""

from __future__ import annotations

from tests.labs.resctrl.fixture import resctrl, resctrl_lab
from tests.labs.runtime.fixture import runtime, runtime_lab

__all__ = ["resctrl", "resctrl_lab", "runtime", "runtime_lab"]
