"""Fixtures of the resctrl lab, for a test that asks by name. Other folders import both names in their conftest.

`resctrl` is a fresh machine per test; the file system is started once per run. Its shape is the parameter:
    @pytest.mark.parametrize("resctrl", ["intel-cdp"], indirect=True)     or     resctrl.reset("amd-smba")
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from tests.labs.resctrl.lab import Lab, missing, running
from tests.labs.summary import tell


@pytest.fixture(scope="session")
def resctrl_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    reason = missing()
    if reason:
        pytest.skip(f"resctrl lab: {reason}")
    begun = time.monotonic()
    with running() as lab:
        tell(request.config, "lab_resctrl", f"mfusepy {version('mfusepy')}; up after {time.monotonic() - begun:.1f} s")
        yield lab


@pytest.fixture
def resctrl(resctrl_lab: Lab, request: pytest.FixtureRequest) -> Lab:
    resctrl_lab.reset(getattr(request, "param", "intel"))
    return resctrl_lab
