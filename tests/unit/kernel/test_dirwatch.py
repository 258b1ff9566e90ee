"""inotify on directories that come and go."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from koordlet.kernel.dirwatch import Change, DirWatch


def test_directories_are_told_and_files_are_not(tmp_path: Path) -> None:
    watch = DirWatch()
    assert watch.add(tmp_path)
    assert not watch.add(tmp_path)  # it is watched
    assert watch.read() == ([], False)
    (tmp_path / "file").write_text("x")
    (tmp_path / "pod1").mkdir()
    assert select.select([watch], [], [], 5)[0]
    (tmp_path / "pod1").rmdir()
    (tmp_path / "pod ü\n").mkdir()
    assert watch.read() == (
        [
            Change(tmp_path, "pod1", True),
            Change(tmp_path, "pod1", False),
            Change(tmp_path, "pod ü\n", True),
        ],
        False,
    )
    watch.close()


def test_a_directory_made_anew_is_watched_anew(tmp_path: Path) -> None:
    watch = DirWatch()
    below = tmp_path / "class"
    assert not watch.add(below)
    below.mkdir()
    assert watch.add(below)
    below.rmdir()
    below.mkdir()
    assert watch.add(below)  # even before it was told of the old one's end
    watch.read()
    (below / "pod").mkdir()
    assert watch.read()[0] == [Change(below, "pod", True)]
    watch.close()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    watch = DirWatch()
    (tmp_path / "file").write_text("x")
    assert not watch.add(tmp_path / "file")
    watch.close()


def test_more_than_the_kernel_keeps_is_lost_and_said(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip(f"the queue holds {limit} events")
    watch = DirWatch()
    watch.add(tmp_path)
    one, other = tmp_path / "one", tmp_path / "other"
    for number in range(limit // 2 + 1):
        name = one if number % 2 else other  # equal neighbours are merged
        os.mkdir(name)
        os.rmdir(name)
    changes, lost = watch.read()
    assert lost
    assert len(changes) <= limit
    watch.close()
