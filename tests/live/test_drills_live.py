"""Every drill passes on this machine, and fails without the protection that it checks."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import pytest

from tests.live.forked import Forked
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
    code, out, errors = in_the_guest(*words) if GUEST else in_a_process(*words)
    assert out, errors
    verdict: dict[str, Any] = json.loads(out)
    print(errors, json.dumps(verdict, indent=1))
    if "so busy" in verdict["fault"]:
        pytest.skip(verdict["fault"])
    assert (code == 0) == verdict["passed"]
    return verdict


def in_a_process(*words: str) -> tuple[int, str, str]:
    """Its code, what it printed, what it complained of."""
    ran = koordlet(*words)
    return ran.returncode, ran.stdout, ran.stderr


def in_the_guest(*words: str) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        code = Forked(list(words), out.fileno(), errors.fileno()).wait(200)
        out.seek(0)
        errors.seek(0)
        return code, out.read(), errors.read()


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
