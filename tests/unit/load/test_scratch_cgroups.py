"""Scratch cgroups without a kernel: what is missing is said, and the two versions' files are spoken rightly.

Making and removing real ones is tested with the demo, tests/live/test_demo_live.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.load.cgroups import Group, Hierarchies, find_hierarchies
from koordlet.load.errors import LoadError


def make_files(base: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)


def test_v1_takes_the_mounted_controllers(tmp_path: Path) -> None:
    make_files(tmp_path, {f"{name}/cgroup.procs": "" for name in ("cpu", "cpuacct", "memory")})
    found = find_hierarchies(tmp_path)
    assert not found.v2
    assert found.roots == {name: tmp_path / name for name in ("cpu", "cpuacct", "memory")}
    procs = Group(found, "x/y").procs_files
    assert procs == tuple(tmp_path / name / "x/y/cgroup.procs" for name in ("cpu", "cpuacct", "memory"))


def test_v1_with_cpu_and_cpuacct_in_one_hierarchy_joins_it_once(tmp_path: Path) -> None:
    """Most distributions mount `cpu,cpuacct` together and link both names to it."""
    make_files(tmp_path, {"cpu,cpuacct/cgroup.procs": ""})
    for name in ("cpu", "cpuacct"):
        (tmp_path / name).symlink_to("cpu,cpuacct")
    assert len(find_hierarchies(tmp_path).distinct) == 1


def test_v2_is_one_root_for_all(tmp_path: Path) -> None:
    make_files(tmp_path, {"cgroup.controllers": "cpuset cpu io memory", "cgroup.subtree_control": "cpu memory"})
    found = find_hierarchies(tmp_path)
    assert found.v2
    assert set(found.roots) == {"cpu", "cpuacct", "memory"}
    assert Group(found, "x").procs_files == (tmp_path / "x/cgroup.procs",)


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ({}, "no cpu and no cpuacct controller.*privileged"),
        ({"cpu/cgroup.procs": ""}, "no cpuacct controller"),
        ({"cgroup.controllers": "cpu", "cgroup.subtree_control": "memory"}, r"not active.*echo \+cpu"),
    ],
    ids=["nothing mounted", "no cpuacct", "v2 not active"],
)
def test_a_missing_controller_is_named_with_the_way_to_get_it(
    tmp_path: Path, files: dict[str, str], advice: str
) -> None:
    make_files(tmp_path, files)
    with pytest.raises(LoadError, match=advice):
        find_hierarchies(tmp_path)


@pytest.mark.parametrize(
    ("files", "quota_us"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "120000 100000\n"}, 120_000),
        ({"cpu.max": "5000 50000\n"}, 10_000),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.cfs_quota_us": "12000\n", "cpu.cfs_period_us": "10000\n"}, 120_000),
    ],
    ids=["v2 none", "v2", "v2 period", "v1 none", "v1 period"],
)
def test_quota_is_read_per_100_ms(tmp_path: Path, files: dict[str, str], quota_us: int | None) -> None:
    make_files(tmp_path / "x", files)
    where = Hierarchies("cpu.max" in files, {"cpu": tmp_path})
    assert Group(where, "x").quota_us() == quota_us


@pytest.mark.parametrize(
    ("v2", "expected"),
    [
        (True, {"cpu.weight": "100", "cpu.max": "120000 100000", "cpu.idle": "1"}),
        (False, {"cpu.shares": "1024", "cpu.cfs_quota_us": "120000", "cpu.idle": "1"}),
    ],
    ids=["v2", "v1"],
)
def test_values_are_written_in_the_version_s_files(tmp_path: Path, v2: bool, expected: dict[str, str]) -> None:
    (tmp_path / "x").mkdir()
    group = Group(Hierarchies(v2, {"cpu": tmp_path}), "x")
    group.set_shares(1024)
    group.set_quota_us(120_000)
    group.set_idle(1)
    assert {path.name: path.read_text() for path in (tmp_path / "x").iterdir()} == expected
    group.set_quota_us(None)
    assert (tmp_path / "x" / ("cpu.max" if v2 else "cpu.cfs_quota_us")).read_text() in ("max 100000", "-1")


def test_a_refused_write_names_file_value_and_reason(tmp_path: Path) -> None:
    group = Group(Hierarchies(False, {"cpu": tmp_path}), "gone")
    with pytest.raises(LoadError, match=r"gone/cpu\.idle: '1' refused: No such file"):
        group.set_idle(1)
