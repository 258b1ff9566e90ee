"""`Evict`, the wish to end a pod, and `Eviction`, what became of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from koordlet.model.effect import Effect
from koordlet.model.pod import Tree


@dataclass(frozen=True, slots=True)
class Evict(Effect):
    """target: the pod's uid. feature: the reason, one of the eviction gates' names.

    parts: cgroups of its containers, to be ended instead of the pod's own with the sandbox in it. containers: the
    runtime's full ids of them ("containerd://...").
    release: (resource, amount) that its end gives back, milli-CPU or bytes.
    """

    kind: ClassVar[str] = "evict"
    namespace: str = ""
    name: str = ""
    cgroup: str = ""
    tree: Tree = Tree.KUBELET
    parts: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    feature: str = ""
    release: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class EvictState(StrEnum):
    ASKED = "asked"  # on its way, no answer yet
    ACCEPTED = "accepted"  # the pod is ending
    REFUSED = "refused"  # a disruption budget, an error; not tried again before retry_at_s
    DONE = "done"  # nothing of it runs any more; spared until retry_at_s, should it come back
    OBSERVED = "observed"  # --observe: would have been evicted


@dataclass(frozen=True, slots=True)
class Eviction:
    """uid of the pod. since_s, retry_at_s: monotonic. error: why it was refused."""

    uid: str
    feature: str
    state: EvictState
    since_s: float
    retry_at_s: float = 0.0
    error: str = ""

    @property
    def pending(self) -> bool:
        """What it holds will be free soon."""
        return self.state in (EvictState.ASKED, EvictState.ACCEPTED, EvictState.OBSERVED)
