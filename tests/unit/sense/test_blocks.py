"""`BlockFinder`: looks when something is asked, at intervals, and hands back the same object."""

from __future__ import annotations

from pathlib import Path

from koordlet.kernel.host import CgroupVersion
from koordlet.model.blkio import BlkioClasses, Block, BlockType
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
