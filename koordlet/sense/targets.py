"""What the sampler has to watch: one `Target` per cgroup, derived from pods, host applications and BE roots.

Only active pods are watched, and of their containers those whose cgroup is known. A cgroup that nobody declared is
watched nowhere: its usage stays in the node's system usage.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet._native import lib
from koordlet.model.pod import HostApp, Pod, PodSet

Key = tuple[int, str, str]
"""(kind, id, cgroup): a container that restarted has another id, so it is another row."""


@dataclass(frozen=True, slots=True)
class Target:
    """kind: KL_ROOT, KL_POD, KL_CONTAINER or KL_HOST of native/table.h.

    ident: pod UID, container id, application name or root path; the id of its series. parent: the pod of a container.
    whole: a pod that is its only container, too.
    """

    kind: int
    ident: str
    cgroup: str
    be: bool = False
    pod: Pod | None = None
    container: str = ""
    parent: Key | None = None
    whole: bool = False

    @property
    def key(self) -> Key:
        return (self.kind, self.ident, self.cgroup)


def wanted_targets(pods: PodSet, host_apps: tuple[HostApp, ...], be_roots: tuple[str, ...]) -> dict[Key, Target]:
    """Every cgroup to watch, pods before their containers. An empty path would be the root cgroup: left out."""
    found = [Target(lib.KL_ROOT, path, path, be=True) for path in be_roots]
    found += [Target(lib.KL_HOST, app.name, app.cgroup, be=app.is_be) for app in host_apps]
    for pod in pods.pods:
        if pod.active and pod.cgroup:
            found += _of_pod(pod)
    return {target.key: target for target in found if target.cgroup}


def _of_pod(pod: Pod) -> list[Target]:
    own = any(pod.directory(container) == pod.cgroup for container in pod.containers)
    whole = Target(lib.KL_POD, pod.uid, pod.cgroup, be=pod.is_be, pod=pod, whole=own)
    containers = [
        Target(
            lib.KL_CONTAINER,
            container.id or f"{pod.uid}/{container.name}",
            container.cgroup,
            be=pod.is_be,
            pod=pod,
            container=container.name,
            parent=whole.key,
        )
        for container in pod.containers
    ]
    return [whole, *containers]
