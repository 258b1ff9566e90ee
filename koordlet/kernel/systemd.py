"""Cgroups of systemd units and of processes, from the directory tree alone: no D-Bus, no systemd needed."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import CgroupVersion, Host

_SUFFIXES: Final = (".service", ".scope", ".slice")
_MAX_DEPTH: Final = 16


def unit_cgroups(host: Host, pattern: str) -> list[str]:
    """Sorted cgroup paths of running units whose name matches a name or glob, "nginx", "batch-*.scope".

    A name without one of systemd's suffixes means a service. A unit that does not run has no cgroup. Raises
    OSError for anything but vanished directories.
    """
    if not pattern.endswith(_SUFFIXES):
        pattern += ".service"
    root = _unit_root(host)
    found: list[str] = []
    pending = [("", 0)]
    while pending:
        path, depth = pending.pop()
        for name in _directories(root / path):
            below = f"{path}/{name}" if path else name
            if fnmatchcase(name, pattern):
                found.append(below)
            # Units nest in slices; a user manager is a service with slices of its own.
            if depth < _MAX_DEPTH and (name.endswith(".slice") or name.startswith("user@")):
                pending.append((below, depth + 1))
    return sorted(found)


def pid_cgroup(host: Host, pid: int, subsystem: str) -> str | None:
    """Cgroup path of a process in a v1 hierarchy ("cpu", "name=systemd") or, on v2, the unified one.

    None when the process is gone, the hierarchy is not mounted, or its cgroup is removed or outside our cgroup
    namespace. "" is the root cgroup.
    """
    try:
        text = (host.proc_root / str(pid) / "cgroup").read_text("utf-8", "replace")
    except OSError as error:
        if is_gone(error):
            return None
        raise
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        wanted = number == "0" if host.version is CgroupVersion.V2 else subsystem in controllers.split(",")
        if wanted:
            outside = path.startswith("/..") or path.endswith(" (deleted)")
            return None if outside else path.strip("/")
    return None


def _unit_root(host: Host) -> Path:
    """Hierarchy in which systemd tracks units: name=systemd on v1, unified on v2 and on newer hybrid hosts."""
    if host.version is CgroupVersion.V2:
        return host.cgroup_root
    own = host.cgroup_root / "systemd"
    return own if any(name.endswith(_SUFFIXES) for name in _directories(own)) else host.cgroup_root / "unified"


def _directories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if is_gone(error):
            return []
        raise
