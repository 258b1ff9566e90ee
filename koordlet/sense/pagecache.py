"""Memory with page cache of node, system, pods and host applications, into the rings, while a NodeMetric asks for it;
and, where it asks for that and the kernel counts idle pages, the same without the cold part of the cache.

Its parts come round every 10 s anyway, so that often a sample is taken. Of pods anonymous memory and file pages, of
host applications all that the kernel charges (spec/collect 2.7, 2.9); system is the node's less all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from koordlet._native import lib
from koordlet.kernel import kidled
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import Host
from koordlet.sense.targets import Target

if TYPE_CHECKING:
    from koordlet._native import CData

log = structlog.get_logger(__name__)

STEP_S: Final = 10.0
MAX_AGE_S: Final = 30.0
CACHED: Final = "memory_cached"
HOT: Final = "memory_hot"
_KINDS: Final = {lib.KL_POD: "pod", lib.KL_HOST: "host"}


class Rings(Protocol):
    def open(self, kind: str, ident: str, metric: str) -> int: ...
    def push(self, series: int, at_s: float, value: float) -> None: ...


class PageCacheMeter:
    """One thread."""

    def __init__(self, host: Host, rings: Rings) -> None:
        self._host, self._rings = host, rings
        self._next_s = float("-inf")
        self._fault = ""

    def step(
        self, rows: Iterable[tuple[Target, CData | None]], node_bytes: int | None, now_s: float, *, hot: bool = False
    ) -> None:
        """rows: as Rows.items(); node_bytes: MemTotal - MemFree, None while unknown. hot: cold pages are wanted, too.
        Cheap while it is not due."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + STEP_S
        node_cold = self._cold("") if hot else None
        whole, whole_hot = 0.0, 0.0 if node_cold is not None else None
        for target, row in rows:
            kind = _KINDS.get(target.kind)
            if kind is None or row is None:
                continue
            at_ns, value = (row.memory_ns, row.memory_cached) if kind == "pod" else (row.raw_ns, row.raw)
            if at_ns == lib.KL_NEVER or now_s - at_ns / 1e9 > MAX_AGE_S:
                continue
            whole += value
            self._push(kind, target.ident, CACHED, float(value), now_s)
            cold = self._cold(target.cgroup) if node_cold is not None else None
            if cold is not None:
                used = max(float(value) - cold, 0.0)
                self._push(kind, target.ident, HOT, used, now_s)
                whole_hot = None if whole_hot is None else whole_hot + used
            else:
                whole_hot = None  # the system would get what is one of theirs
        self._node(CACHED, node_bytes, whole, now_s)
        if node_bytes is not None and node_cold is not None and whole_hot is not None:
            self._node(HOT, max(node_bytes - node_cold, 0), whole_hot, now_s)

    def _node(self, metric: str, node_bytes: int | None, whole: float, now_s: float) -> None:
        if node_bytes is not None:
            self._push("node", "", metric, float(node_bytes), now_s)
            self._push("system", "", metric, max(node_bytes - whole, 0.0), now_s)

    def _cold(self, cgroup: str) -> int | None:
        """None where it is not known; a fault other than "not there" is said once."""
        try:
            return kidled.read_cold_bytes(self._host, cgroup)
        except FileNotFoundError:
            return None
        except (OSError, KernelFileError) as error:
            if not self._fault:
                self._fault = str(error)
                log.warning("coldpages.unreadable", error=self._fault)
            return None

    def _push(self, kind: str, ident: str, metric: str, value: float, now_s: float) -> None:
        self._rings.push(self._rings.open(kind, ident, metric), now_s, value)
