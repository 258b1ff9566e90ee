"""One pod seen by two sources: the first one's word counts, the other fills in what it does not know yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from koordlet.model.pod import Container, Pod


def merge_pods(answers: Sequence[Iterable[Pod]]) -> tuple[Pod, ...]:
    """Pods of all sources by uid, earlier sources first."""
    merged: dict[str, Pod] = {}
    for pods in answers:
        for pod in pods:
            first = merged.get(pod.uid)
            merged[pod.uid] = pod if first is None else filled(first, pod)
    return tuple(merged.values())


def filled(pod: Pod, other: Pod) -> Pod:
    """`pod` with the ids and directories of containers that only `other` knows: a runtime knows them at once, a
    kubelet's list after a while. The same object when there is nothing to fill in."""
    known = {container.name: container for container in other.containers}
    containers = tuple(_container(container, known.get(container.name)) for container in pod.containers)
    if containers == pod.containers:
        return pod
    return replace(pod, containers=containers)


def _container(container: Container, other: Container | None) -> Container:
    if other is None or not other.cgroup or container.cgroup:
        return container
    return replace(container, id=other.id, cgroup=other.cgroup, running=other.running)
