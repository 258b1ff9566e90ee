"""Accelerators and RDMA functions of a node, whoever found them. Pure. (spec/api 1.4)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

GPU: Final = "gpu"
RDMA: Final = "rdma"

GPU_CORE: Final = "koordinator.sh/gpu-core"
GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
RDMA_SHARE: Final = "koordinator.sh/rdma"


POD_GPU: Final = "pod_gpu"
"""Series of a pod's use of one GPU, named by `pod_gpu`; those of the whole device have kind `GPU` and its minor."""


def pod_gpu(uid: str, minor: int) -> str:
    return f"{uid}/{minor}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU whose use is measured. id: its UUID. memory_bytes: all that it has."""

    minor: int
    id: str
    memory_bytes: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class GpuUse:
    """None: the driver does not tell. core_percent: of the device's time."""

    core_percent: float | None = None
    memory_bytes: int | None = None

    def __add__(self, other: GpuUse) -> GpuUse:
        """What both use; unknown as soon as one of them is."""
        core = (
            None if self.core_percent is None or other.core_percent is None else self.core_percent + other.core_percent
        )
        memory = (
            None if self.memory_bytes is None or other.memory_bytes is None else self.memory_bytes + other.memory_bytes
        )
        return GpuUse(core, memory)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device sits. node: NUMA node, -1 unknown. pcie: its root complex ("pci0000:3a"). bus: PCI address."""

    node: int = -1
    pcie: str = ""
    bus: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """code, message: why it is unhealthy, "" when nothing is said."""

    healthy: bool = True
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """kind: gpu or rdma. id: UUID of a GPU, PCI address of an RDMA function. resources: (name, quantity text).

    functions: PCI addresses of virtual functions, None where there are none to give away. health: None while nobody
    judged it, which counts as healthy. ports: for RDMA, whether all ports are up.
    """

    kind: str
    id: str
    minor: int
    resources: tuple[tuple[str, str], ...]
    place: Place | None = None
    functions: tuple[str, ...] | None = None
    health: Health | None = None
    ports: bool = True

    @property
    def healthy(self) -> bool:
        return self.ports and (self.health is None or self.health.healthy)


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """labels, annotations: of the node's Device object. faults: one line per file or device that was left out."""

    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
