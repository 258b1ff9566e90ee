"""Keeps the node's Device object up to date, where there is a device or was one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from koordlet.kernel.host import Host
from koordlet.kernel.rdma import read_rdma
from koordlet.kube.client import Api
from koordlet.kube.objects import DEVICES, NodeObject
from koordlet.model.device import GPU, Device, DeviceSet
from koordlet.model.status import Snapshot
from koordlet.report.devices import desired, merged, timed
from koordlet.report.owned import keep
from koordlet.report.topology_publication import CHECK_EVERY_S
from koordlet.sources.nvidia import NvidiaGpus
from koordlet.sources.xpu import XpuFiles

log = structlog.get_logger(__name__)


class DeviceInput:
    """All devices of the node. Any accelerator file makes NVML's GPUs count no more, as in the reference."""

    def __init__(self, host: Host, xpu: XpuFiles, nvidia: NvidiaGpus | None, *, rdma: bool) -> None:
        self._host, self._xpu, self._nvidia, self._rdma = host, xpu, nvidia, rdma
        self._faults: frozenset[str] = frozenset()

    def poll(self) -> DeviceSet:
        found = self._xpu.poll()
        if not found.devices and self._nvidia is not None:
            gpus = self._nvidia.poll()
            found = replace(gpus, faults=(*found.faults, *gpus.faults))
        if self._rdma:
            try:
                devices, faults = read_rdma(self._host)
            except OSError as error:
                devices, faults = (), (f"rdma: {error}",)
            found = replace(found, devices=(*found.devices, *devices), faults=(*found.faults, *faults))
        for fault in found.faults:
            if fault not in self._faults:
                log.warning("device.left_out", what=fault)
        self._faults = frozenset(found.faults)
        return found


class DevicePublication:
    """A `Publication`. devices: what there is now."""

    name = "device"

    def __init__(
        self,
        devices: Callable[[], DeviceSet],
        node: Callable[[], NodeObject | None],
        *,
        interval_s: float = 3.0,
    ) -> None:
        self._devices, self._node, self._interval_s = devices, node, interval_s
        self._looked_s = self._checked_s = float("-inf")
        self._found = DeviceSet()
        self._written: tuple[str, DeviceSet] | None = None

    @property
    def gpus(self) -> Mapping[int, Device]:
        """By minor number, as last seen."""
        return {device.minor: device for device in self._found.devices if device.kind == GPU}

    def due(self, snapshot: Snapshot, now_s: float) -> bool:
        if now_s - self._looked_s < self._interval_s:
            return False
        self._looked_s = now_s
        node = self._node()
        if node is None or not node.metadata.uid:
            return False
        self._found = replace(self._devices(), faults=())
        if (node.metadata.uid, self._found) != self._written:
            return True
        return now_s - self._checked_s >= CHECK_EVERY_S

    def publish(self, api: Api, snapshot: Snapshot, now_s: float) -> None:
        node = self._node()
        if node is None:
            return
        wanted, wall_s = desired(node.metadata.name, node.metadata.uid, self._found), snapshot.wall_s

        def change(current: dict[str, Any] | None) -> dict[str, Any] | None:
            return _made(wanted, wall_s) if current is None else merged(current, wanted, wall_s)

        keep(api, DEVICES, node.metadata.name, change)
        self._written, self._checked_s = (node.metadata.uid, self._found), now_s


def _made(wanted: dict[str, Any], wall_s: float) -> dict[str, Any] | None:
    """The object of a node that has none yet. beyond: a node without any device gets none."""
    rows = wanted["spec"]["devices"]
    return {**wanted, "spec": {"devices": timed(rows, [], wall_s)}} if rows else None
