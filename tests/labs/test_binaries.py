"""The labs' cache: whole or not there at all, made once, keyed by version. Nothing is built here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs import binaries


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOORDLET_LABS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_part_is_made_once_per_version(cache: Path) -> None:
    def make(target: Path) -> None:
        (target / "tool").write_text("first")

    def never(target: Path) -> None:
        raise AssertionError(f"made again in {target}")

    assert binaries.made("part", "1.0", make) == cache / "part-1.0"
    assert (binaries.made("part", "1.0", never) / "tool").read_text() == "first"
    assert binaries.made("part", "1.1", make) == cache / "part-1.1"


def test_a_failed_or_killed_make_leaves_nothing_that_counts(cache: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").write_text("")
        raise binaries.BuildError("no compiler")

    with pytest.raises(binaries.BuildError, match="no compiler"):
        binaries.made("part", "1.0", fail)
    assert [p.name for p in cache.iterdir()] == [".part-1.0.lock"]
    (cache / ".part-1.0.abandoned").mkdir()
    binaries.made("part", "1.0", lambda target: None)
    assert sorted(p.name for p in cache.iterdir()) == [".part-1.0.lock", "part-1.0"]


def test_every_part_has_a_version_and_a_module(cache: Path) -> None:
    for part in binaries.parts().values():
        assert part.version[0].isdigit()
        assert "/" in part.module
        assert not binaries.cached(part.name)


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(binaries.BuildError, match=r"versions.toml has no part 'dockerd'; it has containerd"):
        binaries.binaries("dockerd")
