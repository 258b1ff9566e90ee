"""Block devices without any helper program: names, partitions, device-mapper, LVM groups and mounted volumes -> disks.

Everything comes from sysfs and mountinfo. I/O control acts on whole disks ("major:minor" of a request queue): a
partition stands for its disk, a logical volume for the disks below it. Sources: Documentation/ABI/testing/sysfs-block,
sysfs-block-dm; LVM's names of mapped devices (dashes doubled).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from koordlet.kernel.host import Host

MAX_MOUNTINFO_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 8
"""Devices stacked on each other."""
_NUMBER: Final = re.compile(r"[0-9]{1,8}:[0-9]{1,8}")
_VOLUME: Final = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,252}")


class BlockDeviceError(ValueError):
    """A block that stands for no disk here; the text says why."""


class BlockTree:
    """One look at the machine's block devices. Methods raise BlockDeviceError and OSError other than "not there"."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._blocks = host.sys_root / "class/block"
        self._mapped: dict[str, tuple[str, str]] | None = None
        self._mounts: dict[str, str] | None = None

    def disks_of_device(self, path: str) -> tuple[str, ...]:
        """`/dev/sdb`, `/dev/nvme0n1p2`, `/dev/mapper/NAME`, `/dev/GROUP/VOLUME`; a bare name is taken as below /dev."""
        name = path.removeprefix("/dev/")
        if not name or name.startswith("/") or ".." in name or "\0" in name:
            raise BlockDeviceError(f"{path!r} is no device below /dev")
        node = self._node(name)
        if node is None:
            raise BlockDeviceError(f"no block device {path!r} here")
        return self._disks(node)

    def disks_of_group(self, group: str) -> tuple[str, ...]:
        """Disks below the active volumes of an LVM volume group."""
        prefix = _mangled(group) + "-"
        found: dict[str, None] = {}
        for node, (name, uuid) in self._mappings().items():
            if uuid.startswith("LVM-") and name.startswith(prefix) and not name[len(prefix) :].startswith("-"):
                found.update(dict.fromkeys(self._disks(node)))
        if not found:
            raise BlockDeviceError(f"no active volume of an LVM group {group!r} here")
        return tuple(found)

    def disks_of_volume(self, pod_uid: str, volume: str) -> tuple[str, ...]:
        """The device mounted as a pod's volume, by the name of its directory below the kubelet's."""
        if not _VOLUME.fullmatch(volume) or not _VOLUME.fullmatch(pod_uid):
            raise BlockDeviceError(f"{volume!r} is no name of a volume")
        base = self._host.kubelet_root / "pods" / pod_uid / "volumes"
        for where in self._volume_dirs(base, volume):
            number = self._mounted().get(where)
            if number is None:
                continue
            node = self._by_number(number)
            if node is None:
                raise BlockDeviceError(f"volume {volume!r} is on no block device ({number})")
            return self._disks(node)
        raise BlockDeviceError(f"no volume {volume!r} of the pod is mounted")

    def scheduler(self, number: str) -> str:
        """The I/O scheduler in force on a disk, "" where it has none."""
        node = self._by_number(number)
        text = _text(self._blocks / node / "queue/scheduler") if node is not None else ""
        chosen = re.search(r"\[([a-z-]+)\]", text)
        return chosen[1] if chosen else ""

    def _node(self, name: str) -> str | None:
        """Kernel name of what stands at /dev/NAME."""
        flat = name.replace("/", "!")  # cciss!c0d0
        if (self._blocks / flat / "dev").is_file():
            return flat
        group, slash, volume = name.rpartition("/")
        wanted = volume if group == "mapper" else f"{_mangled(group)}-{_mangled(volume)}" if slash else ""
        return next((node for node, (mapped, _) in self._mappings().items() if wanted and mapped == wanted), None)

    def _by_number(self, number: str) -> str | None:
        if not _NUMBER.fullmatch(number):
            return None
        try:
            return os.path.basename(os.readlink(self._host.sys_root / "dev/block" / number))
        except OSError:
            return next((n for n in self._names() if _text(self._blocks / n / "dev") == number), None)

    def _disks(self, node: str, depth: int = 0) -> tuple[str, ...]:
        if depth > MAX_DEPTH:
            raise BlockDeviceError(f"{node}: devices are stacked more than {MAX_DEPTH} deep")
        place = self._blocks / node
        if (place / "partition").is_file():
            return self._disks(place.resolve().parent.name, depth + 1)
        below = self._names(place / "slaves") if _is_mapped(node) else []
        if below:
            return tuple(dict.fromkeys(number for one in below for number in self._disks(one, depth + 1)))
        number = _text(place / "dev")
        if not _NUMBER.fullmatch(number):
            raise BlockDeviceError(f"{place}/dev: {number[:32]!r} is no device number")
        return (number,)

    def _mappings(self) -> dict[str, tuple[str, str]]:
        """Kernel name -> (name, uuid) of the mapped devices."""
        if self._mapped is None:
            nodes = [name for name in self._names() if name.startswith("dm-")]
            self._mapped = {
                node: (_text(self._blocks / node / "dm/name"), _text(self._blocks / node / "dm/uuid")) for node in nodes
            }
        return self._mapped

    def _names(self, place: Path | None = None) -> list[str]:
        try:
            return sorted(os.listdir(place or self._blocks))
        except OSError:
            return []

    def _volume_dirs(self, base: Path, volume: str) -> Iterator[str]:
        """Mount points of a volume: CSI mounts on `mount`, other plugins on the volume's directory."""
        for plugin in self._names(base):
            if plugin.startswith("kubernetes.io~"):
                yield f"{base}/{plugin}/{volume}/mount"
                yield f"{base}/{plugin}/{volume}"

    def _mounted(self) -> dict[str, str]:
        """Mount point -> device number, from the mounts as process 1 sees them: never by stat, which may hang."""
        if self._mounts is None:
            self._mounts = {}
            for process in ("1", "self"):
                text = _text(self._host.proc_root / process / "mountinfo", MAX_MOUNTINFO_BYTES)
                for line in text.splitlines():
                    fields = line.split(" ")
                    if len(fields) > 4 and _NUMBER.fullmatch(fields[2]):
                        self._mounts[_unescaped(fields[4])] = fields[2]
                if self._mounts:
                    break
        return self._mounts


def _is_mapped(node: str) -> bool:
    """Devices that only pass requests on to those below."""
    return node.startswith(("dm-", "md", "bcache"))


def _mangled(name: str) -> str:
    return name.replace("-", "--")


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _text(path: Path, limit: int = 4096) -> str:
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""
