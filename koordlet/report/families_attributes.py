"""Families about attributes of containers' processes: OOM scores and core scheduling cookies (spec/api 4.4). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.model.pod import Container, Pod
from koordlet.model.podeffects import CoreCookie, OomScore
from koordlet.model.status import Snapshot
from koordlet.report.families import Families


def attribute_families(families: Families, snapshot: Snapshot) -> None:
    """Only what was carried out: a wish without a state has no series."""
    effects = [effect for outcome in snapshot.outcomes.values() for effect in outcome.effects]
    wanted = [effect for effect in effects if isinstance(effect, (OomScore, CoreCookie))]
    if not wanted:
        return
    containers = {container.cgroup: (pod, container) for pod, container in _containers(snapshot)}
    for effect in wanted:
        report = snapshot.effects.get(effect.kind)
        told = report.state.get(effect.target, "") if report is not None else ""
        if not told or effect.target not in containers:
            continue
        pod, container = containers[effect.target]
        labels = {"pod_name": pod.name, "pod_namespace": pod.namespace, "pod_uid": pod.uid}
        labels["container_name"] = container.name
        if isinstance(effect, OomScore):
            about = "OOM score of a container's processes, as its annotation asks."
            families.node_gauge("container_oom_score_adj", about, effect.score, **labels)
        elif cookie := told.rpartition(" cookie ")[2]:
            families.node_gauge(
                "container_core_sched_cookie",
                "1 for each container whose threads share cores only with their group.",
                1,
                **labels,
                container_id=container.id,
                core_sched_group=effect.group,
                core_sched_cookie=cookie,
            )


def _containers(snapshot: Snapshot) -> Iterator[tuple[Pod, Container]]:
    for pod in snapshot.view.pods.pods:
        for container in pod.containers if pod.active else ():
            yield pod, container
