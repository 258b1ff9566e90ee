"""`BlockFinder`: which disks the blocks of the policy and of the pods stand for, looked up now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from koordlet.kernel.blockdev import BlockDeviceError, BlockTree
from koordlet.kernel.host import Host
from koordlet.model.blkio import BlkioClasses, BlockDevices, BlockKey, BlockType, ClaimKey
from koordlet.model.pod import Pod, PodSet

EVERY_S: Final = 10.0
NONE: Final = BlockDevices()


class Claims(Protocol):
    """Who knows to which volume a claim is bound (kube.claims.Claims). Never waits."""

    @property
    def revision(self) -> int: ...

    def volume(self, key: ClaimKey) -> str | None:
        """None while it is being asked for. Raises LookupError: why there is none."""


class BlockFinder:
    """The same object until something changed. Nothing is read while nobody names a block.

    claims: None without an API server; a volume that comes from a claim then stands for no disk. looked: told of each
    look, and whether files could be read.
    """

    def __init__(
        self, host: Host, claims: Claims | None = None, looked: Callable[[bool], None] = lambda ok: None
    ) -> None:
        self._host, self._claims, self._looked = host, claims, looked
        self._asked: tuple[int, BlkioClasses, int] | None = None
        self._keys: dict[BlockKey, ClaimKey | None] = {}
        self._looked_s = float("-inf")
        self._found = NONE

    def poll(self, pods: PodSet, classes: BlkioClasses, now_s: float) -> BlockDevices:
        asked = (pods.revision, classes, self._claims.revision if self._claims is not None else 0)
        changed = asked != self._asked
        if changed:
            self._asked, self._keys = asked, _keys(pods.pods, classes)
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
        readable = True
        for key, claim in self._keys.items():
            kind, name, uid = key
            try:
                if kind is BlockType.VOLUME_GROUP:
                    disks[key] = tree.disks_of_group(name)
                elif kind is BlockType.POD_VOLUME:
                    volume = name if claim is None else self._bound(claim)
                    if volume is not None:
                        disks[key] = tree.disks_of_volume(uid, volume)
                else:
                    disks[key] = tree.disks_of_device(name)
            except (BlockDeviceError, LookupError) as error:
                faults[key] = str(error)
            except OSError as error:
                faults[key], readable = str(error), False
        self._looked(readable)
        numbers = {number for found in disks.values() for number in found}
        return BlockDevices(disks, faults, frozenset(n for n in numbers if tree.scheduler(n) == "bfq"))

    def _bound(self, claim: ClaimKey) -> str | None:
        if self._claims is None:
            raise LookupError(f"it is of claim {claim[2]!r}, which only an API server knows, and there is none")
        return self._claims.volume(claim)


def _keys(pods: tuple[Pod, ...], classes: BlkioClasses) -> dict[BlockKey, ClaimKey | None]:
    """What is asked for; of a volume that comes from a claim also the claim."""
    found: dict[BlockKey, ClaimKey | None] = {}
    for block in (*classes.be, *classes.root):
        found[block.type, block.name, ""] = None
    for pod in pods:
        for block in pod.settings.blkio or ():
            if block.type is BlockType.POD_VOLUME:
                claim = dict(pod.claims).get(block.name)
                found[block.type, block.name, pod.uid] = None if claim is None else (pod.uid, pod.namespace, claim)
            else:
                found[block.type, block.name, ""] = None
    return found
