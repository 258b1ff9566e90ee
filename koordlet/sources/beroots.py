"""Where best effort begins: the topmost cgroups that hold nothing but best-effort work.

The identity and the cap of best effort are put there, because a weight protects only at the level where best
effort and online groups are siblings (docs/architecture.md).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import Host
from koordlet.kernel.kubepods import Kubepods
from koordlet.model.places import SHARED, inside
from koordlet.model.pod import PodSet, Tree
from koordlet.model.qos import KubeQos

MAX_VISITED: Final = 1024
"""Directories looked at per call; beyond it an ancestor counts as not ours."""


def be_roots(pods: PodSet, kubepods: Kubepods | None, host: Host) -> tuple[tuple[str, Tree], ...]:
    """(path, who else writes there), disjoint and sorted.

    A kubelet's BestEffort directory where kubepods is given. For declared work: each best-effort cgroup, or its
    topmost ancestor below which everything declared is best effort and nothing undeclared runs. A best-effort
    cgroup with declared online work inside is left out: capping it would cap that work.
    """
    roots: list[tuple[str, Tree]] = []
    kube_root = ""
    if kubepods is not None:
        kube_root = kubepods.root()
        roots.append((kubepods.qos_dir(KubeQos.BESTEFFORT), Tree.KUBELET))
    own = [pod for pod in pods.pods if pod.tree is Tree.OURS and pod.cgroup]
    best_effort = {pod.cgroup for pod in own if pod.is_be}
    online = {pod.cgroup for pod in own if not pod.is_be}
    look = _Look(host, best_effort, online | ({kube_root} if kube_root else set()), [MAX_VISITED])
    tops: set[str] = set()
    for path in sorted(best_effort):
        if look.holds_online(path) or any(inside(path, top) for top in tops):
            continue
        top, above = path, _parent(path)
        while above and look.only_best_effort(above):
            top, above = above, _parent(above)
        tops = {other for other in tops if not inside(other, top)} | {top}
    return tuple(sorted([*roots, *((top, Tree.OURS) for top in tops)]))


@dataclass(frozen=True, slots=True)
class _Look:
    host: Host
    best_effort: set[str]
    online: set[str]
    left: list[int]

    def holds_online(self, path: str) -> bool:
        return any(inside(other, path) for other in self.online)

    def only_best_effort(self, path: str) -> bool:
        """Nothing but declared best-effort work may run in or below this cgroup."""
        if path.rpartition("/")[2] in SHARED or self.holds_online(path):
            return False
        if self._has_processes(path):
            return False
        for name in self._children(path):
            child = f"{path}/{name}"
            if child in self.best_effort:
                continue
            leads_on = any(inside(other, child) for other in self.best_effort)
            if not (self.only_best_effort(child) if leads_on else self._is_empty(child)):
                return False
        return True

    def _is_empty(self, path: str) -> bool:
        if self._has_processes(path):
            return False
        return all(self._is_empty(f"{path}/{name}") for name in self._children(path))

    def _has_processes(self, path: str) -> bool:
        self.left[0] -= 1
        if self.left[0] < 0:
            return True
        try:
            with (self.host.dir("cpu", path) / "cgroup.procs").open("rb") as file:
                return bool(file.read(1))
        except OSError as error:
            return not is_gone(error)  # e.g. threaded cgroups on v2: cannot tell, so not ours

    def _children(self, path: str) -> list[str]:
        try:
            with os.scandir(self.host.dir("cpu", path)) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if is_gone(error):
                return []
            raise


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
