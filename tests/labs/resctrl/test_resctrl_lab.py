"""The lab itself: it starts, cleans up after itself, ends with its owner, and can be used by hand."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.resctrl.lab import ROOT, Lab, running

pytestmark = pytest.mark.lab_resctrl


def test_nothing_is_left(resctrl: Lab) -> None:
    with running("haswell") as lab:
        assert os.path.ismount(lab.mount)
        assert (lab.mount / "info/L3/num_closids").read_text() == "4\n"
        held = os.open(lab.mount / "schemata", os.O_RDONLY)
    os.close(held)
    assert lab.process is not None
    assert lab.process.returncode is not None
    assert not lab.work.exists()
    assert str(lab.work) not in Path("/proc/mounts").read_text()


def test_it_ends_with_its_owner(resctrl: Lab) -> None:
    """A killed test run leaves no mount behind."""
    script = (
        "import os, signal; from tests.labs.resctrl.lab import Lab; lab = Lab().start();"
        "print(lab.process.pid, lab.work, flush=True); input(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        pid, work = owner.stdout.readline().split()
        server = os.pidfd_open(int(pid))
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert select.select([server], [], [], 20)[0]
        os.close(server)
    assert work not in Path("/proc/mounts").read_text()
    shutil.rmtree(work)


def test_by_hand(resctrl: Lab) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.labs.resctrl.lab", "intel-snc"],
        cwd=ROOT,
        input="reset haswell 4.19\nfork 5000001\ndrain\ncounter / 0 llc_occupancy 7\n"
        "counter / 0\nnonsense\n\ncounter info 0 llc_occupancy 5\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "mounted at" in done.stdout
    answers = done.stdout.splitlines()[-8:]
    assert answers[:4] == ["ok"] * 4
    for answer, words in zip(answers[4:], ("missing 2", "one of", "one of", "is no group"), strict=True):
        assert words in answer


def test_reset_is_a_new_mount(resctrl: Lab) -> None:
    (resctrl.mount / "g").mkdir()
    fd = os.open(resctrl.mount / "schemata", os.O_RDONLY)
    resctrl.reset("haswell")
    assert not (resctrl.mount / "g").exists()
    with pytest.raises(OSError, match="No such device"):
        os.pread(fd, 10, 0)
    os.close(fd)
