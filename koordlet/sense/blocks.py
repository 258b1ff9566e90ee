"""`BlockFinder`: which disks the blocks of the policy and of the pods stand for, looked up now and then."""

from __future__ import annotations

from typing import Final

from koordlet.kernel.blockdev import BlockDeviceError, BlockTree
from koordlet.kernel.host import Host
from koordlet.model.blkio import BlkioClasses, BlockDevices, BlockKey, BlockType
from koordlet.model.pod import Pod, PodSet

EVERY_S: Final = 10.0
NONE: Final = BlockDevices()


class BlockFinder:
    """The same object until something changed. Nothing is read while nobody names a block."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._asked: tuple[int, BlkioClasses] | None = None
        self._keys: tuple[BlockKey, ...] = ()
        self._looked_s = float("-inf")
        self._found = NONE

    def poll(self, pods: PodSet, classes: BlkioClasses, now_s: float) -> BlockDevices:
        changed = self._asked is None or self._asked[0] != pods.revision or self._asked[1] != classes
        if changed:
            self._asked, self._keys = (pods.revision, classes), _keys(pods.pods, classes)
        if not self._keys:
            self._found = NONE
        elif changed or now_s - self._looked_s >= EVERY_S:
            self._looked_s = now_s
            found = self._look()
            if found != self._found:
                self._found = found
        return self._found

    def _look(self) -> BlockDevices:
        tree = BlockTree(self._host)
        disks: dict[BlockKey, tuple[str, ...]] = {}
        faults: dict[BlockKey, str] = {}
        for key in self._keys:
            kind, name, uid = key
            try:
                if kind is BlockType.VOLUME_GROUP:
                    disks[key] = tree.disks_of_group(name)
                elif kind is BlockType.POD_VOLUME:
                    disks[key] = tree.disks_of_volume(uid, name)
                else:
                    disks[key] = tree.disks_of_device(name)
            except (BlockDeviceError, OSError) as error:
                faults[key] = str(error)
        numbers = {number for found in disks.values() for number in found}
        return BlockDevices(disks, faults, frozenset(n for n in numbers if tree.scheduler(n) == "bfq"))


def _keys(pods: tuple[Pod, ...], classes: BlkioClasses) -> tuple[BlockKey, ...]:
    found: dict[BlockKey, None] = {}
    for block in (*classes.be, *classes.root):
        found[block.type, block.name, ""] = None
    for pod in pods:
        for block in pod.settings.blkio or ():
            found[block.type, block.name, pod.uid if block.type is BlockType.POD_VOLUME else ""] = None
    return tuple(found)
