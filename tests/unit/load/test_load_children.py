"""Loads as child processes: they wait for go, answer, stop by themselves and die with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from koordlet.load import child
from koordlet.load.batch import BatchKind, BatchLoad, Surge, typical
from koordlet.load.errors import LoadError
from koordlet.load.online import OnlineLoad


@pytest.mark.parametrize("kind", BatchKind)
def test_every_antagonist_counts_its_work_and_stops(kind: BatchKind, tmp_path: Path) -> None:
    load = BatchLoad(kind, 0.2, warmup_s=0, workers=2, bytes=2 << 20, burst=2, directory=str(tmp_path))
    with child.start(load) as running:
        running.go(time.monotonic_ns())
        assert running.batch_result(30).work > 0
        assert not psutil.Process(running.pid).children()
    assert list(tmp_path.iterdir()) == []


def test_online_child_reports_what_it_measured() -> None:
    with child.start(OnlineLoad(100, 0.2, warmup_s=0.1, work_us=20, workers=2)) as running:
        running.go(time.monotonic_ns())
        result = running.online_result(30)
    assert result.count > 0
    assert result.slots[0].at_s == 0


def test_surge_runs_once_for_each_go() -> None:
    with child.start(Surge(threads=1, duty_permille=500, duration_s=0.05)) as running:
        for _ in range(2):
            running.go(time.monotonic_ns())
            running.wait(30)


def test_a_load_that_cannot_run_says_why() -> None:
    with child.start(BatchLoad(BatchKind.DISK, 0.1, bytes=2 << 20, directory="/nonexistent")) as running:
        running.go(time.monotonic_ns())
        with pytest.raises(LoadError, match=r"disk.*No such file"):
            running.batch_result(30)


def test_no_answer_in_time_is_an_error() -> None:
    with child.start(Surge(1, 1000, 5.0)) as running, pytest.raises(LoadError, match="has not answered"):
        running.wait(0.01)


def test_closing_kills_the_whole_storm() -> None:
    with child.start(BatchLoad(BatchKind.STORM, 60, workers=2, bytes=4096, burst=4)) as running:
        running.go(time.monotonic_ns())
        process = psutil.Process(running.pid)
        while not process.children():
            time.sleep(0.01)
        below = process.children(recursive=True)
    psutil.wait_procs(below, timeout=10)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in below)


def test_loads_die_with_a_parent_that_was_killed() -> None:
    code = (
        "import time\nfrom koordlet.load import child\nfrom koordlet.load.batch import Surge\n"
        "with child.start(Surge(1, 10, 60.0)) as running:\n"
        "    print(running.pid, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=child.python_env())
    assert parent.stdout is not None
    with parent, parent.stdout:
        load = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs([load], timeout=10)
    assert gone
    assert not alive


def test_typical_jobs_want_more_cpus_than_there_are() -> None:
    for kind in BatchKind:
        assert typical(kind, 1.0, cpus=4, directory="/tmp").workers > 4
        assert typical(kind, 1.0, cpus=1000, directory="/tmp").workers >= 256


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"burst": 65}, {"duration_s": 0.0}, {"kind": "disk"}, {"kind": "stream", "bytes": 1024}],
    ids=str,
)
def test_unreasonable_jobs_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LoadError):
        BatchLoad(**{"kind": BatchKind.COMPUTE, "duration_s": 1.0, **wrong})  # type: ignore[arg-type]
