"""The status of a NodeMetric from what was measured (spec/api 1.1.2, 1.1.3). Pure: windows and view in, JSON out.

A status is whole or there is none: koord-manager lends what a report leaves out, so node figures that are missing or
old give no report and no fresh time (fault F-01). A pod without figures is left out; koord-manager then counts its
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from koordlet.model.device import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, POD_GPU, Gpu, pod_gpu
from koordlet.model.nodemetric import MemoryKind, MetricPolicy
from koordlet.model.pod import HostApp, Pod
from koordlet.model.prediction import Amount, ProdPrediction
from koordlet.model.quantity import format_bytes, format_mcpu
from koordlet.model.view import NodeView
from koordlet.store.aggregate import Aggregate

STALE_S: Final = 30.0
"""Older figures of the node are no base for a report. Memory of pods comes round every 10 s."""
MIN_COVERAGE: Final = 0.5
"""An aggregate over a window stays empty until so much of the window is covered."""
_MEMORY: Final = {MemoryKind.WITH_CACHE: "memory_cached", MemoryKind.WITH_HOT_CACHE: "memory_hot"}
"""Series of memory with page cache, and with its hot part, filled while the policy asks for it."""
PLAIN: Final = "memory"
_AGGREGATES: Final = ("avg", "p50", "p90", "p95", "p99")

ResourceMap = dict[str, Any]
Predict = Callable[[list[Pod]], ProdPrediction | None]
"""Pods with figures -> what is predicted of them; None where a model is missing."""


class NotReportable(Exception):  # noqa: N818 - an answer, not a fault
    """What is missing for a whole report."""


class Windows(Protocol):
    """Aggregates of what was measured (store.rings.RingStore): milli-CPU and bytes."""

    def window(self, kind: str, ident: str, metric: str, seconds: float, now_s: float) -> Aggregate | None: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """One report's reads: all windows end at the same moment."""

    windows: Windows
    end_s: float
    window_s: float
    memory: str

    def usage(self, kind: str, ident: str) -> ResourceMap | None:
        """Averages over the report's window; None when one of them has no sample in it."""
        cpu = self.windows.window(kind, ident, "cpu", self.window_s, self.end_s)
        memory = self.windows.window(kind, ident, self.memory, self.window_s, self.end_s)
        return None if cpu is None or memory is None else resource_map(cpu.avg, memory.avg)

    def parts(self, kind: str, ident: str) -> ResourceMap:
        """As `usage`, without page cache, and with what there is: CPU or memory alone, {} for neither."""
        cpu = self.windows.window(kind, ident, "cpu", self.window_s, self.end_s)
        memory = self.windows.window(kind, ident, "memory", self.window_s, self.end_s)
        found = ({} if cpu is None else _cpu(cpu.avg)) | ({} if memory is None else _memory(memory.avg))
        return {"resources": found} if found else {}

    def devices(self, gpus: tuple[Gpu, ...], pod: Pod | None = None) -> list[dict[str, Any]]:
        """Averages of each GPU, or of a pod's part of each; those without a sample are left out (W-32)."""
        made = []
        for gpu in gpus:
            series = (GPU, str(gpu.minor)) if pod is None else (POD_GPU, pod_gpu(pod.uid, gpu.minor))
            core = self.windows.window(*series, "core", self.window_s, self.end_s)
            memory = self.windows.window(*series, "memory", self.window_s, self.end_s)
            found = {} if core is None else {GPU_CORE: str(int(core.avg))}
            if memory is not None:
                found[GPU_MEMORY] = format_bytes(int(memory.avg))
                if gpu.memory_bytes > 0:
                    found[GPU_MEMORY_RATIO] = str(int(100 * memory.avg / gpu.memory_bytes))
            if found:
                made.append({"type": GPU, "id": gpu.id, "minor": gpu.minor, "health": gpu.healthy, "resources": found})
        return made

    def aggregated(self, kind: str, seconds: float) -> dict[str, ResourceMap]:
        """Each aggregate over [end - seconds, end]; empty ones while too little of it is covered."""
        cpu = self.windows.window(kind, "", "cpu", seconds, self.end_s)
        memory = self.windows.window(kind, "", self.memory, seconds, self.end_s)
        if cpu is None or memory is None or cpu.duration_s < MIN_COVERAGE * seconds:
            return {name: {} for name in _AGGREGATES}
        return {name: resource_map(getattr(cpu, name), getattr(memory, name)) for name in _AGGREGATES}


def resource_map(mcpu: float, size: float) -> ResourceMap:
    """Whole milli-CPU and bytes, the rest cut off."""
    return {"resources": _cpu(mcpu) | _memory(size)}


def _cpu(mcpu: float) -> dict[str, str]:
    return {"cpu": format_mcpu(int(mcpu))}


def _memory(size: float) -> dict[str, str]:
    return {"memory": format_bytes(int(size))}


def reader(windows: Windows, policy: MetricPolicy, end_s: float) -> Reader:
    """Page cache counts only where the node's and the system's figures with it are there: one definition for all.

    # beyond: the reference mixes both (FAULT-16). Cold pages are known to no mainline kernel: then without the cache.
    """
    memory = _MEMORY.get(policy.memory, PLAIN)
    found = Reader(windows, end_s, policy.window_s, memory)
    if memory != PLAIN and _stale(found):
        found = Reader(windows, end_s, policy.window_s, PLAIN)
    return found


def problem(windows: Windows, policy: MetricPolicy, end_s: float) -> str:
    """Why there is nothing to report at `end_s`, "" when there is."""
    return _stale(reader(windows, policy, end_s))


def build_status(
    windows: Windows,
    view: NodeView,
    policy: MetricPolicy,
    predict: Predict,
    wall_s: float,
    numa_ids: Iterable[int] = (),
    gpus: tuple[Gpu, ...] = (),
) -> dict[str, Any]:
    """The whole status, its windows ending at the view's moment; wall_s: wall clock of that moment.

    predict: asked with the pods that are listed. numa_ids, gpus: what is measured. Raises NotReportable.
    """
    read = reader(windows, policy, view.now_s)
    if missing := _stale(read):
        raise NotReportable(missing)
    measured = _measured(read, view.pods.pods)
    prediction = predict([pod for pod, _ in measured])
    node: dict[str, Any] = {
        "nodeUsage": _with_devices(read.usage("node", ""), read.devices(gpus)),
        "aggregatedNodeUsages": _aggregated(read, "node", policy),
        "systemUsage": read.usage("system", ""),
        "aggregatedSystemUsages": _aggregated(read, "system", policy),
        "numaUsages": _numa(read, numa_ids),
    }
    status: dict[str, Any] = {
        "updateTime": datetime.fromtimestamp(int(wall_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nodeMetric": _without_empty(node),
        "podsMetric": [_pod(pod, _with_devices(usage, read.devices(gpus, pod))) for pod, usage in measured],
        "hostApplicationMetric": _host_apps(read, view.host_apps),
        "prodReclaimableMetric": {"resource": _amount(prediction.reclaimable) if prediction else {}},
        "prodPeakMetric": {"resource": _amount(prediction.peak)} if prediction else None,
    }
    return _without_empty(status)


def as_patch(status: dict[str, Any]) -> dict[str, Any]:
    """The status as a merge patch: what it leaves out is removed there."""
    patch = {name: status.get(name) for name in _TOP}
    node = status["nodeMetric"]
    patch["nodeMetric"] = node | {
        "numaUsages": node.get("numaUsages"),
        "nodeUsage": {"devices": None} | node["nodeUsage"],
    }
    if not status["prodReclaimableMetric"]["resource"]:
        patch["prodReclaimableMetric"] = {"resource": {"resources": None, "devices": None}}
    return {"status": patch}


def _stale(read: Reader) -> str:
    for kind in ("node", "system"):
        for metric in ("cpu", read.memory):
            found = read.windows.window(kind, "", metric, read.window_s, read.end_s)
            if found is None:
                return f"no {metric} usage of the {kind}"
            if (age_s := read.end_s - found.latest_s) > STALE_S:
                return f"{metric} usage of the {kind} is {age_s:.0f} s old"
    return ""


def _aggregated(read: Reader, kind: str, policy: MetricPolicy) -> list[dict[str, Any]]:
    return [{"usage": read.aggregated(kind, seconds), "duration": text} for seconds, text in policy.durations]


def _numa(read: Reader, ids: Iterable[int]) -> list[dict[str, Any]]:
    return [
        {"numaNodeID": ident, "nodeUsage": node, "systemUsage": read.parts("system_numa", str(ident))}
        for ident in sorted(ids)
        if (node := read.parts("numa", str(ident)))
    ]


def _measured(read: Reader, pods: Iterable[Pod]) -> list[tuple[Pod, ResourceMap]]:
    """Pods with their usage, in the order of the report."""
    # Of two pods of one name, the one that is going and the one that comes, consumers take the last.
    ordered = sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.created_at_s or 0.0))
    return [(pod, usage) for pod in ordered if (usage := read.usage("pod", pod.uid)) is not None]


def _with_devices(usage: ResourceMap | None, devices: list[dict[str, Any]]) -> ResourceMap | None:
    return usage | {"devices": devices} if usage is not None and devices else usage


def _pod(pod: Pod, usage: ResourceMap | None) -> dict[str, Any]:
    return {
        "name": pod.name,
        "namespace": pod.namespace,
        "podUsage": usage,
        "priority": pod.priority_class.value,
        "qos": pod.default_qos.value,
    }


def _host_apps(read: Reader, apps: Iterable[HostApp]) -> list[dict[str, Any]]:
    made = []
    for app in sorted(apps, key=lambda app: app.name):
        usage = read.usage("host", app.name)
        if usage is not None:
            named = {"priority": app.priority_class, "qos": app.qos.value if app.qos else ""}
            made.append({"name": app.name, "usage": usage} | {key: text for key, text in named.items() if text})
    return made


def _amount(amount: Amount) -> ResourceMap:
    return resource_map(amount.mcpu, amount.bytes)


def _without_empty(found: dict[str, Any]) -> dict[str, Any]:
    """Empty lists and absent objects do not appear; empty objects do."""
    return {key: value for key, value in found.items() if value is not None and value != []}


_TOP: Final = (
    "updateTime",
    "nodeMetric",
    "podsMetric",
    "hostApplicationMetric",
    "prodReclaimableMetric",
    "prodPeakMetric",
)
