"""Memory QoS: `memoryQOS` of the classes and a pod's own wishes (annotation `koordinator.sh/memoryQOS`). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class MemoryQos:
    """Percents are of the request (min, low), of the way from request to limit (throttling) or of the limit (wmark,
    page cache). None: not said, and then not written."""

    min_percent: int | None = None
    low_percent: int | None = None
    throttling_percent: int | None = None
    wmark_ratio: int | None = None
    wmark_scale_permill: int | None = None
    wmark_min_adj: int | None = None
    priority_enable: int | None = None
    priority: int | None = None
    oom_kill_group: int | None = None
    pagecache_enable: bool | None = None
    pagecache_percent: int | None = None
    pagecache_bytes: int | None = None
    pagecache_sync: bool | None = None

    def under(self, top: MemoryQos) -> MemoryQos:
        """Another's fields over these."""
        given = {f.name: value for f in fields(top) if (value := getattr(top, f.name)) is not None}
        return replace(self, **given)


@dataclass(frozen=True, slots=True)
class MemoryClass:
    """A class of the NodeSLO; qos is neutral while it is not enabled."""

    enable: bool = False
    qos: MemoryQos = field(default_factory=MemoryQos)


@dataclass(frozen=True, slots=True)
class MemoryClasses:
    """By QoS class; LSE counts as LSR."""

    lsr: MemoryClass = field(default_factory=MemoryClass)
    ls: MemoryClass = field(default_factory=MemoryClass)
    be: MemoryClass = field(default_factory=MemoryClass)
    system: MemoryClass = field(default_factory=MemoryClass)


class MemoryPolicy(StrEnum):
    DEFAULT = "default"
    NONE = "none"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """A pod's wishes: where to start from, and its own fields over that."""

    policy: MemoryPolicy = MemoryPolicy.DEFAULT
    qos: MemoryQos = field(default_factory=MemoryQos)


def _recommended(ratio: int, scale: int, adjust: int) -> MemoryQos:
    return MemoryQos(0, 0, 0, ratio, scale, adjust, 0, 0, 0)


RECOMMENDED: Final = {
    "LSR": _recommended(95, 20, -25),
    "LS": _recommended(95, 20, -25),
    "BE": _recommended(95, 20, 50),
    "SYSTEM": _recommended(0, 50, 0),
}
"""What a pod of policy `auto` starts from, whatever the node says (spec/qos 1.3)."""
