"""Fixtures of the labs, asked for by name."""

from __future__ import annotations

from tests.labs.resctrl.fixture import resctrl, resctrl_lab

__all__ = ["resctrl", "resctrl_lab"]
