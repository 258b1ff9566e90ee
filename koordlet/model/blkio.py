"""Block I/O QoS: what a class or a pod (annotation `koordinator.sh/blkioQOS`) asks of its devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BlockType(StrEnum):
    DEVICE = "device"  # /dev/sdb; a partition stands for its disk
    VOLUME_GROUP = "volumegroup"  # of LVM, by name
    POD_VOLUME = "podvolume"  # of the pod, by volume name


@dataclass(frozen=True, slots=True)
class IoCfg:
    """Rates are per second, 0 or None without a limit. weight_percent 1..100. Latencies are us.

    model: (key of the kernel's cost model, value) where the user gives one.
    """

    read_iops: int | None = None
    write_iops: int | None = None
    read_bps: int | None = None
    write_bps: int | None = None
    weight_percent: int | None = None
    read_latency_us: int = 3000
    write_latency_us: int = 3000
    read_latency_percent: int = 95
    write_latency_percent: int = 95
    user_model: bool = False
    model: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    type: BlockType = BlockType.DEVICE
    cfg: IoCfg = field(default_factory=IoCfg)


@dataclass(frozen=True, slots=True)
class BlkioClasses:
    """Blocks of the enabled classes. refused: enabled classes that may not have any (LSR, LS)."""

    be: tuple[Block, ...] = ()
    root: tuple[Block, ...] = ()
    refused: tuple[str, ...] = ()


BlockKey = tuple[BlockType, str, str]
"""Type, name and, of a pod's volume, the pod's uid."""
ClaimKey = tuple[str, str, str]
"""Pod uid, namespace, name: a claim that is made anew under its name serves another pod."""


@dataclass(frozen=True, slots=True)
class BlockDevices:
    """disks: "major:minor" of the disks that a block stands for. faults: why another one stands for none.

    bfq: devices that the bfq scheduler serves, whose weight is another file.
    """

    disks: Mapping[BlockKey, tuple[str, ...]] = field(default_factory=dict)
    faults: Mapping[BlockKey, str] = field(default_factory=dict)
    bfq: frozenset[str] = frozenset()
