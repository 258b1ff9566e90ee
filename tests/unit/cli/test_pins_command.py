"""`koordlet pins defragment` against a real door: what it shows, when it asks, and what it has the agent do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.cli import main
from koordlet.cli.client import ask
from koordlet.decide.pinning.defragment import Fragmentation, Move, Plan
from koordlet.doors.http import HttpDoor
from koordlet.model.cpuset import CpuSet
from koordlet.report.audit import AuditLog
from koordlet.report.metrics import Metrics
from koordlet.report.pages import Pages

GAIN = Plan(
    (
        Move("u1", "local/web", CpuSet.parse("0,8"), CpuSet.parse("1,9")),
        Move("u2", "local/big", None, CpuSet.parse("4-7,12-15")),
    ),
    {},
    Fragmentation(8, 3, 0, 2),
    Fragmentation(0, 4, 0, 1),
)


class Pins:
    """Stands for the source of declared workloads: carries a plan out at once, unless `error` says why not."""

    def __init__(self) -> None:
        self.now, self.error, self.done = GAIN, "", 0
        self.answered = ("", "")

    def plan(self) -> Plan:
        return self.now

    def ask(self, plan_id: str) -> str:
        if plan_id != self.now.id:
            return "the workloads have changed since the plan was made; look at the new one"
        self.answered = (plan_id, self.error)
        self.done += not self.error
        return ""


@pytest.fixture
def pins() -> Pins:
    return Pins()


@pytest.fixture
def socket(tmp_path: Path, pins: Pins) -> Iterator[str]:
    yield from opened(tmp_path / "agent.sock", pins)


def opened(path: Path, pins: Pins | None) -> Iterator[str]:
    metrics = Metrics(lambda: (None, ()), process=False)
    pages = Pages(metrics, lambda: None, lambda: (None, ()), AuditLog(None), pins=pins)
    door = HttpDoor("127.0.0.1:0", str(path), pages.public(), pages.private(), actions=pages.actions())
    door.start()
    yield str(path)
    door.close()


def run(socket: str, *words: str) -> int:
    return main(["pins", "defragment", "--socket", socket, *words])


def test_a_dry_run_shows_who_would_move_and_what_it_gains(
    socket: str, pins: Pins, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(socket, "--dry-run") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["local/web", "0,8", "1,9"] in lines
    assert ["local/big", "shared", "4-7,12-15"] in lines
    assert ["CPUs", "asked", "for", "and", "not", "held", "8", "0"] in lines
    assert not any("split" in line for line in lines)
    assert pins.done == 0


def test_it_moves_when_told_to(socket: str, pins: Pins, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(socket, "--yes") == 0
    assert "2 workloads moved" in capsys.readouterr().out
    assert pins.done == 1


def test_json(socket: str, pins: Pins, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(socket, "--yes", "--output", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["applied"] is True
    assert answer["moves"][1] == {"workload": "local/big", "from": None, "to": "4-7,12-15"}
    assert (answer["before"]["missing_cpus"], answer["after"]["missing_cpus"]) == (8, 0)


def test_without_a_terminal_it_wants_a_word(socket: str, pins: Pins, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(socket) == 2
    assert "say --yes" in capsys.readouterr().err
    assert pins.done == 0


def test_nothing_to_gain(socket: str, pins: Pins, capsys: pytest.CaptureFixture[str]) -> None:
    pins.now = Plan()
    assert run(socket, "--yes") == 0
    assert "Nothing is gained" in capsys.readouterr().out
    assert pins.done == 0


def test_why_nobody_was_moved(socket: str, pins: Pins, capsys: pytest.CaptureFixture[str]) -> None:
    pins.error = "pins.json: No space left on device"
    assert run(socket, "--yes") == 1
    assert "nobody was moved: pins.json: No space left" in capsys.readouterr().err


def test_a_machine_without_declared_workloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for socket in opened(tmp_path / "k.sock", None):
        assert run(socket) == 1
        assert "no workloads are declared" in capsys.readouterr().err


def test_the_door_acts_on_a_post_with_the_right_plan_only(socket: str, pins: Pins) -> None:
    path = "/v1/pins/defragment"
    assert ask(socket, path, plan=GAIN.id)[0] == 404  # a GET changes nothing
    assert ask(socket, path, method="POST")[0] == 409
    assert ask(socket, path, method="POST", plan="0")[0] == 409
    assert ask(socket, "/v1/pins", method="POST")[0] == 405
    assert pins.done == 0
    assert ask(socket, path, method="POST", plan=GAIN.id) == (202, {"accepted": GAIN.id})
    assert pins.done == 1
