"""The drills' own parts that need no cgroups: the verdict, the fed proc directory, the question before the load."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from koordlet.drill import DRILLS, main
from koordlet.drill.node import memory, oom_kills
from koordlet.drill.stage import Check, Verdict, until
from koordlet.drill.stale import FEED_S, Feeder
from koordlet.kernel.host import CgroupVersion
from koordlet.sense.node import NodeMeter
from tests.hosts.tree import host_below

GOOD, BAD = Check("held", True, "0.2 s"), Check("restored", False, "never")


def test_a_verdict_passes_when_every_check_does_and_nothing_went_wrong() -> None:
    assert Verdict("d", (GOOD,)).passed
    assert not Verdict("d", (GOOD, BAD)).passed
    assert not Verdict("d", (GOOD,), "the agent did not start").passed
    assert not Verdict("d", ()).passed


def test_a_verdict_says_what_was_measured() -> None:
    verdict = Verdict("cpu-surge", (GOOD, BAD))
    assert verdict.text().splitlines() == ["cpu-surge: FAILED", "  ok  held: 0.2 s", "  NOT restored: never"]
    assert json.loads(json.dumps(verdict.as_json()))["checks"][1] == {
        "name": "restored",
        "passed": False,
        "measured": "never",
    }


def test_the_agents_figures_stop_and_come_back(tmp_path: Path) -> None:
    meter = NodeMeter(host_below(tmp_path, CgroupVersion.V1))
    with Feeder(tmp_path / "proc") as feeder:
        meter.read(1.0)
        assert meter.memory is not None
        assert abs(meter.memory.value - (memory()[0] - memory()[1])) < memory()[0] / 10
        feeder.pause()
        errors = meter.errors
        meter.read(2.0)
        assert (meter.errors, meter.memory.at_s) == (errors + 1, 1.0)
        feeder.resume()
        deadline_s = time.monotonic() + 10
        while meter.memory.at_s == 1.0 and time.monotonic() < deadline_s:
            time.sleep(FEED_S)
            meter.read(3.0)
        assert meter.memory.at_s == 3.0
    meter.close()


@pytest.mark.parametrize("name", DRILLS)
def test_no_drill_runs_unasked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--whatever-the-load"]) == 2
    assert "--yes" in capsys.readouterr().err


def test_waiting_is_bounded() -> None:
    assert until(lambda: False, 0.02) is None
    assert until(lambda: True, 0.02) is not None
    assert oom_kills() >= 0
