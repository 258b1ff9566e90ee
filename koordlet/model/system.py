"""`systemStrategy` of the NodeSLO: settings of the machine itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemStrategy:
    """None: leave it alone. min_free_factor: 1/10000 of the memory. watermark_scale: 1/10000 of it, too.

    sched_features: (name, on). idle_saver_wmark_ns and the flags of value 0/1: Anolis kernels.
    """

    min_free_factor: int | None = None
    watermark_scale: int | None = None
    memcg_reap: int | None = None
    group_identity: int | None = None
    idle_saver_wmark_ns: int | None = None
    pagecache_limit: int | None = None
    sched_features: tuple[tuple[str, bool], ...] = ()
