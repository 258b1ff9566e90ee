"""RDMA functions from sysfs: PCI network devices that have an InfiniBand device, and where they sit.

Sources: Documentation/ABI/stable/sysfs-class-infiniband, ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import Host
from koordlet.model.device import RDMA, RDMA_SHARE, Device, Place


def read_rdma(host: Host) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """(physical functions by minor, faults). A function that cannot be read is left out and named. Raises OSError."""
    devices, faults = [], []
    for address, names in _functions(host).items():
        base = host.sys_root / "bus/pci/devices" / address
        if (base / "physfn").exists():
            continue  # a virtual function; its physical one lists it
        name = names[0]  # the physical function's is the smallest: it was made first
        minor = _minor(base, name)
        if minor is None:
            faults.append(f"rdma {address}: {name!r} has no number")
            continue
        devices.append(
            Device(
                RDMA,
                address,
                minor,
                ((RDMA_SHARE, "100"),),
                pci_place(host, address),
                _virtual(base),
                ports=_ports_up(host.sys_root / "class/infiniband" / name / "ports"),
            )
        )
    return tuple(sorted(devices, key=lambda device: (device.minor, device.id))), tuple(faults)


def pci_place(host: Host, address: str) -> Place:
    """NUMA node and root complex of a PCI device; a machine that names no node has one, node 0."""
    base = host.sys_root / "bus/pci/devices" / address
    text = _text(base / "numa_node")
    node = int(text) if text is not None and _INTEGER.fullmatch(text) else -1
    found = _ROOT.search(str(base.resolve()))
    return Place(max(node, 0), found[0] if found else "", address)


def _functions(host: Host) -> dict[str, list[str]]:
    """PCI address -> names of its InfiniBand devices. Starts from the class, which is small."""
    found: dict[str, list[str]] = {}
    for entry in _entries(host.sys_root / "class/infiniband"):
        address = (entry / "device").resolve().name
        kind = _text(host.sys_root / "bus/pci/devices" / address / "class") or ""
        if _ADDRESS.fullmatch(address) and kind.startswith("0x02"):
            found.setdefault(address, []).append(entry.name)
    return {address: sorted(names) for address, names in sorted(found.items())}


def _minor(base: Path, name: str) -> int | None:
    """compat: of mlx5_1 it is 1. Other drivers number otherwise; theirs is that of the verbs device."""
    if numbered := _MLX.fullmatch(name):
        return int(numbered[1])
    for entry in _entries(base / "infiniband_verbs"):
        if verbs := _VERBS.fullmatch(entry.name):
            return int(verbs[1])
    return None


def _virtual(base: Path) -> tuple[str, ...] | None:
    count = _text(base / "sriov_numvfs") or ""
    if not _INTEGER.fullmatch(count) or int(count) <= 0:
        return None
    found = {entry.resolve().name for entry in _entries(base) if _VIRTUAL.fullmatch(entry.name)}
    return tuple(sorted(address for address in found if _ADDRESS.fullmatch(address)))


def _ports_up(ports: Path) -> bool:
    states = [_text(port / "state") or "" for port in _entries(ports)]
    return bool(states) and all("ACTIVE" in state.split() for state in states)


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError as error:
        if is_gone(error):
            return []
        raise


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return None  # a port's state cannot be read while its driver resets


_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_ROOT: Final = re.compile(r"pci[0-9]{4}:[0-9a-fA-F]{2}")
_MLX: Final = re.compile(r"mlx[0-9]+_([0-9]{1,6})")
_VERBS: Final = re.compile(r"uverbs([0-9]{1,6})")
_VIRTUAL: Final = re.compile(r"virtfn[0-9]{1,6}")
_INTEGER: Final = re.compile(r"-?[0-9]{1,9}")
