import os
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.act.lock import DirectoryLock, Lock, LockedError


def test_second_agent_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "run/koordlet.lock"
    with Lock(path):
        code = f"from pathlib import Path; from koordlet.act.lock import Lock; Lock(Path({str(path)!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"process {os.getpid()}" in done.stderr
        with pytest.raises(LockedError) as caught:
            Lock(path)
        assert caught.value.pid == os.getpid()
    with Lock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_killed_holder_does_not_lock_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "koordlet.lock"
    held = f"from koordlet.act.lock import Lock; Lock(Path({str(path)!r}))"
    code = f"import os; from pathlib import Path; {held}; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    Lock(path).release()


def test_release_twice(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "koordlet.lock")
    lock.release()
    lock.release()


def test_two_agents_cannot_share_a_tree(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(LockedError, match="already running"):
        DirectoryLock(tmp_path)
    with DirectoryLock(tmp_path):
        assert list(tmp_path.iterdir()) == []
