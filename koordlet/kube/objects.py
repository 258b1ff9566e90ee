"""The parts of API objects that we read, and their paths. Everything else of them is never decoded.

Two are equal when all that we read is equal: a kubelet's heartbeat is no change of its Node.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

NODES: Final = "/api/v1/nodes"
SLOS: Final = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
METRICS: Final = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
TOPOLOGIES: Final = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


class Metadata(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Address(msgspec.Struct, rename="camel", frozen=True):
    type: str = ""
    address: str = ""


class Endpoint(msgspec.Struct, rename="camel", frozen=True):
    port: int = msgspec.field(default=0, name="Port")


class Endpoints(msgspec.Struct, rename="camel", frozen=True):
    kubelet_endpoint: Endpoint | None = None


class NodeStatus(msgspec.Struct, rename="camel", frozen=True):
    """capacity, allocatable: resource name -> quantity, unchecked."""

    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    addresses: list[Address] | None = None
    daemon_endpoints: Endpoints | None = None


class NodeObject(msgspec.Struct, rename="camel", frozen=True):
    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()


class SloObject(msgspec.Struct, rename="camel", frozen=True):
    """spec: unchecked; config/nodeslo.py merges it."""

    metadata: Metadata = Metadata()
    spec: Any = None


class MetricObject(msgspec.Struct, rename="camel", frozen=True):
    """A NodeMetric; its spec unchecked. Its status is ours to write, and not read."""

    metadata: Metadata = Metadata()
    spec: Any = None
