"""`GpuMeter`: what each NVIDIA GPU, and each pod of it, uses, into the rings (spec/collect 2.11).

For reports only: a step every 10 s, beside the tick, on a thread that may wait for the driver. A device's use is the
sum of its processes', so that node and pods agree; a process belongs to the pod in whose cgroup it is.

beyond: a process that computed nothing lately keeps its memory in the sum (FAULT-19), graphics count, the newest of
several samples is taken. What the driver does not tell is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import Host
from koordlet.kernel.nvml import Nvml, text
from koordlet.kernel.proc import cgroup_of
from koordlet.model.device import GPU as KIND
from koordlet.model.device import POD_GPU, Gpu, GpuUse, pod_gpu
from koordlet.model.pod import Pod

log = structlog.get_logger(__name__)

LOOK_BACK_S: Final = 10.0
"""Utilization of so long ago, or since the last step, counts as that of now."""


class Rings(Protocol):
    def open(self, kind: str, ident: str, metric: str) -> int: ...
    def push(self, series: int, at_s: float, value: float) -> None: ...
    def close(self, kind: str, ident: str) -> None: ...


@dataclass(slots=True)
class _Device:
    gpu: Gpu
    processes: dict[int, GpuUse]
    whole: GpuUse


class GpuMeter:
    """One thread. at_s: of the last step. gpus: those that answered in it, by minor number. node, pods: their use then,
    by minor number, and by pod uid and minor number."""

    def __init__(self, nvml: Nvml, host: Host, rings: Rings) -> None:
        self._nvml, self._host, self._rings = nvml, host, rings
        self._seen_us: dict[str, int] = {}
        self._faults: dict[int, str] = {}
        self._series: set[tuple[str, int]] = set()
        self.at_s: float | None = None
        self.gpus: tuple[Gpu, ...] = ()
        self.node: Mapping[int, GpuUse] = {}
        self.pods: Mapping[tuple[str, int], GpuUse] = {}

    def step(self, pods: Iterable[Pod], now_s: float, wall_s: float) -> None:
        """One sample of each device, and of each live pod that has used one. now_s: monotonic."""
        devices = self._devices(wall_s)
        live = {pod.uid: pod.cgroup for pod in pods if pod.active and pod.cgroup}
        used = self._by_pod(devices, {cgroup: uid for uid, cgroup in live.items()})
        answered = {device.gpu.minor for device in devices}
        for key in self._series - used.keys():
            if key[0] not in live:
                self._series.discard(key)
                self._rings.close(POD_GPU, pod_gpu(*key))
            elif key[1] in answered:
                used[key] = GpuUse(0.0, 0)  # its processes have ended
        self._series |= used.keys()
        self.gpus = tuple(sorted((device.gpu for device in devices), key=lambda gpu: gpu.minor))
        self.node = {device.gpu.minor: device.whole for device in devices}
        self.pods = used
        self.at_s = now_s
        for minor, use in self.node.items():
            self._push(KIND, str(minor), use, now_s)
        for key, use in used.items():
            self._push(POD_GPU, pod_gpu(*key), use, now_s)

    def _devices(self, wall_s: float) -> list[_Device]:
        nvml = self._nvml.open()
        if nvml is None:
            return []
        found: list[_Device] = []
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._nvml.close()  # the driver went away or was replaced: begin anew next time
            self._told(-1, str(error))
            return []
        for index in range(count):
            try:
                found.append(self._device(nvml, index, wall_s))
            except nvml.NVMLError as error:  # one that fell off the bus hides no other
                self._told(index, str(error))
            else:
                self._faults.pop(index, None)
        self._faults.pop(-1, None)
        return found

    def _device(self, nvml: Any, index: int, wall_s: float) -> _Device:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        sizes = _sizes(nvml, handle)
        cores = self._cores(nvml, handle, uuid, wall_s)
        processes = {
            pid: GpuUse(None if cores is None else cores.get(pid, 0.0), None if sizes is None else sizes.get(pid, 0))
            for pid in (sizes or {}).keys() | (cores or {}).keys()
        }
        told = [size for size in sizes.values() if size is not None] if sizes is not None else []
        whole = GpuUse(
            _device_cores(nvml, handle) if cores is None else sum(cores.values()),
            sum(told) if sizes is not None and len(told) == len(sizes) else int(memory.used),
        )
        return _Device(Gpu(int(nvml.nvmlDeviceGetMinorNumber(handle)), uuid, int(memory.total)), processes, whole)

    def _cores(self, nvml: Any, handle: Any, uuid: str, wall_s: float) -> dict[int, float] | None:
        """Percent of the device by process, those with none left out; None where it does not tell."""
        seen_us, now_us = self._seen_us.get(uuid, 0), round(wall_s * 1e6)
        # After a clock was set back, what was seen lies in the future.
        since_us = max(seen_us if seen_us <= now_us else 0, now_us - round(LOOK_BACK_S * 1e6))
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except nvml.NVMLError_NotFound:  # its word for "nothing since then"
            return {}
        except nvml.NVMLError_NotSupported:
            return None
        newest = sorted((row for row in samples if row.pid and row.timeStamp > since_us), key=lambda row: row.timeStamp)
        if newest:
            self._seen_us[uuid] = newest[-1].timeStamp
        return {row.pid: float(row.smUtil) for row in newest}

    def _by_pod(self, devices: list[_Device], pods: Mapping[str, str]) -> dict[tuple[str, int], GpuUse]:
        """pods: cgroup -> uid."""
        used: dict[tuple[str, int], GpuUse] = {}
        whose = {pid: self._pod_of(pid, pods) for pid in {pid for device in devices for pid in device.processes}}
        for device in devices:
            for pid, use in device.processes.items():
                if uid := whose[pid]:
                    key = (uid, device.gpu.minor)
                    used[key] = used[key] + use if key in used else use
        return used

    def _pod_of(self, pid: int, pods: Mapping[str, str]) -> str:
        """Uid, "" for a process of nobody's pod."""
        try:
            cgroup = cgroup_of(self._host, pid)
        except OSError as error:
            if not is_gone(error):
                self._told(-2, f"{error.filename}: {error.strerror}")
            return ""
        while cgroup:
            if cgroup in pods:
                return pods[cgroup]
            cgroup = cgroup.rpartition("/")[0]
        return ""

    def _push(self, kind: str, ident: str, use: GpuUse, now_s: float) -> None:
        if use.core_percent is not None:
            self._rings.push(self._rings.open(kind, ident, "core"), now_s, use.core_percent)
        if use.memory_bytes is not None:
            self._rings.push(self._rings.open(kind, ident, "memory"), now_s, float(use.memory_bytes))

    def _told(self, index: int, fault: str) -> None:
        if self._faults.get(index) != fault:
            self._faults[index] = fault
            log.warning("gpu.not_measured", device=index if index >= 0 else "", error=fault)


def _sizes(nvml: Any, handle: Any) -> dict[int, int | None] | None:
    """Bytes by process, None where the driver does not tell (MIG, some virtual GPUs); None as a whole where it does not
    list processes at all."""
    found: dict[int, int | None] = {}
    listed = False
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            rows = ask(handle)
        except nvml.NVMLError_NotSupported:
            continue
        listed = True
        for row in rows:  # one process may be in both lists
            found[row.pid] = None if row.usedGpuMemory is None else max(found.get(row.pid) or 0, int(row.usedGpuMemory))
    return found if listed else None


def _device_cores(nvml: Any, handle: Any) -> float | None:
    try:
        return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError_NotSupported:
        return None
