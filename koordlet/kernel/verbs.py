"""RDMA device nodes of this machine, by the PCI function that they belong to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from koordlet.kernel.host import Host
from koordlet.model.podevent import Device


def read_verbs(host: Host, dev_root: Path = Path("/dev")) -> tuple[tuple[str, Device], ...]:
    """(PCI address, its verbs device), and ("", the connection manager); () on a machine without RDMA.

    Functions whose verbs directory is empty are left out. dev_root: the host's /dev.
    """
    found: list[tuple[str, Device]] = []
    manager = _device(dev_root, "infiniband/rdma_cm")
    if manager is None:
        return ()
    found.append(("", manager))
    base = host.sys_root / "class/infiniband_verbs"
    for name in sorted(_names(base)):
        function = Path(os.path.realpath(base / name / "device")).name
        device = _device(dev_root, f"infiniband/{name}")
        if device is not None and ":" in function:
            found.append((function, device))
    return tuple(found)


def _device(dev_root: Path, name: str) -> Device | None:
    try:
        info = os.stat(dev_root / name)
    except OSError:
        return None
    if not stat.S_ISCHR(info.st_mode):
        return None
    return Device(f"/dev/{name}", "c", os.major(info.st_rdev), os.minor(info.st_rdev))


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
