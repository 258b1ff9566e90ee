"""sysfs of block devices on a copied tree: disks, partitions, mapped devices, and mounts."""

from __future__ import annotations

from tests.hosts.tree import HostTree


class Blocks:
    """Every device is a directory below sys/devices with links from class/block and dev/block, as the kernel has it."""

    def __init__(self, tree: HostTree) -> None:
        self.tree = tree
        self.mounts: list[str] = []
        tree.put("sys/class/block", {})
        tree.put("sys/dev/block", {})

    def disk(self, name: str, number: str, scheduler: str = "mq-deadline kyber [none]") -> None:
        self._device(f"sys/devices/x/block/{name}", name, number)
        self.tree.put(f"sys/devices/x/block/{name}/queue/scheduler", scheduler + "\n")

    def partition(self, disk: str, name: str, number: str) -> None:
        self._device(f"sys/devices/x/block/{disk}/{name}", name, number)
        self.tree.put(f"sys/devices/x/block/{disk}/{name}/partition", "1\n")

    def mapped(self, node: str, number: str, name: str, uuid: str, *below: str) -> None:
        place = f"sys/devices/virtual/block/{node}"
        self._device(place, node, number)
        self.tree.put(f"{place}/dm", {"name": name + "\n", "uuid": uuid + "\n"})
        self.tree.put(f"{place}/slaves", {})
        for one in below:
            (self.tree.root / place / "slaves" / one).symlink_to((self.tree.root / "sys/class/block" / one).resolve())

    def mount(self, number: str, where: str) -> None:
        self.mounts.append(f"{30 + len(self.mounts)} 25 {number} / {where} rw,relatime shared:1 - ext4 /dev/x rw")
        self.tree.put("proc/1/mountinfo", "\n".join(self.mounts) + "\n")

    def _device(self, place: str, name: str, number: str) -> None:
        self.tree.put(f"{place}/dev", number + "\n")
        target = self.tree.root / place
        (self.tree.root / "sys/class/block" / name).symlink_to(target)
        (self.tree.root / "sys/dev/block" / number).symlink_to(target)
