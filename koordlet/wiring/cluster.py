"""The agent as a member of a cluster: what is followed, who is asked, and what is written back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import structlog

from koordlet.config.flags import Flags
from koordlet.kernel.host import Host
from koordlet.kube.access import find_access
from koordlet.kube.claims import Claims
from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.kube.evict import Evictions
from koordlet.kube.informer import Informer
from koordlet.kube.kubelet import PODS, Kubelet
from koordlet.kube.limit import RateLimit
from koordlet.kube.objects import METRICS, NODES, SLOS, MetricObject, NodeObject, SloObject
from koordlet.model.device import Device
from koordlet.model.status import Snapshot
from koordlet.report.device_publication import DevicePublication
from koordlet.report.metrics import Metrics
from koordlet.report.publisher import Publication, Publisher
from koordlet.store.rings import RingStore
from koordlet.wiring.metrics import include_node_metric
from koordlet.wiring.nodemetric import NodeMetricReport
from koordlet.wiring.topology import device_publications, make_nvml, topology_publications

log = structlog.get_logger(__name__)

FIRST_ANSWER_S = 0.5
"""How long the first tick waits for the node's objects at most; without them it goes on with what is remembered."""


def publications(cluster: Cluster) -> tuple[Publication, ...]:
    """What is written, in this order at the start: the topology before anything else (spec/ledger 8.9)."""
    node = cluster.node
    return (
        *topology_publications(cluster.flags, cluster.host, lambda: node.value, cluster.kubelet.read),
        *cluster.devices,
        *((cluster.node_metric.publication,) if cluster.node_metric is not None else ()),
    )


@dataclass(slots=True)
class Cluster:
    """What a publication may need besides the snapshot. Informers hold None until the object is there."""

    flags: Flags
    host: Host
    metrics: Metrics
    api: Api
    kubelet: Kubelet
    node: Informer[NodeObject]
    slo: Informer[SloObject]
    metric: Informer[MetricObject] | None
    node_metric: NodeMetricReport | None
    evictions: Evictions
    claims: Claims
    devices: tuple[DevicePublication, ...]
    publisher: Publisher | None = field(default=None)

    def pods(self) -> bytes | str:
        """The kubelet's answer, or why there is none."""
        try:
            return self.kubelet.read(PODS)
        except ApiError as error:
            return str(error)

    def revisions(self) -> tuple[int, ...]:
        """Of the objects whose followers the loop asks."""
        return (self.node.revision, self.slo.revision)

    def publish(self, snapshot: Callable[[], Snapshot | None], stack: ExitStack) -> None:
        """Start to write."""
        if self.node_metric is not None:
            self.node_metric.start(snapshot)
            stack.callback(self.node_metric.stop)
        made = publications(self)
        if made:
            self.publisher = Publisher(self.api, snapshot, made, self.metrics.count_publication).start()
            stack.callback(self.publisher.stop)

    def errors(self) -> tuple[str, ...]:
        """What is wrong now and is not said by the inputs (node, policy, pods)."""
        found: tuple[str, ...] = (self.metric.error,) if self.metric is not None and self.metric.error else ()
        found += self.node_metric.errors() if self.node_metric is not None else ()
        return found + (self.publisher.errors() if self.publisher is not None else ())

    def gpu_ids(self) -> dict[int, str]:
        """UUIDs of the node's GPUs by minor number."""
        return {minor: device.id for minor, device in _gpus(self.devices).items() if device.id}

    def page_cache(self) -> bool:
        """Whether memory with page cache is to be sampled."""
        return self.node_metric is not None and self.node_metric.page_cache()

    def hot_cache(self) -> bool:
        """Whether the cold part of the page cache is to be told from it."""
        return self.node_metric is not None and self.node_metric.hot_cache()

    def notes(self) -> tuple[str, ...]:
        """What the operator should know and is no fault."""
        return self.node_metric.notes() if self.node_metric is not None else ()

    def counts(self) -> dict[str, float]:
        """Figures for /metrics."""
        informers: dict[str, Informer[Any] | None] = {
            "node": self.node,
            "nodeslo": self.slo,
            "nodemetric": self.metric,
        }
        counts: dict[str, float] = {"events_dropped_total": self.evictions.dropped}
        for name, informer in informers.items():
            if informer is not None:
                counts[f"source_errors_total{{source={name}}}"] = informer.failures
        return counts


def _gpus(publications: tuple[DevicePublication, ...]) -> dict[int, Device]:
    return {minor: device for publication in publications for minor, device in publication.gpus.items()}


def connect(flags: Flags, host: Host, rings: RingStore, metrics: Metrics, stack: ExitStack) -> Cluster:
    """Start to follow this node's objects. Raises AccessError when there is no way to a cluster; that the API server
    does not answer is no reason not to start."""
    access = find_access(flags.kubeconfig, os.environ)
    limit = RateLimit(flags.kube_api_qps, flags.kube_api_burst)
    api = Api(access, limit=limit, observed=metrics.observe_api)
    stack.callback(api.close)
    keep = flags.state_dir
    node: Informer[NodeObject] = Informer(api, NODES, flags.node_name, NodeObject, keep=keep / "node.json")
    slo: Informer[SloObject] = Informer(api, SLOS, flags.node_name, SloObject, keep=keep / "nodeslo.json")
    metric: Informer[MetricObject] | None = None
    node_metric: NodeMetricReport | None = None
    nvml = make_nvml(flags, host)
    devices = device_publications(flags, host, lambda: node.value, nvml)
    if flags.enable_node_metric_report:
        followed = metric = Informer(api, METRICS, flags.node_name, MetricObject)
        node_metric = NodeMetricReport(flags, host, rings, lambda: followed.value, nvml, lambda: _gpus(devices))
        include_node_metric(metrics, flags, node_metric)
    kubelet = Kubelet(
        access,
        lambda: node.value,
        address_type=flags.kubelet_preferred_address_type,
        authority=flags.kubelet_certificate_authority,
        verify=not flags.kubelet_insecure_skip_verify,
        timeout_s=flags.kubelet_sync_timeout_s,
        plain=flags.kubelet_plain_url,
        observed=metrics.observe_kubelet,
    )
    stack.callback(kubelet.close)
    log.info("cluster", server=access.server, node=flags.node_name)
    for informer in (node, slo, metric):
        if informer is not None:
            informer.start()
            stack.callback(informer.stop)
    deadline_s = time.monotonic() + FIRST_ANSWER_S
    for first in (node, slo):
        first.wait(max(deadline_s - time.monotonic(), 0.0))
    evictions = Evictions(api, flags.node_name)
    stack.callback(evictions.stop)
    claims = Claims(api)
    stack.callback(claims.stop)
    return Cluster(flags, host, metrics, api, kubelet, node, slo, metric, node_metric, evictions, claims, devices)
