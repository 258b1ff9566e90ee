"""Fixtures of the runtime lab, for a test that asks by name. Other folders import both names in their conftest.

`runtime` is an instance without pods and plugins; containerd is started once per run. A first run on a machine builds
the binaries for some minutes, which counts as the first test's time: mark it with a timeout, or build before
(`python -m tests.labs.binaries containerd`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.labs.runtime.lab import Lab, missing, running

users = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def runtime_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    reason = missing()
    if reason:
        pytest.skip(f"runtime lab: {reason}")
    with running() as lab:
        yield lab
    versions = ", ".join(f"{name} {version}" for name, version in lab.versions.items())
    count = request.config.stash.get(users, 0)
    print(f"\nruntime lab: {versions}; up after {lab.started_s:.1f} s; {count} tests")


@pytest.fixture
def runtime(runtime_lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    request.config.stash[users] = request.config.stash.get(users, 0) + 1
    yield runtime_lab
    runtime_lab.clear()
