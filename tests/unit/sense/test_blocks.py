"""`BlockFinder`: looks when something is asked, at intervals, and hands back the same object."""

from __future__ import annotations

from pathlib import Path

from koordlet.kernel.host import CgroupVersion
from koordlet.model.blkio import BlkioClasses, Block, BlockType, ClaimKey
from koordlet.model.pod import Pod, PodSet
from koordlet.model.qos import KubeQos
from koordlet.model.settings import PodSettings
from koordlet.sense.blocks import NONE, BlockFinder
from tests.hosts.blocks import Blocks
from tests.hosts.tree import HostTree

SDA, SDB = Block("/dev/sda"), Block("/dev/sdb")


def test_found_kept_and_found_again(tmp_path: Path) -> None:
    blocks = Blocks(HostTree(tmp_path, CgroupVersion.V2))
    blocks.disk("sda", "8:0", "[bfq]")
    finder = BlockFinder(blocks.tree.host)
    assert finder.poll(PodSet(), BlkioClasses(), 0.0) is NONE
    classes = BlkioClasses(be=(SDA, SDB))
    first = finder.poll(PodSet(), classes, 1.0)
    assert first.disks == {(BlockType.DEVICE, "/dev/sda", ""): ("8:0",)}
    assert list(first.faults) == [(BlockType.DEVICE, "/dev/sdb", "")]
    assert first.bfq == {"8:0"}
    blocks.disk("sdb", "8:16")
    assert finder.poll(PodSet(), classes, 5.0) is first
    second = finder.poll(PodSet(), classes, 11.0)
    assert second.disks[BlockType.DEVICE, "/dev/sdb", ""] == ("8:16",)
    assert finder.poll(PodSet(), classes, 30.0) is second
    assert finder.poll(PodSet(), BlkioClasses(), 31.0) is NONE


def test_a_new_pod_is_looked_up_at_once(tmp_path: Path) -> None:
    finder = BlockFinder(Blocks(HostTree(tmp_path, CgroupVersion.V2)).tree.host)
    finder.poll(PodSet(), BlkioClasses(be=(SDA,)), 0.0)
    volume = Block("data", BlockType.POD_VOLUME)
    pod = Pod("u", "ns", "p", "p", KubeQos.BURSTABLE, settings=PodSettings(blkio=(volume,)))
    found = finder.poll(PodSet((pod,), 2, 1.0), BlkioClasses(be=(SDA,)), 1.0)
    assert found.faults[BlockType.POD_VOLUME, "data", "u"] == "no volume 'data' of the pod is mounted"


class Bound:
    """Answers as the API server does: later."""

    revision = 0

    def __init__(self) -> None:
        self.volumes: dict[ClaimKey, str] = {}

    def answer(self, key: ClaimKey, volume: str) -> None:
        self.volumes[key] = volume
        self.revision += 1

    def volume(self, key: ClaimKey) -> str | None:
        found = self.volumes.get(key)
        if found == "":
            raise LookupError("claim ns/data-p-0 is not bound yet")
        return found


def test_a_volume_of_a_claim_is_the_disk_below_its_persistent_volume(tmp_path: Path) -> None:
    blocks = Blocks(HostTree(tmp_path, CgroupVersion.V2))
    blocks.disk("sdb", "8:16")
    place = blocks.tree.host.kubelet_root / "pods/u/volumes/kubernetes.io~csi/pvc-77/mount"
    place.mkdir(parents=True)
    blocks.mount("8:16", str(place))
    settings = PodSettings(blkio=(Block("data", BlockType.POD_VOLUME),))
    pod = Pod("u", "ns", "p-0", "p", KubeQos.BURSTABLE, settings=settings, claims=(("data", "data-p-0"),))
    pods, key, claim = PodSet((pod,), 2, 0.0), (BlockType.POD_VOLUME, "data", "u"), ("u", "ns", "data-p-0")

    bound = Bound()
    finder = BlockFinder(blocks.tree.host, bound)
    found = finder.poll(pods, BlkioClasses(), 0.0)
    assert (found.disks, found.faults) == ({}, {})  # asked for, which is no fault
    bound.answer(claim, "")
    assert finder.poll(pods, BlkioClasses(), 1.0).faults == {key: "claim ns/data-p-0 is not bound yet"}
    bound.answer(claim, "pvc-77")
    assert finder.poll(pods, BlkioClasses(), 2.0).disks == {key: ("8:16",)}
    assert "API server" in BlockFinder(blocks.tree.host).poll(pods, BlkioClasses(), 3.0).faults[key]
