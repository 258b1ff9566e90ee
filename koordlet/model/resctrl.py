"""Cache and memory-bandwidth partitioning: what the machine offers, who shall have what, what was measured. Pure.

Masks are integers (bit n = way n), bandwidth is in the unit of its line, bytes are bytes, rates bytes per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from koordlet.model.effect import Effect

POD_PREFIX = "koordlet-"
"""Groups of this name are ours: `koordlet-<pod uid>`."""
CLASS_GROUPS = ("LSR", "LS", "BE")
"""Names of the class groups, as the reference has them."""


class BandwidthUnit(StrEnum):
    """What a number on a bandwidth line means."""

    PERCENT = "percent"
    EIGHTH_GBPS = "1/8 GB/s"  # AMD; the largest value is "unlimited"
    MBPS = "MBps"  # mounted with mba_MBps: a target in MiB/s, for which a percentage says nothing


@dataclass(frozen=True, slots=True)
class CacheLine:
    """A schemata line of cache masks: L3, L2, or with CDP a half of one (L3CODE, L3DATA).

    ids: cache instances, which may have gaps. full: the longest mask. shareable: ways that devices use as well.
    sparse: masks with holes are allowed.
    """

    name: str
    ids: tuple[int, ...]
    full: int
    min_bits: int = 1
    shareable: int = 0
    sparse: bool = False

    @property
    def ways(self) -> int:
        return self.full.bit_length()


@dataclass(frozen=True, slots=True)
class BandwidthLine:
    """A schemata line of bandwidths: MB, or SMBA (AMD, slow memory)."""

    name: str
    ids: tuple[int, ...]
    unit: BandwidthUnit = BandwidthUnit.PERCENT
    minimum: int = 10
    step: int = 10
    full: int = 100


@dataclass(frozen=True, slots=True)
class Monitoring:
    """events: llc_occupancy, mbm_total_bytes, mbm_local_bytes, as far as the machine has them."""

    rmids: int
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resctrl:
    """A mounted resctrl. classes: how many control groups there can be, the root's included (0: monitoring only).

    foreign: directories of others; each has a class or at least a monitoring id of its own. foreign_rmids: how many.
    """

    caches: tuple[CacheLine, ...] = ()
    bandwidths: tuple[BandwidthLine, ...] = ()
    classes: int = 0
    monitoring: Monitoring | None = None
    foreign: tuple[str, ...] = ()
    foreign_rmids: int = 0

    @property
    def shared_cache(self) -> tuple[CacheLine, ...]:
        """The lines that a percentage of "the cache" means: L3, or L2 where only that can be partitioned."""
        for level in ("L3", "L2"):
            found = tuple(line for line in self.caches if line.name.startswith(level))
            if found:
                return found
        return ()

    @property
    def bandwidth(self) -> BandwidthLine | None:
        return next((line for line in self.bandwidths if line.name == "MB"), None)


@dataclass(frozen=True, slots=True)
class PodTasks:
    """A pod whose tasks belong to a group: everything in and below `cgroup`. containers: ids of those that run; a new
    one brings tasks from outside. monitored: it shall have a monitoring group of its own."""

    uid: str
    cgroup: str
    containers: tuple[str, ...] = ()
    monitored: bool = False


@dataclass(frozen=True, slots=True)
class ResctrlGroup(Effect):
    """target: the group's directory name; "" is the root, of which only the pods' monitoring is ours.

    schemata: lines as they are written, each stands alone. fallback: group whose limits the pods get when this one
    cannot be made ("" for the root).
    """

    kind: ClassVar[str] = "resctrl"
    schemata: tuple[str, ...] = ()
    pods: tuple[PodTasks, ...] = ()
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """Percent of the ways, start < end."""

    start_percent: int
    end_percent: int


@dataclass(frozen=True, slots=True)
class PodResctrl:
    """A pod's own wish (annotation node.koordinator.sh/resctrl). None: not said. per_cache: cache id -> other value."""

    llc: Range | None = None
    llc_per_cache: tuple[tuple[int, Range], ...] = ()
    mb_percent: int | None = None
    mb_per_cache: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DomainReading:
    """One group on one L3 (or one SNC node of it). None: the counter said nothing usable. Rates need two readings."""

    llc_bytes: int | None = None
    total_bytes: int | None = None
    local_bytes: int | None = None
    total_rate: float | None = None
    local_rate: float | None = None


@dataclass(frozen=True, slots=True)
class GroupReading:
    """domains: by cache id. nodes: by SNC node, empty where a cache is one NUMA node."""

    at_s: float
    domains: Mapping[int, DomainReading] = field(default_factory=dict)
    nodes: Mapping[int, DomainReading] = field(default_factory=dict)

    @property
    def llc_bytes(self) -> int | None:
        return _sum(row.llc_bytes for row in self.domains.values())

    @property
    def total_rate(self) -> float | None:
        return _sum(row.total_rate for row in self.domains.values())


@dataclass(frozen=True, slots=True)
class CacheReadings:
    """classes: by class group name, "root" for the rest. pods: by uid."""

    at_s: float
    classes: Mapping[str, GroupReading] = field(default_factory=dict)
    pods: Mapping[str, GroupReading] = field(default_factory=dict)


def _sum(values: object) -> int | None:
    """Of all that are there; None when none is."""
    found = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return sum(found) if found else None
