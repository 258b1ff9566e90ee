"""Memory with page cache of node, system, pods and host applications, into the rings, while a NodeMetric asks for it.

Its parts come round every 10 s anyway, so that often a sample is taken. Of pods anonymous memory and file pages, of
host applications all that the kernel charges (spec/collect 2.7, 2.9); system is the node's less all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from koordlet._native import lib
from koordlet.sense.targets import Target

if TYPE_CHECKING:
    from koordlet._native import CData

STEP_S: Final = 10.0
MAX_AGE_S: Final = 30.0
METRIC: Final = "memory_cached"
_KINDS: Final = {lib.KL_POD: "pod", lib.KL_HOST: "host"}


class Rings(Protocol):
    def open(self, kind: str, ident: str, metric: str) -> int: ...
    def push(self, series: int, at_s: float, value: float) -> None: ...


class PageCacheMeter:
    """One thread."""

    def __init__(self, rings: Rings) -> None:
        self._rings = rings
        self._next_s = float("-inf")

    def step(self, rows: Iterable[tuple[Target, CData | None]], node_bytes: int | None, now_s: float) -> None:
        """rows: as Rows.items(); node_bytes: MemTotal - MemFree, None while unknown. Cheap while it is not due."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + STEP_S
        whole = 0.0
        for target, row in rows:
            kind = _KINDS.get(target.kind)
            if kind is None or row is None:
                continue
            at_ns, value = (row.memory_ns, row.memory_cached) if kind == "pod" else (row.raw_ns, row.raw)
            if at_ns != lib.KL_NEVER and now_s - at_ns / 1e9 <= MAX_AGE_S:
                whole += value
                self._push(kind, target.ident, float(value), now_s)
        if node_bytes is not None:
            self._push("node", "", float(node_bytes), now_s)
            self._push("system", "", max(node_bytes - whole, 0.0), now_s)

    def _push(self, kind: str, ident: str, value: float, now_s: float) -> None:
        self._rings.push(self._rings.open(kind, ident, METRIC), now_s, value)
