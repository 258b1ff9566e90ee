"""Prometheus exposition: a collector over the last `Snapshot` (spec/api 4.4). No object is made per tick.

Two registries as the reference has them: internal (the agent about itself) and external (workloads); /metrics is
both. Every name gets the prefix `koordlet_`. Series whose label list starts with `node` carry the node's name and
are left out until it is known. Readings older than ten intervals are left out: absent is better than old.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from koordlet.model.eviction import Evict
from koordlet.model.status import Latest, Snapshot
from koordlet.report.families import PREFIX, Families
from koordlet.report.families_external import external_families
from koordlet.report.families_hardware import hardware_families
from koordlet.report.families_internal import internal_families

_BUCKETS_MS: Final = tuple(0.01 * 4**k for k in range(8))
_BUCKETS_KUBELET_S: Final = tuple(0.001 * 4**k for k in range(7))
_COUNTERS_WITHOUT_SUFFIX: Final = (
    *(f"{PREFIX}collect_node_{subject}_status".encode() for subject in ("cpu_info", "numa_info", "local_storage_info")),
    *(
        f"{PREFIX}{name}".encode()
        for name in ("pod_eviction_detail", "pod_eviction", "core_sched_cookie_manage_status")
    ),
)
"""compat: the reference names these counters without `_total` in the text format."""

_NODE_COUNTERS: Final = ("collect_node_", "pod_eviction_detail", "pod_eviction", "core_sched_cookie_manage_status")
_DETAILS: Final = 512
"""Names of pods and groups are without end; the series of the last ones are enough to find the audit record."""


class Which(Enum):
    ALL = "all"
    INTERNAL = "internal"
    EXTERNAL = "external"


Collect = Callable[[Families, Snapshot], None]


class Metrics:
    """The registry. All methods may be called from any thread.

    latest: asked at each scrape. extra: flat figures of other rooms, name without prefix -> value;
    a name ending in `_total` is a counter, any other a gauge; `name{label=value}` gives a label.
    start_time_s: wall clock of the start, None leaves start_time out.
    version: for build_info. process: add the process_* families. node: label of the hooks' histograms.
    """

    def __init__(
        self,
        latest: Latest,
        extra: Callable[[], Mapping[str, float]] = dict,
        *,
        start_time_s: float | None = None,
        version: str = "",
        process: bool = True,
        node: str = "",
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the reference has no *_created series
        self._latest = latest
        self._extra = extra
        self._start_time_s = start_time_s
        self._version = version
        self._counts = Counts()
        self._more: dict[Which, list[Collect]] = {Which.INTERNAL: [], Which.EXTERNAL: []}
        self._internal = CollectorRegistry(auto_describe=False)
        self._updates = Histogram(
            f"{PREFIX}resource_update_duration_milliseconds",
            "Time to write one resource, by kind of resource and result.",
            ("type", "status"),
            buckets=_BUCKETS_MS,
            registry=self._internal,
        )
        self._node = node
        self._hooks = Histogram(
            f"{PREFIX}runtime_hook_invoked_duration_milliseconds",
            "Time to answer one call of a runtime, by stage and result.",
            ("node", "hook", "stage", "status"),
            buckets=_BUCKETS_MS,
            registry=self._internal,
        )
        self._reconciler = Histogram(
            f"{PREFIX}runtime_hook_reconciler_invoked_duration_milliseconds",
            "Time to write one value of a pod that no hook had set, by level, kind of value and result.",
            ("node", "level", "resource_type", "status"),
            buckets=_BUCKETS_MS,
            registry=self._internal,
        )
        self._kubelet = Histogram(
            f"{PREFIX}kubelet_request_duration_seconds",
            "Time of one request to the kubelet, by path and HTTP status.",
            ("verb", "path", "code"),
            buckets=_BUCKETS_KUBELET_S,
            registry=self._internal,
        )
        if process:
            ProcessCollector(registry=self._internal)

    def observe_update(self, ms: float, type: str = "cgroup", status: str = "success") -> None:
        """One write. type: cgroup, default or resctrl-schema; status: success or failed."""
        self._updates.labels(type, status).observe(ms)
        if status != "success":
            self._counts.add("knob_write_failures", (("type", type),))

    def observe_hook(self, stage: str, status: str, ms: float) -> None:
        """One answer of the pod rules, all of them together. status: succeeded or failed."""
        self._hooks.labels(self._node, "PodRules", stage, status).observe(ms)

    def observe_reconcile(self, level: str, resource: str, ms: float, *, ok: bool) -> None:
        """One write of the pod rules beside their answers. level: kubeqos, pod or container. resource: the knob."""
        self._reconciler.labels(self._node, level, resource, "succeeded" if ok else "failed").observe(ms)

    def count_cookies(self, group: str, ok: bool) -> None:
        """One round in which a core scheduling group's processes got their cookie, or lost it; or did not."""
        labels = (("core_sched_group", group), ("status", "succeeded" if ok else "failed"))
        self._counts.add("core_sched_cookie_manage_status", labels, most=_DETAILS)

    def count_collect(self, subject: str, ok: bool) -> None:
        """One collection of node facts. subject: cpu_info, numa_info or local_storage_info."""
        self._counts.add(f"collect_node_{subject}_status", (("status", "succeeded" if ok else "failed"),))

    def observe_kubelet(self, verb: str, path: str, status: int, seconds: float) -> None:
        """One request to the kubelet; status 0: no answer."""
        self._kubelet.labels(verb, path, str(status)).observe(seconds)

    def count_policy_reload_failed(self) -> None:
        self._counts.add("policy_reload_failed", ())

    def observe_api(self, verb: str, path: str, status: int, seconds: float) -> None:
        """One call of the API server that is no watch; status 0: no answer."""
        self._counts.add("api_requests", (("verb", verb), ("code", str(status))))

    def count_publication(self, publication: str, result: str) -> None:
        """One attempt to write an object to the API server. result: written, or the reason of the failure."""
        self._counts.add("publications", (("publication", publication), ("result", result)))

    def count_eviction(self, evict: Evict, result: str) -> None:
        """One attempt. result: evicted, refused or observed."""
        labels = (("feature", evict.feature), ("result", result))
        self._counts.add("pod_evictions_by_feature", labels)
        if result == "evicted":
            # compat: the reference's reason is this constant; the feature stands only in its log.
            self._counts.add("pod_eviction", (("reason", "evicted"),))
            pod = (("pod_namespace", evict.namespace), ("pod_name", evict.name))
            self._counts.add("pod_eviction_detail", (*pod, ("reason", "evicted")), most=_DETAILS)

    def include(self, collect: Collect, which: Which = Which.INTERNAL) -> None:
        """More families of another room, made at each scrape. which: of the two registries."""
        self._more[which].append(collect)

    def exposition(self, accept: str = "", which: Which = Which.ALL) -> tuple[bytes, str]:
        """(body, content type): the text format, or OpenMetrics when `accept` asks for it."""
        encoder, content_type = choose_encoder(accept)
        body = encoder(_Chain(self._families(which)))
        if not content_type.startswith("application/openmetrics-text"):
            for name in _COUNTERS_WITHOUT_SUFFIX:
                body = body.replace(name + b"_total", name)
        return body, content_type

    def _families(self, which: Which) -> Iterator[Metric]:
        snapshot, workloads = self._latest()
        if which is not Which.EXTERNAL:
            families = Families(snapshot.view.node.name if snapshot else "")
            families.gauge("build_info", "Version of the agent.", 1, version=self._version)
            if self._start_time_s is not None:
                families.node_gauge("start_time", "Wall clock of the agent's start, seconds.", self._start_time_s)
            self._counts.into(families)
            internal_families(families, snapshot, workloads)
            self._include(families, snapshot, Which.INTERNAL)
            for key, value in self._extra().items():
                families.flat(key, value)
            yield from families
            yield from self._internal.collect()
        if which is not Which.INTERNAL and snapshot is not None:
            families = Families(snapshot.view.node.name)
            external_families(families, snapshot, workloads)
            hardware_families(families, snapshot)
            self._include(families, snapshot, Which.EXTERNAL)
            yield from families

    def _include(self, families: Families, snapshot: Snapshot | None, which: Which) -> None:
        if snapshot is not None:
            for collect in self._more[which]:
                collect(families, snapshot)


class Counts:
    """Counters of rare events, by name and labels."""

    _ABOUT: Final = {
        "collect_node_cpu_info_status": "Reads of the node's CPU list, by result.",
        "collect_node_numa_info_status": "Reads of the node's NUMA list, by result.",
        "collect_node_local_storage_info_status": "Reads of the node's block devices, by result.",
        "core_sched_cookie_manage_status": "Rounds that changed a core scheduling group's processes, by result.",
        "knob_write_failures": "Writes that the kernel refused.",
        "api_requests": "Calls of the API server that are no watch, by verb and HTTP status.",
        "publications": "Attempts to write an object to the API server, by result.",
        "pod_eviction": "Evicted pods.",
        "pod_eviction_detail": "Evictions of single pods, the last ones.",
        "pod_evictions_by_feature": "Attempts to evict a pod, by the feature that asked for it and the result.",
        "policy_reload_failed": "Policy files or objects that were refused; the previous policy stayed.",
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            ("policy_reload_failed", ()): 0.0,
            ("knob_write_failures", (("type", "cgroup"),)): 0.0,
        }

    def add(self, name: str, labels: tuple[tuple[str, str], ...], most: int | None = None) -> None:
        """most: series of that name to keep; the oldest make room."""
        with self._lock:
            value = self._values.pop((name, labels), 0.0)
            if most is not None and len(same := [key for key in self._values if key[0] == name]) >= most:
                del self._values[same[0]]
            self._values[name, labels] = value + 1

    def into(self, families: Families) -> None:
        with self._lock:
            values = sorted(self._values.items())
        for (name, labels), value in values:
            put = families.node_counter if name.startswith(_NODE_COUNTERS) else families.counter
            put(name, self._ABOUT[name], value, **dict(labels))


class _Chain(Collector):
    """What an encoder asks for its families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._all = families

    def collect(self) -> Iterable[Metric]:
        return self._all
