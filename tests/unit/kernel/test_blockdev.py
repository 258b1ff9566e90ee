"""Names, partitions, LVM and volumes -> disks, from sysfs and mountinfo alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.kernel.blockdev import BlockDeviceError, BlockTree
from koordlet.kernel.host import CgroupVersion
from tests.hosts.blocks import Blocks
from tests.hosts.tree import HostTree

UID = "3f0c2a7e-91d4-4b6a-8e57-6c1d0f2ab934"
LVM = "LVM-" + "a" * 64


@pytest.fixture
def blocks(tmp_path: Path) -> Blocks:
    """sda with two partitions, an NVMe disk whose partition has minor 300, a volume group of two disks."""
    made = Blocks(HostTree(tmp_path, CgroupVersion.V2))
    made.disk("sda", "8:0", "mq-deadline [bfq] none")
    made.partition("sda", "sda1", "8:1")
    made.partition("sda", "sda17", "259:300")  # F-33: minor arithmetic would find another disk
    made.disk("nvme0n1", "259:0")
    made.partition("nvme0n1", "nvme0n1p2", "259:2")
    made.disk("cciss!c0d0", "104:0", "none")
    made.mapped("dm-0", "253:0", "vg--data-logs", LVM, "sda1")
    made.mapped("dm-1", "253:1", "vg--data-big", LVM, "sda1", "nvme0n1p2")
    made.mapped("dm-2", "253:2", "vg-x", LVM, "cciss!c0d0")
    made.mapped("dm-3", "253:3", "luks", "CRYPT-LUKS2-abc", "dm-0")
    return made


def tree(blocks: Blocks) -> BlockTree:
    return BlockTree(blocks.tree.host)


@pytest.mark.parametrize(
    ("path", "disks"),
    [
        ("/dev/sda", ("8:0",)),
        ("sda", ("8:0",)),
        ("/dev/sda1", ("8:0",)),
        ("/dev/sda17", ("8:0",)),
        ("/dev/nvme0n1p2", ("259:0",)),
        ("/dev/cciss/c0d0", ("104:0",)),
        ("/dev/dm-0", ("8:0",)),
        ("/dev/mapper/vg--data-logs", ("8:0",)),
        ("/dev/vg-data/logs", ("8:0",)),
        ("/dev/vg-data/big", ("259:0", "8:0")),
        ("/dev/mapper/luks", ("8:0",)),
    ],
)
def test_devices(blocks: Blocks, path: str, disks: tuple[str, ...]) -> None:
    assert sorted(tree(blocks).disks_of_device(path)) == sorted(disks)


@pytest.mark.parametrize("path", ["/dev/sdz", "/dev/../etc/passwd", "", "/dev/", "/etc/passwd", "/dev/mapper/none"])
def test_no_such_device(blocks: Blocks, path: str) -> None:
    with pytest.raises(BlockDeviceError, match="device"):
        tree(blocks).disks_of_device(path)


def test_volume_groups(blocks: Blocks) -> None:
    """Several physical volumes count, and a name that is another's beginning does not."""
    assert sorted(tree(blocks).disks_of_group("vg-data")) == ["259:0", "8:0"]
    assert tree(blocks).disks_of_group("vg") == ("104:0",)
    for absent in ("data", "vg-dat", "luks"):
        with pytest.raises(BlockDeviceError, match="no active volume"):
            tree(blocks).disks_of_group(absent)


def test_pod_volumes(blocks: Blocks, tmp_path: Path) -> None:
    base = f"{tmp_path}/kubelet/pods/{UID}/volumes"
    for place in ("kubernetes.io~csi/pvc-1/mount", "kubernetes.io~local-volume/here", "kubernetes.io~csi/memory/mount"):
        Path(base, place).mkdir(parents=True)
    blocks.mount("253:0", f"{base}/kubernetes.io~csi/pvc-1/mount")
    blocks.mount("259:2", f"{base}/kubernetes.io~local-volume/here")
    blocks.mount("0:55", f"{base}/kubernetes.io~csi/memory/mount")
    assert tree(blocks).disks_of_volume(UID, "pvc-1") == ("8:0",)
    assert tree(blocks).disks_of_volume(UID, "here") == ("259:0",)
    with pytest.raises(BlockDeviceError, match=r"no block device \(0:55\)"):
        tree(blocks).disks_of_volume(UID, "memory")
    for volume in ("pvc-2", "../pvc-1", "", "a/b"):
        with pytest.raises(BlockDeviceError, match="volume"):
            tree(blocks).disks_of_volume(UID, volume)


def test_schedulers(blocks: Blocks) -> None:
    found = tree(blocks)
    assert [found.scheduler(n) for n in ("8:0", "259:0", "104:0", "7:7")] == ["bfq", "none", "", ""]


def test_a_device_number_that_is_none(blocks: Blocks) -> None:
    blocks.tree.put("sys/devices/x/block/sda/dev", "garbage\n")
    with pytest.raises(BlockDeviceError, match="no device number"):
        tree(blocks).disks_of_device("sda")


def test_devices_stacked_in_a_ring_end(blocks: Blocks) -> None:
    blocks.mapped("dm-9", "253:9", "ring", "x")
    (blocks.tree.root / "sys/devices/virtual/block/dm-9/slaves/dm-9").symlink_to("..")
    with pytest.raises(BlockDeviceError, match="stacked"):
        tree(blocks).disks_of_device("dm-9")
