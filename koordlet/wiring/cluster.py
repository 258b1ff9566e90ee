"""The agent as a member of a cluster: who follows what, and what is written back."""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.config.flags import Flags
from koordlet.kube.client import Api
from koordlet.kube.informer import Informer
from koordlet.kube.objects import MetricObject, NodeObject, SloObject
from koordlet.report.publisher import Publication


@dataclass(slots=True)
class Cluster:
    """What a publication may need besides the snapshot. Informers hold None until the object is there."""

    flags: Flags
    api: Api
    node: Informer[NodeObject]
    slo: Informer[SloObject]
    metric: Informer[MetricObject]


def publications(cluster: Cluster) -> tuple[Publication, ...]:
    """What is written, in this order at the start: the topology before anything else (spec/ledger 8.9)."""
    return ()
