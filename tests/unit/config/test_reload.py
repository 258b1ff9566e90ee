"""Files that change under a running agent. Times are arguments; nothing here waits."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.config.errors import PolicyError
from koordlet.config.reload import MAX_FILES, Watched, WatchedFiles


def load(path: Path) -> str:
    text = path.read_text()
    if not text.startswith("ok"):
        raise PolicyError(str(path), "", text, "a text that starts with ok")
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def save(path: Path, text: str) -> None:
    """As editors do: a new file in place of the old one."""
    fresh = path.with_name("." + path.name)
    fresh.write_text(text)
    os.replace(fresh, path)


def test_a_change_is_taken_and_counted(path: Path) -> None:
    watched = Watched(path, load, "initial")
    assert not watched.poll(0.0)
    assert (watched.value, watched.error, watched.revision) == ("initial", "", 0)
    save(path, "ok 1")
    assert watched.poll(1.0)
    assert not watched.poll(2.0)
    save(path, "ok 2")
    assert watched.poll(3.0)
    assert (watched.value, watched.revision, watched.failures) == ("ok 2", 2, 0)


def test_an_unchanged_file_is_not_read_again(path: Path) -> None:
    reads: list[Path] = []

    def counting(at: Path) -> str:
        reads.append(at)
        return load(at)

    save(path, "ok")
    watched = Watched(path, counting, "")
    for second in range(5):
        watched.poll(float(second))
    assert len(reads) == 1


def test_a_bad_file_keeps_the_previous_value_and_says_why(path: Path) -> None:
    save(path, "ok 1")
    watched = Watched(path, load, "initial")
    watched.poll(0.0)
    save(path, "broken")
    assert not watched.poll(1.0)
    assert not watched.poll(2.0)
    assert (watched.value, watched.revision, watched.failures) == ("ok 1", 1, 1)
    assert "starts with ok" in watched.error
    save(path, "ok 1")
    assert not watched.poll(3.0)  # the same value: nothing for others to do
    assert watched.error == ""


def test_deletion_counts_after_a_grace(path: Path) -> None:
    save(path, "ok 1")
    watched = Watched(path, load, "initial")
    watched.poll(0.0)
    path.unlink()
    assert not watched.poll(10.0)
    assert "deleted" in watched.error
    assert not watched.poll(69.9)
    assert watched.value == "ok 1"
    assert watched.poll(70.0)
    assert (watched.value, watched.error) == ("initial", "")


def test_a_file_that_comes_back_within_the_grace_changes_nothing(path: Path) -> None:
    save(path, "ok 1")
    watched = Watched(path, load, "initial")
    watched.poll(0.0)
    path.unlink()
    watched.poll(10.0)
    save(path, "ok 1")
    assert not watched.poll(20.0)
    assert not watched.poll(100.0)
    assert (watched.value, watched.error) == ("ok 1", "")


def test_a_missing_file_is_an_error_only_where_it_must_be_there(path: Path) -> None:
    watched = Watched(path, load, "", required=True)
    watched.poll(0.0)
    assert watched.error == f"{path}: no such file"
    assert watched.failures == 0


def test_a_pipe_or_a_directory_is_refused_instead_of_blocking(path: Path) -> None:
    os.mkfifo(path)
    watched = Watched(path, load, "initial")
    assert not watched.poll(0.0)
    assert watched.error == f"{path}: not a regular file"
    path.unlink()
    path.mkdir()
    assert not watched.poll(1.0)
    assert watched.value == "initial"


def test_a_directory_is_read_in_name_order_file_by_file(tmp_path: Path) -> None:
    files = WatchedFiles(tmp_path, load)
    assert not files.poll(0.0)
    save(tmp_path / "b.yaml", "ok b")
    save(tmp_path / "a.json", "ok a")
    save(tmp_path / "notes.txt", "nobody reads this")
    assert files.poll(1.0)
    assert [value for _, value in files.values] == ["ok a", "ok b"]
    save(tmp_path / "b.yaml", "broken")
    assert not files.poll(2.0)
    assert [value for _, value in files.values] == ["ok a", "ok b"]
    assert (len(files.errors), files.failures) == (1, 1)


def test_a_file_taken_out_of_a_directory_counts_after_a_grace(tmp_path: Path) -> None:
    save(tmp_path / "a.yaml", "ok a")
    save(tmp_path / "b.yaml", "ok b")
    files = WatchedFiles(tmp_path, load)
    files.poll(0.0)
    (tmp_path / "a.yaml").unlink()
    assert not files.poll(1.0)
    assert files.poll(61.0)
    assert [value for _, value in files.values] == ["ok b"]
    assert files.errors == ()


def test_one_file_in_place_of_a_directory(path: Path) -> None:
    files = WatchedFiles(path, load, required=True)
    files.poll(0.0)
    assert files.errors == (f"{path}: no such file or directory",)
    save(path, "ok")
    assert files.poll(1.0)
    assert files.values == ((path, "ok"),)


def test_a_crowded_directory_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number:04}.yaml").write_text("ok")
    files = WatchedFiles(tmp_path, load)
    files.poll(0.0)
    assert len(files.values) == MAX_FILES
    assert "only the first" in files.errors[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@given(saves=st.lists(st.sampled_from(["ok 1", "ok 2", "broken", "", None]), max_size=12))
def test_the_value_is_always_the_last_good_one(folder: Path, saves: list[str | None]) -> None:
    path = folder / "f.yaml"
    path.unlink(missing_ok=True)
    watched = Watched(path, load, "initial")
    good = "initial"
    for second, text in enumerate(saves):
        if text is None:
            path.unlink(missing_ok=True)
        else:
            save(path, text)
        watched.poll(float(second))
        good = text if text and text.startswith("ok") else good
        assert watched.value == good
