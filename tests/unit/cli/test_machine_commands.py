"""The commands that look at the machine itself: `check`, and `undo` on what an agent left behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from koordlet.act.journal import Entry, Journal, read_boot_id
from koordlet.act.lock import DirectoryLock, Lock
from koordlet.cli import main
from koordlet.kernel.host import Host
from koordlet.model.knob import Knob


def test_check_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--state-dir", str(tmp_path / "state"), "--run-dir", str(tmp_path)]
    code = main([*words, "--output", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == (0 if answer["ok"] else 1)
    grades = {row["name"]: row["grade"] for row in answer["environment"]}
    assert grades["state dir"] == "ok"
    assert {"cpu.usage", "cpu.idle", "psi.node"} <= {row["name"] for row in answer["capabilities"]}
    assert main(words) == code
    assert "CAPABILITY" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_check_without_cgroups_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--cgroup-root-dir", str(tmp_path), "--state-dir", str(tmp_path), "--run-dir", "/none"]) == 1
    out = capsys.readouterr().out
    assert "The agent cannot do its basic work here. Missing: cpu.usage" in out
    assert "mount the cgroup file system" in out


@pytest.fixture
def left_behind(tmp_path: Path) -> tuple[Path, list[str]]:
    """A v1 tree in which an agent wrote shares 2 over 1024 and vanished; (the file, the arguments for undo)."""
    file = tmp_path / "cgroup/cpu/batch/cpu.shares"
    file.parent.mkdir(parents=True)
    file.write_text("1024\n")
    host = Host.preset("host", cgroup_root=tmp_path / "cgroup")
    state = tmp_path / "state"
    state.mkdir()
    journal = Journal(state / "journal", read_boot_id(host))
    entry = Entry("batch", Knob.CPU_SHARES, str(file), file.stat().st_ino, b"1024\n")
    journal.add([entry])
    journal.intend([(entry, b"2")])
    file.write_text("2\n")
    journal.settle([(entry, b"2\n")])
    journal.close()
    return file, [
        "undo", "--state-dir", str(state), "--run-dir", str(tmp_path / "run"),
        "--audit-log-dir", str(tmp_path / "audit"), "--cgroup-root-dir", str(tmp_path / "cgroup"),
    ]  # fmt: skip


def test_undo_puts_back_and_tells(left_behind: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    file, words = left_behind
    assert main([*words, "--yes"]) == 0
    assert file.read_text().strip() == "1024"
    assert "1 put back" in capsys.readouterr().out
    assert main([*words, "--yes", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["restored"] == 0


def test_undo_says_why_it_cannot_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["undo", "--state-dir", "/" + "x" * 300]) == 1  # as a 0700 directory does to others than root
    assert "File name too long" in capsys.readouterr().err


def test_undo_json(left_behind: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*left_behind[1], "--yes", "--output", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["restored"] == 1
    assert [(row["knob"], row["current"], row["original"], row["action"]) for row in answer["rows"]] == [
        ("cpu.shares", "2", "1024", "restored")
    ]


def test_undo_asks_first(
    left_behind: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, words = left_behind
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(words) == 2
    assert "1 kernel value would be put back; say --yes" in capsys.readouterr().err
    assert file.read_text().strip() == "2"


def test_undo_refuses_while_an_agent_runs(
    left_behind: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = left_behind
    with Lock(tmp_path / "run" / "koordlet.lock"):
        assert main([*words, "--yes"]) == 1
    error = capsys.readouterr().err
    assert "an agent is running and owns these values; stop it first" in error
    assert f"kill {os.getpid()}" in error
    assert file.read_text().strip() == "2"


def test_undo_refuses_while_an_agent_runs_with_another_run_dir(
    left_behind: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = left_behind
    with DirectoryLock(Path(words[words.index("--state-dir") + 1])):
        assert main([*words, "--yes"]) == 1
    assert "an agent is running and owns these values" in capsys.readouterr().err
    assert file.read_text().strip() == "2"


def test_undo_leaves_a_foreign_value_unless_forced(
    left_behind: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = left_behind
    file.write_text("555\n")
    assert main([*words, "--yes"]) == 0
    assert file.read_text() == "555\n"
    assert "undo --force" in capsys.readouterr().out
    assert main([*words, "--yes", "--force"]) == 0
    assert file.read_text().strip() == "1024"


def test_undo_without_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["undo", "--state-dir", str(tmp_path), "--run-dir", str(tmp_path / "r")]) == 0
    assert "there is no journal" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
