"""NVML with GPUs that can be changed: no machine here has one. The calls of nvidia-ml-py that are made, and its errors
as the driver gives them: NotFound for "no sample since", NotSupported by device, GpuIsLost for one that fell off the
bus, Uninitialized before nvmlInit and after nvmlShutdown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koordlet.kernel.host import CgroupVersion
from tests.hosts.tree import HostTree


class NvmlError(Exception):
    pass


class NotSupportedError(NvmlError):
    pass


class NotFoundError(NvmlError):
    pass


class NvmlTimeoutError(NvmlError):
    pass


class GpuIsLostError(NvmlError):
    pass


class UninitializedError(NvmlError):
    pass


class Row:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@dataclass
class Board:
    """compute, graphics: (pid, bytes or None). samples: (pid, microseconds, percent), None where it has no such call.
    lists: it tells its processes."""

    name: str
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    samples: list[tuple[int, int, int]] | None = field(default_factory=list)
    rate: int | None = 0
    used: int = 0
    lost: bool = False
    lists: bool = True


class FakeNvml:
    """Stands for the module. error: of each call but nvmlInit."""

    NVMLError = NvmlError
    NVMLError_NotSupported = NotSupportedError
    NVMLError_NotFound = NotFoundError
    NVMLError_Timeout = NvmlTimeoutError
    NVMLError_GpuIsLost = GpuIsLostError
    Row = Row
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, *names: str) -> None:
        self.boards = [Board(name) for name in names]
        self.inits = self.open = 0
        self.error: Exception | None = None

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits += 1
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check()
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check()
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._board(index)
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Row:  # noqa: N802
        self._board(handle)
        return Row(busId=f"00000000:{0x3B + handle:02X}:00.0".encode())

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Row:  # noqa: N802
        return Row(total=80 << 30, used=self._board(handle).used)

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self._board(handle).name

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        self._board(handle)
        return f"GPU-{handle}"

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:  # noqa: N802
        self._board(handle)
        return handle

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._check()
        return "570.1"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Row]:  # noqa: N802
        return self._listed(handle, self._board(handle).compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Row]:  # noqa: N802
        return self._listed(handle, self._board(handle).graphics)

    def nvmlDeviceGetProcessUtilization(self, handle: int, since_us: int) -> list[Row]:  # noqa: N802
        samples = self._board(handle).samples
        if samples is None:
            raise NotSupportedError
        later = [Row(pid=pid, timeStamp=at, smUtil=percent) for pid, at, percent in samples if at > since_us]
        if not later:
            raise NotFoundError
        return later

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Row:  # noqa: N802
        rate = self._board(handle).rate
        if rate is None:
            raise NotSupportedError
        return Row(gpu=rate)

    def nvmlEventSetCreate(self) -> None:  # noqa: N802
        raise NotSupportedError("no events in these tests; `mark` is called by hand")

    def _listed(self, handle: int, processes: list[tuple[int, int | None]]) -> list[Row]:
        if not self._board(handle).lists:
            raise NotSupportedError
        return [Row(pid=pid, usedGpuMemory=size) for pid, size in processes]

    def _check(self) -> None:
        if self.error:
            raise self.error
        if not self.open:
            raise UninitializedError

    def _board(self, handle: int) -> Board:
        self._check()
        if self.boards[handle].lost:
            raise GpuIsLostError(f"GPU {handle} is lost")
        return self.boards[handle]


def gpu_tree(root: Path, count: int = 2) -> HostTree:
    tree = HostTree(root, CgroupVersion.V2)
    for index in range(count):
        address = f"0000:{0x3B + index:02x}:00.0"
        tree.put(f"proc/driver/nvidia/gpus/{address}/information", "")
        tree.put(f"sys/devices/pci0000:3a/{address}/numa_node", "-1\n")
        place = tree.root / "sys/bus/pci/devices" / address
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(tree.root / f"sys/devices/pci0000:3a/{address}")
    return tree
