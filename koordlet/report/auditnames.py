"""Audit records of a kubelet's pods name the pod and the container, as the reference's do (spec/api 4.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from koordlet.model.audit import AuditRecord, AuditSink
from koordlet.model.pod import Pod, Tree


class NamedAudit:
    """An `AuditSink` before another. pods: those known now. A record about a pod's cgroup gets type `pod` with its
    namespace and name; one about a container's gets its id too, and no type."""

    def __init__(self, sink: AuditSink, pods: Callable[[], tuple[Pod, ...]]) -> None:
        self._sink, self._pods = sink, pods
        self._known: tuple[Pod, ...] = ()
        self._names: dict[str, tuple[Pod, str]] = {}

    def __call__(self, record: AuditRecord) -> None:
        found = self._find(record.target) if record.kind == "group" else None
        if found is not None:
            pod, container = found
            record = replace(
                record, kind="" if container else "pod", namespace=pod.namespace, name=pod.name, container=container
            )
        self._sink(record)

    def _find(self, target: str) -> tuple[Pod, str] | None:
        pods = self._pods()
        if pods is not self._known:
            self._known, self._names = pods, {}
            for pod in pods:
                if pod.tree is Tree.KUBELET:
                    self._names[pod.cgroup] = (pod, "")
                    self._names |= {one.cgroup: (pod, one.id) for one in pod.containers if one.cgroup}
        return self._names.get(target)
