"""Whether something changed where inputs come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.sense.changes import Changes, Places


def quiet(changes: Changes) -> Changes:
    assert changes.any()  # the first look
    assert not changes.any()
    return changes


def quiet_now(changes: Changes) -> None:
    while changes.any():
        pass


def _replace(path: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text("other")
    fresh.rename(path)


def _append(path: Path) -> None:
    with open(path, "a") as file:
        file.write("more")


@pytest.mark.parametrize(
    "change",
    [_replace, _append, lambda path: path.write_text("x"), Path.unlink, lambda path: path.chmod(0o600)],
    ids=["renamed over", "appended", "written", "removed", "chmod"],
)
def test_a_file_that_changes_is_told_once(tmp_path: Path, change: Callable[[Path], object]) -> None:
    file = tmp_path / "policy.json"
    file.write_text("{}")
    places = Places(files=(tmp_path,))
    changes = quiet(Changes(lambda: places))
    change(file)
    assert changes.any()
    assert not changes.any()


def test_a_new_file_and_a_swapped_link_are_told(tmp_path: Path) -> None:
    """A ConfigMap is a link to a link to a directory, and the middle one is swapped."""
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "policy.json").write_text(version)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "policy.json").symlink_to("..data/policy.json")
    places = Places(files=(tmp_path,))
    changes = quiet(Changes(lambda: places))
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert changes.any()
    assert (tmp_path / "policy.json").read_text() == "two"


def test_of_groups_only_others_that_come_and_go_are_told(tmp_path: Path) -> None:
    places = Places(groups=(tmp_path,))
    (tmp_path / "cpuset.cpus").write_text("0")
    changes = quiet(Changes(lambda: places))
    (tmp_path / "cpuset.cpus").write_text("0-3")
    assert not changes.any()
    (tmp_path / "pod").mkdir()
    assert changes.any()
    (tmp_path / "pod").rmdir()
    assert changes.any()
    assert not changes.any()


def test_the_same_directory_may_be_both(tmp_path: Path) -> None:
    places = Places(files=(tmp_path,), groups=(tmp_path,))
    changes = quiet(Changes(lambda: places))
    (tmp_path / "a").write_text("")
    assert changes.any()


def test_contents_are_compared(tmp_path: Path) -> None:
    online = tmp_path / "online"
    online.write_text("0-3\n")
    places = Places(contents=(online,))
    changes = quiet(Changes(lambda: places))
    os.utime(online)
    assert not changes.any()
    online.write_text("0-2\n")
    assert changes.any()
    assert not changes.any()


def test_a_content_that_comes_is_a_change(tmp_path: Path) -> None:
    file = tmp_path / "online"
    places = Places(contents=(file,))
    changes = quiet(Changes(lambda: places))
    file.write_text("0\n")
    assert changes.any()
    assert not changes.any()


def test_other_places_are_a_change(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    places = [Places(groups=(tmp_path,))]
    changes = quiet(Changes(lambda: places[0]))
    places[0] = Places(groups=(tmp_path / "a",))
    assert changes.any()
    assert not changes.any()
    (tmp_path / "a" / "pod").mkdir()
    assert changes.any()


def test_a_directory_that_is_not_there_is_found_within_five_looks(tmp_path: Path) -> None:
    places = Places(files=(tmp_path / "later",))
    changes = quiet(Changes(lambda: places))
    (tmp_path / "later").mkdir()
    assert any(changes.any() for _ in range(5))
    quiet_now(changes)
    (tmp_path / "later" / "policy.json").write_text("{}")
    assert changes.any()


@pytest.mark.parametrize("files", [True, False])
def test_a_directory_that_is_made_anew_is_followed_on(tmp_path: Path, files: bool) -> None:
    """Between two looks: there may be no event that tells."""
    place = tmp_path / "place"
    place.mkdir()
    places = Places(files=(place,)) if files else Places(groups=(place,))
    changes = quiet(Changes(lambda: places))
    place.rename(tmp_path / "old")
    place.mkdir()
    assert any(changes.any() for _ in range(5))
    quiet_now(changes)
    for number in range(3):
        (place / f"new{number}").mkdir()
        assert changes.any()
        assert not changes.any()


def test_more_events_than_a_read_takes_are_all_taken(tmp_path: Path) -> None:
    places = Places(files=(tmp_path,))
    changes = quiet(Changes(lambda: places))
    for number in range(600):
        (tmp_path / f"file-with-a-rather-long-name-{number}").write_text("")
    assert changes.any()
    assert not changes.any()


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "online").write_text("0\n")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        places = Places(files=(tmp_path,), contents=(tmp_path / "online",))
        changes = quiet(Changes(lambda places=places: places))  # type: ignore[misc]
    del changes
    assert len(os.listdir("/proc/self/fd")) == before
