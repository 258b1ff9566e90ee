"""Every drill passes on this machine, and fails without the protection that it checks."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.live.node import BASE, V2, koordlet, why_not

GUEST = "KOORDLET_GUEST" in os.environ
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

DRILLS = ("cpu-surge", "mem-surge", "stale-metrics", "agent-kill", "policy-bad", "rollback")
LONG = ("cpu-surge", "stale-metrics", "policy-bad", "rollback")
"""Without their protection they wait for what never comes; the kernel lab has no time for that at each run."""


@pytest.fixture(autouse=True)
def controllers() -> None:
    """As systemd would have switched them on; the kernel lab has none."""
    if V2 and GUEST:
        (BASE / "cgroup.subtree_control").write_text("+cpu +cpuset +memory +io")


def drill(name: str, *words: str) -> dict[str, Any]:
    if reason := why_not():
        pytest.skip(reason)
    words = ("drill", name, "--yes", "--whatever-the-load", f"--seconds={5 if GUEST else 8}", "--output=json", *words)
    ran = koordlet(*words)
    assert ran.stdout, ran.stderr
    verdict: dict[str, Any] = json.loads(ran.stdout)
    print(ran.stderr, json.dumps(verdict, indent=1))
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
    if GUEST and name in LONG and "KOORDLET_DRILLS" not in os.environ:
        pytest.skip("KOORDLET_DRILLS=1 asks for it")
    verdict = drill(name, "--without-protection")
    assert not verdict["passed"], verdict


def test_a_drill_asks_first() -> None:
    ran = koordlet("drill", "rollback", "--whatever-the-load")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--yes" in ran.stderr
