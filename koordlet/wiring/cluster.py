"""The agent as a member of a cluster: who follows what, and what is written back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from koordlet.config.flags import Flags
from koordlet.kernel.host import Host
from koordlet.kube.client import Api
from koordlet.kube.informer import Informer
from koordlet.kube.objects import MetricObject, NodeObject, SloObject
from koordlet.report.publisher import Publication
from koordlet.wiring.topology import device_publications, topology_publications


@dataclass(slots=True)
class Cluster:
    """What a publication may need besides the snapshot. Informers hold None until the object is there.

    kubelet: reads a path of the kubelet ("/configz"), None without one; raises ApiError.
    """

    flags: Flags
    host: Host
    api: Api
    node: Informer[NodeObject]
    slo: Informer[SloObject]
    metric: Informer[MetricObject]
    kubelet: Callable[[str], bytes] | None = None


def publications(cluster: Cluster) -> tuple[Publication, ...]:
    """What is written, in this order at the start: the topology before anything else (spec/ledger 8.9)."""
    return (
        *topology_publications(cluster.flags, cluster.host, lambda: cluster.node.value, cluster.kubelet),
        *device_publications(cluster.flags, cluster.host, lambda: cluster.node.value),
    )
