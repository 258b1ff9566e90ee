"""The publications of the node's topology and devices, as the flags and gates have them."""

from __future__ import annotations

from collections.abc import Callable

from koordlet.config.flags import Flags
from koordlet.kernel.host import Host
from koordlet.kernel.nvml import Nvml
from koordlet.kube.kubelet import CONFIG
from koordlet.kube.objects import NodeObject
from koordlet.report.device_publication import DeviceInput, DevicePublication
from koordlet.report.topology_publication import TopologyPublication
from koordlet.sources.nvidia import NvidiaGpus
from koordlet.sources.xpu import XpuFiles


def topology_publications(
    flags: Flags, host: Host, node: Callable[[], NodeObject | None], kubelet: Callable[[str], bytes] | None
) -> tuple[TopologyPublication, ...]:
    """() with gate NodeTopologyReport off, or an interval of 0. kubelet: reads a path of the kubelet."""
    if "NodeTopologyReport" not in flags.gates.enabled or flags.node_topology_sync_interval_s <= 0:
        return ()
    read = kubelet if not flags.disable_query_kubelet_config else None
    return (
        TopologyPublication(
            host,
            node,
            None if read is None else lambda: read(CONFIG),
            interval_s=flags.node_topology_sync_interval_s,
            hugepages="HugePageReport" in flags.gates.enabled,
        ),
    )


def make_nvml(flags: Flags, host: Host) -> Nvml | None:
    """What devices and their use are asked of; None where GPUs are nobody's matter."""
    wanted = "Accelerators" in flags.gates.enabled and not flags.xpu_enforce_collect_from_device_infos
    return Nvml(host) if wanted else None


def device_publications(
    flags: Flags, host: Host, node: Callable[[], NodeObject | None], nvml: Nvml | None
) -> tuple[DevicePublication, ...]:
    """() with gate Accelerators off, or an interval of 0."""
    if "Accelerators" not in flags.gates.enabled or flags.node_topology_sync_interval_s <= 0:
        return ()
    devices = DeviceInput(
        host,
        XpuFiles(flags.xpu_device_infos_dir),
        None if nvml is None else NvidiaGpus(host, nvml),
        rdma="RDMADevices" in flags.gates.enabled,
    )
    return (DevicePublication(devices.poll, node, interval_s=flags.node_topology_sync_interval_s),)
