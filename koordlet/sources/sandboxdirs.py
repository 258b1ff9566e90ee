"""Which directory below a kubelet pod's is its sandbox's (the pause process): the one that no container has.

No answer of a kubelet names it; the reference finds it in the same way (spec/hooks 3.2).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from koordlet.kernel.host import Host
from koordlet.model.pod import Pod

TRIES: Final = 3
"""Answers in which a pod that stays as it is gets looked at; one that changes is looked at anew."""


@dataclass(frozen=True, slots=True)
class _Seen:
    pod: Pod
    filled: Pod
    tries: int


class SandboxDirs:
    """names: of the directories below a pod's, () when it cannot be listed."""

    def __init__(self, names: Callable[[str], Iterable[str]]) -> None:
        self._names = names
        self._seen: dict[str, _Seen] = {}

    def filled(self, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        """The pods with `sandbox_cgroup`; the same objects for pods that are the same objects as before."""
        self._seen = {pod.uid: self._look(pod, self._seen.get(pod.uid)) for pod in pods}
        return tuple(self._seen[pod.uid].filled for pod in pods)

    def _look(self, pod: Pod, before: _Seen | None) -> _Seen:
        tries = 1
        if before is not None and before.pod is pod:
            if before.filled.sandbox_cgroup or before.tries >= TRIES:
                return before
            tries = before.tries + 1
        found = self._find(pod, before.filled.sandbox_cgroup if before is not None else "")
        return _Seen(pod, replace(pod, sandbox_cgroup=found) if found else pod, tries)

    def _find(self, pod: Pod, known: str) -> str:
        """ "" while it is not clear. While a container starts, its directory is there before its id is told."""
        if not pod.active or not any(container.cgroup for container in pod.containers):
            return ""
        containers = {container.cgroup.rpartition("/")[2] for container in pod.containers}
        left = {f"{pod.cgroup}/{name}" for name in self._names(pod.cgroup) if name not in containers and _may_be(name)}
        if known in left:
            return known
        return left.pop() if len(left) == 1 else ""


def subdirectories(host: Host, cgroup: str) -> tuple[str, ...]:
    """Names of the directories in a cgroup's, where CPUs are assigned; () when it is gone."""
    try:
        with os.scandir(host.dir("cpuset", cgroup)) as entries:
            return tuple(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return ()


def _may_be(name: str) -> bool:
    """CRI-O's scopes are monitors."""
    return not (name.startswith("crio-") and name.endswith(".scope"))
