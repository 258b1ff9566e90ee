"""An API object as its readers want it, with the manners of a followed file (config/reload.py).

An object that is not valid leaves the previous value in force and says so; a deleted one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog

from koordlet.config.errors import PolicyError
from koordlet.config.nodefile import NodeFile, check_node
from koordlet.config.nodeslo import HostAppDir, LoadedPolicy, load_spec
from koordlet.config.schema import At
from koordlet.kube.informer import Informer
from koordlet.kube.objects import NodeObject, SloObject

log = structlog.get_logger(__name__)
S = TypeVar("S")
T = TypeVar("T")


class Followed(Generic[S, T]):
    """read: raises PolicyError. value: the last good one, `initial` before the first; seen: whether there was one.
    also: what else read depends on; when that changes the object is read again. failures counts refused objects."""

    def __init__(
        self,
        informer: Informer[S],
        read: Callable[[S], T],
        initial: T,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        self.value = initial
        self.seen = False
        self.failures = 0
        self._informer, self._read, self._also = informer, read, also
        self._taken: tuple[int, object] = (0, None)
        self._error = ""

    def poll(self, now_s: float) -> bool:
        """Look once; True when value was swapped for a different one."""
        taken = (self._informer.revision, self._also())
        if taken == self._taken:
            return False
        self._taken = taken
        found = self._informer.value
        if found is None:
            return False
        try:
            value = self._read(found)
        except PolicyError as error:
            self.failures += 1
            self._error = str(error)
            log.error("object.refused", path=self._informer.path, error=str(error))
            return False
        self._error = ""
        changed = value != self.value or not self.seen
        self.value, self.seen = value, True
        return changed

    @property
    def error(self) -> str:
        return self._error or self._informer.error


def follow_node(informer: Informer[NodeObject]) -> Followed[NodeObject, NodeFile]:
    """Node facts of the Node object."""

    def read(node: NodeObject) -> NodeFile:
        document: dict[str, Any] = {
            "metadata": {
                "name": node.metadata.name,
                "labels": node.metadata.labels or {},
                "annotations": node.metadata.annotations or {},
            },
            "status": {"capacity": node.status.capacity or {}, "allocatable": node.status.allocatable or {}},
        }
        return NodeFile(check_node(document, At(f"Node {node.metadata.name}")))

    return Followed(informer, read, NodeFile())


def follow_policy(
    informer: Informer[SloObject], host_app_dir: HostAppDir, kubepods: Callable[[], object]
) -> Followed[SloObject, LoadedPolicy | None]:
    """The effective NodeSLO. kubepods: the kubelet's directories, on which host applications may depend."""

    def read(found: SloObject) -> LoadedPolicy:
        return load_spec(found.spec, host_app_dir, At(f"NodeSLO {found.metadata.name}"))

    return Followed(informer, read, None, kubepods)
