"""The NodeResourceTopology's publication, as the flags and gates have it."""

from __future__ import annotations

from collections.abc import Callable

from koordlet.config.flags import Flags
from koordlet.kernel.host import Host
from koordlet.kube.objects import NodeObject
from koordlet.report.topology_publication import TopologyPublication

CONFIGZ = "/configz"


def topology_publications(
    flags: Flags, host: Host, node: Callable[[], NodeObject | None], kubelet: Callable[[str], bytes] | None
) -> tuple[TopologyPublication, ...]:
    """None with gate NodeTopologyReport off, or an interval of 0. kubelet: reads a path of the kubelet."""
    if "NodeTopologyReport" not in flags.gates.enabled or flags.node_topology_sync_interval_s <= 0:
        return ()
    read = kubelet if not flags.disable_query_kubelet_config else None
    return (
        TopologyPublication(
            host,
            node,
            None if read is None else lambda: read(CONFIGZ),
            interval_s=flags.node_topology_sync_interval_s,
            hugepages="HugePageReport" in flags.gates.enabled,
        ),
    )
