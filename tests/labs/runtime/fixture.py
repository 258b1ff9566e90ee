"""Fixtures of the runtime lab, for a test that asks by name. Other folders import both names in their conftest.

`runtime` is an instance without pods and plugins; containerd is started once per run. A first run on a machine builds
the binaries for some minutes, which counts as the first test's time: mark it with a timeout, or build before
(`python -m tests.labs.binaries containerd`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs.runtime.lab import Lab, missing, running
from tests.labs.summary import tell


@pytest.fixture(scope="session")
def runtime_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    reason = missing()
    if reason:
        pytest.skip(f"runtime lab: {reason}")
    with running() as lab:
        versions = ", ".join(f"{name} {version}" for name, version in lab.versions.items())
        tell(request.config, "lab_runtime", f"{versions}; up after {lab.started_s:.1f} s")
        yield lab


@pytest.fixture
def runtime(runtime_lab: Lab) -> Iterator[Lab]:
    yield runtime_lab
    runtime_lab.clear()
