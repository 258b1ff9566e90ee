"""What the pod rules want done that is no cgroup file: process attributes, network classes, files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from koordlet.model.effect import Effect


@dataclass(frozen=True, slots=True)
class OomScore(Effect):
    """target: a container's cgroup, all of whose processes get the score."""

    kind: ClassVar[str] = "oom_score_adj"
    score: int


@dataclass(frozen=True, slots=True)
class CoreCookie(Effect):
    """target: a container's cgroup, whose threads share cores only with those of the same group."""

    kind: ClassVar[str] = "core_sched"
    group: str


@dataclass(frozen=True, slots=True)
class NetworkClass(Effect):
    """A rate for part of the node's egress. target: "root", "system", "ls" or "be". Bits per second."""

    kind: ClassVar[str] = "network"
    rate_bps: int
    ceil_bps: int


@dataclass(frozen=True, slots=True)
class PodNetwork(Effect):
    """target: a pod's uid. parent: the class that its packets belong to. ips: its IPv4 addresses; () for a pod on the
    host's network, which is known by its cgroup. egress_bps, ingress_bps: its own limits, None for none."""

    kind: ClassVar[str] = "network"
    cgroup: str
    parent: str
    ips: tuple[str, ...]
    egress_bps: int | None = None
    ingress_bps: int | None = None


@dataclass(frozen=True, slots=True)
class TerwayFile(Effect):
    """target: a file's name in Terway's directory."""

    kind: ClassVar[str] = "terway"
    content: str
