import os
from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.systemd import pid_cgroup, unit_cgroups
from tests.hosts.tree import Content, HostTree

UNITS: dict[str, Content] = {
    "system.slice": {
        "nginx.service": {"worker": {}},
        "batch-1.scope": {},
        "batch-2.scope": {},
        "system-postgres.slice": {"postgres@a.service": {}},
        "cpu.stat": "",
    },
    "user.slice": {"user-0.slice": {"user@0.service": {"app.slice": {"notes.service": {}}}}},
    "kubepods": {"nginx.service": {}},
}


@pytest.mark.parametrize("place", ["v2", "v1", "hybrid"])
@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("nginx", ["system.slice/nginx.service"]),
        ("nginx.service", ["system.slice/nginx.service"]),
        ("batch-*.scope", ["system.slice/batch-1.scope", "system.slice/batch-2.scope"]),
        ("postgres@*", ["system.slice/system-postgres.slice/postgres@a.service"]),
        ("notes", ["user.slice/user-0.slice/user@0.service/app.slice/notes.service"]),
        ("system.slice", ["system.slice"]),
        ("worker", []),
        ("absent", []),
    ],
)
def test_units(tmp_path: Path, place: str, pattern: str, paths: list[str]) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2 if place == "v2" else CgroupVersion.V1)
    tree.put({"v2": "cgroup", "v1": "cgroup/systemd", "hybrid": "cgroup/unified"}[place], UNITS)
    assert unit_cgroups(tree.host, pattern) == paths


def test_a_machine_without_systemd_has_no_units(tmp_path: Path) -> None:
    assert unit_cgroups(HostTree(tmp_path, CgroupVersion.V1).host, "nginx") == []


V1_TEXT = "12:cpuset:/\n5:cpu,cpuacct:/system.slice/a:b.service\n3:memory:/../../o\n1:name=systemd:/x\n0::/unified\n"


@pytest.mark.parametrize(
    ("version", "text", "subsystem", "path"),
    [
        (CgroupVersion.V1, V1_TEXT, "cpu", "system.slice/a:b.service"),
        (CgroupVersion.V1, V1_TEXT, "cpuacct", "system.slice/a:b.service"),
        (CgroupVersion.V1, V1_TEXT, "cpuset", ""),
        (CgroupVersion.V1, V1_TEXT, "name=systemd", "x"),
        (CgroupVersion.V1, V1_TEXT, "memory", None),
        (CgroupVersion.V1, V1_TEXT, "blkio", None),
        (CgroupVersion.V2, "0::/a/b\n", "cpu", "a/b"),
        (CgroupVersion.V2, "0::/a/b (deleted)\n", "cpu", None),
        (CgroupVersion.V2, "garbage\n", "cpu", None),
    ],
)
def test_pid_cgroup(tmp_path: Path, version: CgroupVersion, text: str, subsystem: str, path: str | None) -> None:
    tree = HostTree(tmp_path, version, {"proc": {"42": {"cgroup": text}}})
    assert pid_cgroup(tree.host, 42, subsystem) == path
    assert pid_cgroup(tree.host, 43, subsystem) is None


def test_this_process_is_in_a_directory_that_exists() -> None:
    host = Host.preset("host")
    path = pid_cgroup(host, os.getpid(), "cpu")
    if path is None:
        pytest.skip("this process is outside the cgroup namespace")
    assert host.dir("cpu", path).is_dir()
