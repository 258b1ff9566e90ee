"""NVIDIA GPUs through NVML (kernel/nvml.py), as the Device object shows them.

Health follows NVML's critical Xid events, which a thread of its own waits for. beyond: a GPU that was reset, or whose
driver was loaded anew, is healthy again; the reference needs a restart for that.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

import structlog

from koordlet.kernel.host import Host
from koordlet.kernel.nvml import Nvml, text
from koordlet.kernel.rdma import pci_place
from koordlet.model.device import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, Device, DeviceSet, Health
from koordlet.model.quantity import format_bytes
from koordlet.sources.xpu import MODEL_LABEL, VENDOR_LABEL

log = structlog.get_logger(__name__)

DRIVER_LABEL: Final = "node.koordinator.sh/gpu-driver-version"
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the device."""
WAIT_MS: Final = 5000


class NvidiaGpus:
    """nvml: may be shared with whoever measures. poll: on one thread."""

    def __init__(self, host: Host, nvml: Nvml) -> None:
        self._host, self._session = host, nvml
        self._nvml: Any = None
        self._opened = 0
        self._sick: dict[str, Health] = {}
        self._buses: tuple[str, ...] = ()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def poll(self) -> DeviceSet:
        """Without a driver, or without a device of it: nothing, and nothing is loaded."""
        self._nvml = self._session.open()
        if self._nvml is None:
            return DeviceSet(faults=(self._session.fault,) if self._session.fault else ())
        if self._opened != self._session.opened:
            self._opened = self._session.opened
            self._renew()
        try:
            return self._read()
        except self._nvml.NVMLError as error:
            self._end()  # the driver went away or was replaced: begin anew next time
            return DeviceSet(faults=(f"nvml: {error}",))

    def close(self) -> None:
        if self._nvml is not None:
            self._end()

    def _end(self) -> None:
        self._renew()
        self._session.close()
        self._nvml = None

    def _renew(self) -> None:
        """What was known of the devices is of a session that is over."""
        self._stop.set()
        self._watcher, self._sick, self._buses = None, {}, ()

    def _read(self) -> DeviceSet:
        nvml, devices, names = self._nvml, [], set()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus = pci_address(text(nvml.nvmlDeviceGetPciInfo(handle).busId))
            place = pci_place(self._host, bus)
            total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            names.add(text(nvml.nvmlDeviceGetName(handle)))
            amounts = ((GPU_CORE, "100"), (GPU_MEMORY, format_bytes(total)), (GPU_MEMORY_RATIO, "100"))
            devices.append(
                Device(
                    GPU,
                    text(nvml.nvmlDeviceGetUUID(handle)),
                    int(nvml.nvmlDeviceGetMinorNumber(handle)),
                    amounts,
                    place if place.pcie and bus else None,
                    health=self._sick.get(bus),
                )
            )
        buses = tuple(device.place.bus if device.place else "" for device in devices)
        if buses != self._buses:  # one came back from a reset, or went
            self._sick = {bus: health for bus, health in self._sick.items() if bus in buses and bus in self._buses}
            self._buses = buses
            self._watch()
        labels = {VENDOR_LABEL: "nvidia"}
        if len(names) == 1 and (model := model_label(names.pop())):
            labels[MODEL_LABEL] = model
        if version := text(nvml.nvmlSystemGetDriverVersion()):
            labels[DRIVER_LABEL] = version
        return DeviceSet(tuple(sorted(devices, key=lambda found: found.minor)), labels)

    def _watch(self) -> None:
        self._stop.set()
        self._stop = threading.Event()
        args = (self._nvml, self._stop, self._sick)
        self._watcher = threading.Thread(target=_wait_for_faults, args=args, name="gpu-health", daemon=True)
        self._watcher.start()


def _wait_for_faults(nvml: Any, stop: threading.Event, sick: dict[str, Health]) -> None:
    """Marks devices in `sick`, by PCI address, until told to stop."""
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError as error:
        log.warning("gpu.no_health_events", error=str(error))
        return
    with suppress(nvml.NVMLError):
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError_NotSupported:
                bus = pci_address(text(nvml.nvmlDeviceGetPciInfo(handle).busId))
                sick[bus] = Health(False, "DeviceHealthCheckNotSupported", "device does not support health checking")
    while not stop.is_set():
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError_Timeout:
            continue
        except nvml.NVMLError:
            stop.wait(WAIT_MS / 1000)
            continue
        mark(nvml, event, sick)
    with suppress(nvml.NVMLError):
        nvml.nvmlEventSetFree(events)


def mark(nvml: Any, event: Any, sick: dict[str, Health]) -> None:
    """What one event says about its device."""
    xid = int(event.eventData)
    if event.eventType != nvml.nvmlEventTypeXidCriticalError or xid in APPLICATION_XIDS:
        return
    try:
        bus = pci_address(text(nvml.nvmlDeviceGetPciInfo(event.device).busId))
    except nvml.NVMLError as error:
        log.warning("gpu.lost", xid=xid, error=str(error))
        return
    if bus not in sick:
        log.warning("gpu.unhealthy", bus=bus, xid=xid)
    sick[bus] = Health(False, f"Xid{xid}", f"Xid error detected on device, error code: {xid}")


def pci_address(bus_id: str) -> str:
    """NVML writes the domain with eight digits, sysfs with four: "00000000:3B:00.0" -> "0000:3b:00.0"."""
    domain, colon, rest = bus_id.strip("\0").lower().partition(":")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain}{colon}{rest}"


def model_label(name: str) -> str:
    """V-23: "NVIDIA A100-SXM4-80GB" -> "A100-SXM4-80GB", "Tesla T4" -> "Tesla-T4"."""
    return name.removeprefix("NVIDIA ").replace(" ", "-")[:63]
