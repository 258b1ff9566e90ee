import errno
import os
from pathlib import Path

import pytest

from koordlet.kernel.errors import KernelFileError, is_gone, is_unsupported
from koordlet.kernel.host import CgroupVersion, Host, detect_version
from tests.hosts.tree import HostTree


def test_presets_differ_in_the_mounted_roots() -> None:
    host = Host.preset("host")
    pod = Host.preset("daemonset")
    assert (host.cgroup_root, pod.cgroup_root) == (Path("/sys/fs/cgroup"), Path("/host-cgroup"))
    assert (host.sys_root, pod.sys_root) == (Path("/sys"), Path("/host-sys"))
    assert (host.sys_fs_root, pod.sys_fs_root) == (Path("/sys/fs"), Path("/host-sys-fs"))
    assert host.proc_root == pod.proc_root == Path("/proc")
    assert (host.run_root, pod.run_root) == (Path("/run"), Path("/host-run"))
    assert host.kubelet_root == pod.kubelet_root == Path("/var/lib/kubelet")


def test_an_override_replaces_one_root(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    host = Host.preset("host", cgroup_root=tmp_path)
    assert (host.cgroup_root, host.version, host.proc_root) == (tmp_path, CgroupVersion.V2, Path("/proc"))


def test_unknown_mode_and_root_are_named() -> None:
    with pytest.raises(ValueError, match="'pod'"):
        Host.preset("pod")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cgroot"):
        Host.preset("host", cgroot=Path("/"))


def test_hybrid_is_v1_with_a_unified_directory(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V1, {"cgroup": {"unified": {"cgroup.controllers": "\n", "a.slice": {}}}})
    assert detect_version(tree.host.cgroup_root) is CgroupVersion.V1
    assert tree.host.dir("cpu", "a.slice") == tmp_path / "cgroup/cpu/a.slice"
    assert tree.host.unified_dir("a.slice") == tmp_path / "cgroup/unified/a.slice"
    assert tree.host.unified_dir("b.slice") is None


def test_v2_has_one_directory_for_all_subsystems(tmp_path: Path) -> None:
    host = HostTree(tmp_path, CgroupVersion.V2).host
    assert detect_version(host.cgroup_root) is CgroupVersion.V2
    assert host.dir("cpu", "a") == host.dir("memory", "a") == host.unified_dir("a") == tmp_path / "cgroup/a"
    assert host.dir("cpu", "") == tmp_path / "cgroup"


def test_the_real_machine_agrees_with_its_mount_table() -> None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    unified = any(fields[1] == "/sys/fs/cgroup" and fields[2] == "cgroup2" for fields in mounts)
    assert Host.preset("host").version is (CgroupVersion.V2 if unified else CgroupVersion.V1)


@pytest.mark.parametrize(
    ("number", "gone", "unsupported"),
    [
        (errno.ENOENT, True, True),
        (errno.ENODEV, True, False),
        (errno.ESRCH, True, False),
        (errno.ENOTDIR, True, False),
        (errno.EOPNOTSUPP, False, True),
        (errno.EACCES, False, False),
        (errno.EINVAL, False, False),
    ],
)
def test_errno_classes(number: int, gone: bool, unsupported: bool) -> None:
    error = OSError(number, os.strerror(number))
    assert (is_gone(error), is_unsupported(error)) == (gone, unsupported)


def test_a_garbage_error_shows_path_reason_and_only_the_first_bytes() -> None:
    error = KernelFileError("cpu.max", "expected quota and period", "x" * 5000).at("/sys/fs/cgroup/a/cpu.max")
    assert (error.path, error.reason) == ("/sys/fs/cgroup/a/cpu.max", "expected quota and period")
    assert "/sys/fs/cgroup/a/cpu.max: expected quota and period" in str(error)
    assert len(str(error)) < 300
