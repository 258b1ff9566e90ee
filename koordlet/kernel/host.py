"""`Host`: the root directories under which everything is read, so the agent also runs on a copied tree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal


class CgroupVersion(StrEnum):
    """V1 is one directory per controller (hybrid mounts included), V2 the unified hierarchy."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class Host:
    """Root directories (spec/collect 1.1). sys_fs_root is the parent of resctrl."""

    cgroup_root: Path
    sys_root: Path
    sys_fs_root: Path
    proc_root: Path
    var_run_root: Path
    run_root: Path
    kubelet_root: Path
    version: CgroupVersion

    @classmethod
    def preset(cls, mode: Literal["host", "daemonset"], **overrides: Path) -> Host:
        """Default roots of a mode, single ones replaced by name; the cgroup version is detected once.

        Raises ValueError for an unknown mode or root name.
        """
        if mode not in _PRESETS:
            raise ValueError(f"unknown mode {mode!r}, expected one of {', '.join(_PRESETS)}")
        roots = {name: Path(path) for name, path in _PRESETS[mode].items()}
        unknown = sorted(overrides.keys() - roots.keys())
        if unknown:
            raise ValueError(f"unknown root directories {unknown}, expected some of {sorted(roots)}")
        roots |= overrides
        return cls(**roots, version=detect_version(roots["cgroup_root"]))

    def dir(self, subsystem: str, target: str) -> Path:
        """Directory of a cgroup; target "" is the root cgroup, which is for reading only.

        subsystem: a v1 controller, or one of the few trees elsewhere that are written like cgroup files.
        """
        if subsystem in _ELSEWHERE:
            return self.proc_root / _ELSEWHERE[subsystem] / target
        if self.version is CgroupVersion.V2:
            return self.cgroup_root / target
        return self.cgroup_root / subsystem / target

    def unified_dir(self, target: str) -> Path | None:
        """The cgroup in the v2 hierarchy: itself on v2, below `unified/` on a hybrid host where it exists there."""
        if self.version is CgroupVersion.V2:
            return self.cgroup_root / target
        found = self.cgroup_root / "unified" / target
        return found if found.is_dir() else None


def detect_version(cgroup_root: Path) -> CgroupVersion:
    """V2 iff the root is a unified hierarchy.

    Every cgroup2 mount has `cgroup.controllers` in its root directory since Linux 4.5 and nothing else has,
    so this answers as the file system magic 0x63677270 does, and also for a copied tree.
    """
    return CgroupVersion.V2 if (cgroup_root / "cgroup.controllers").is_file() else CgroupVersion.V1


_ELSEWHERE: Final = {"irq": "irq"}
"""Below /proc."""

_PRESETS: Final[dict[str, dict[str, str]]] = {
    "host": {
        "cgroup_root": "/sys/fs/cgroup",
        "sys_root": "/sys",
        "sys_fs_root": "/sys/fs",
        "proc_root": "/proc",
        "var_run_root": "/var/run",
        "run_root": "/run",
        "kubelet_root": "/var/lib/kubelet",
    },
    "daemonset": {
        "cgroup_root": "/host-cgroup",
        "sys_root": "/host-sys",
        "sys_fs_root": "/host-sys-fs",
        "proc_root": "/proc",
        "var_run_root": "/host-var-run",
        "run_root": "/host-run",
        "kubelet_root": "/var/lib/kubelet",
    },
}
