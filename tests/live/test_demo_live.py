"""The demo in real cgroups, very short and without the agent: a table, a picture, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.demo import main
from koordlet.load.cgroups import Group, find_hierarchies, scratch_tree
from koordlet.load.child import python_env
from koordlet.load.errors import LoadError
from tests.live.node import why_not

pytestmark = [pytest.mark.live_v1, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

QUICK = ("--stand-in", "--phase-seconds", "1", "--reaction", "0", "--antagonist", "compute")


def demo(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "koordlet.demo", *QUICK, *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env=python_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def left_behind(pid: int) -> list[Path]:
    return [path for root in find_hierarchies().distinct for path in root.glob(f"koordlet-demo-{pid}*")]


@pytest.mark.parametrize("tree", ["siblings", "kubelet"])
def test_measures_every_phase_and_leaves_no_cgroup(tree: str, tmp_path: Path) -> None:
    running = demo("--tree", tree, "--output", "json", "--picture", "seen.png", cwd=tmp_path)
    out, err = running.communicate(timeout=110)
    assert running.returncode == 0, err
    rows = json.loads(out)["rows"]
    assert [row["phase"] for row in rows] == ["alone", "unmanaged", "quota only", "koordlet"]
    assert all(0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"] for row in rows)
    assert all(row["online_cpus"] > 0 for row in rows)
    assert rows[0]["idle_share"] is None
    assert all(row["work"] > 0 for row in rows[1:3])  # the last one gets nothing on a machine that is full
    assert left_behind(running.pid) == []
    pytest.importorskip("PIL")
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_stopped_in_the_middle_it_cleans_up(number: signal.Signals, tmp_path: Path) -> None:
    running = demo("--picture", "", "--rounds", "100", cwd=tmp_path)
    assert running.stderr is not None
    first = running.stderr.readline()
    assert "alone" in first
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + number, err
    assert "stopped" in err
    assert left_behind(running.pid) == []


def test_what_a_killed_demo_left_is_removed_by_the_next_one() -> None:
    """The children die with their parent, so the cgroups are empty by then."""
    where = find_hierarchies()
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = [root / f"koordlet-test-left-{gone.pid}{suffix}" for root in where.distinct for suffix in ("", "-online")]
    for path in left:
        path.mkdir()
    with scratch_tree("koordlet-test-left", where) as tree:
        assert not any(path.exists() for path in left)
        assert tree.name == f"koordlet-test-left-{os.getpid()}"


def test_members_are_killed_when_the_tree_is_removed() -> None:
    with scratch_tree("koordlet-test-kill") as tree:
        group: Group = tree.group("a/b")
        beside = tree.beside("c")
        sleeper = subprocess.Popen(["sleep", "60"])
        for procs in group.procs_files:
            procs.write_text(str(sleeper.pid))
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not group.dir().exists()
    assert not beside.dir().exists()


def test_not_root_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    os.seteuid(65534)
    try:
        assert main([]) == 1
    finally:
        os.seteuid(0)
    assert "needs root: sudo koordlet demo" in capsys.readouterr().err


def test_no_writable_cgroup_it_says_how(tmp_path: Path) -> None:
    for name in ("cpu", "cpuacct"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")
        (tmp_path / name / f"koordlet-test-no-{os.getpid()}").write_text("in the way")
    where = find_hierarchies(tmp_path)
    with pytest.raises(LoadError, match=r"cannot make a cgroup: .*privileged"), scratch_tree("koordlet-test-no", where):
        pass
