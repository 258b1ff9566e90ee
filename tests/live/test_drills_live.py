"""Every drill passes on this machine, and fails without the protection that it checks."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.live.node import BASE, V2, koordlet, why_not

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        "KOORDLET_GUEST" in os.environ and "KOORDLET_DRILLS" not in os.environ,
        reason="too slow for each run in the emulated kernel lab: KOORDLET_DRILLS=1 asks for it",
    ),
]

DRILLS = ("cpu-surge", "mem-surge", "stale-metrics", "agent-kill", "policy-bad", "rollback")


@pytest.fixture(autouse=True)
def controllers() -> None:
    """As systemd would have switched them on; the kernel lab has none."""
    if V2 and "KOORDLET_GUEST" in os.environ:
        (BASE / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +io")


def drill(name: str, *words: str) -> dict[str, Any]:
    if reason := why_not():
        pytest.skip(reason)
    ran = koordlet("drill", name, "--yes", "--whatever-the-load", "--seconds=8", "--output=json", *words)
    assert ran.stdout, ran.stderr
    verdict: dict[str, Any] = json.loads(ran.stdout)
    print(json.dumps(verdict, indent=1))
    if "so busy" in verdict["fault"]:
        pytest.skip(verdict["fault"])
    assert (ran.returncode == 0) == verdict["passed"]
    return verdict


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_passes(name: str) -> None:
    verdict = drill(name)
    assert verdict["passed"], verdict


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_fails_without_its_protection(name: str) -> None:
    verdict = drill(name, "--without-protection")
    assert not verdict["passed"], verdict


def test_a_drill_asks_first() -> None:
    ran = koordlet("drill", "rollback", "--whatever-the-load")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--yes" in ran.stderr
