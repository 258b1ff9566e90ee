"""`Parts`: what the composition root hands to the engine, and what the engine expects of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from koordlet.doors.admission import Inbox
from koordlet.model.blkio import BlockDevices
from koordlet.model.cpuset import CpuSet
from koordlet.model.effect import Applier
from koordlet.model.eviction import Eviction
from koordlet.model.hardware import Hardware
from koordlet.model.knob import Decision
from koordlet.model.pod import HostApp, PodSet, Tree
from koordlet.model.psi import Pressures
from koordlet.model.status import ApplyReport
from koordlet.model.support import Support
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy, Reading, SurgePlan, Usage, WorkloadUsage

NO_BLOCKS = BlockDevices()


class Source(Protocol):
    """Who runs here. `poll` is cheap and never blocks; its PodSet carries revision and age."""

    def poll(self, now_s: float) -> PodSet: ...


class Sense(Protocol):
    def sync(self, pods: PodSet, host_apps: tuple[HostApp, ...], be_roots: tuple[str, ...]) -> None: ...
    def sample(
        self, now_s: float, surge_mcpu: Reading | None = None, ls_pressure_permyriad: Reading | None = None
    ) -> Usage:
        """One pass; what the sentinel saw is handed through."""

    def workloads(self) -> Iterable[WorkloadUsage]: ...
    def find(self, cgroup: str) -> WorkloadUsage | None: ...
    def root_usage(self) -> Iterable[WorkloadUsage]: ...


class BeView(Protocol):
    """Best-effort subtrees: their directories and what their root's knobs say now. anew: doubt what is known."""

    def roots(self, pods: PodSet, now_s: float) -> tuple[tuple[str, Tree], ...]: ...
    def read(self, path: str, tree: Tree, pods: PodSet, now_s: float) -> BeRoot: ...
    def refresh(self, now_s: float, *, anew: bool) -> None: ...


class Watch(Protocol):
    """The sentinel, seen from here."""

    def set_sources(self, be_roots: tuple[str, ...], ls_groups: tuple[str, ...]) -> list[str]: ...
    def set_plan(self, plan: SurgePlan) -> None: ...
    def surge(self) -> tuple[Reading | None, Reading | None]: ...
    def memory(self) -> tuple[Reading | None, Reading | None]: ...
    def take(self) -> bool: ...
    def fileno(self) -> int: ...


class Apply(Protocol):
    def apply(self, by_owner: dict[str, tuple[Decision, ...]], now_s: float) -> ApplyReport: ...


class AnyStrategy(Protocol):
    @property
    def name(self) -> str: ...

    def initial(self) -> Any: ...
    def decide(self, view: NodeView, policy: Policy, state: Any, now_s: float) -> Outcome[Any]: ...


@dataclass(slots=True)
class Parts:
    """What the composition root hands to the engine. inbox: what the runtime's doors bring. on_pods: strategies that
    judge as soon as a door told of a pod. changed: whether any input but use may differ from what it was when this was
    last asked."""

    sources: tuple[Source, ...]
    sense: Sense
    be: BeView
    watch: Watch | None
    act: Apply
    strategies: tuple[AnyStrategy, ...]
    policy: Callable[[float], Policy]
    node: Callable[[float], NodeInfo]
    support: Callable[[float], Support]
    degraded: Callable[[], tuple[str, ...]] = tuple
    notes: Callable[[], tuple[str, ...]] = tuple
    ls_groups: Callable[[PodSet], tuple[str, ...]] = lambda pods: ()
    pressures: Callable[[PodSet, float], Pressures | None] = lambda pods, now_s: None
    appliers: tuple[Applier, ...] = ()
    evictions: Callable[[], Mapping[str, Eviction]] = dict
    inbox: Inbox | None = None
    on_pods: tuple[str, ...] = ("podrules",)
    blocks: Callable[[PodSet, Policy, float], BlockDevices] = lambda pods, policy, now_s: NO_BLOCKS
    hardware: Callable[[PodSet, CpuSet, float], Hardware] = lambda pods, online, now_s: Hardware()
    changed: Callable[[float], bool] = lambda now_s: True
    intervals_s: dict[str, float] = field(default_factory=dict)
    interval_s: float = 1.0
    observe: bool = False
    wall: Callable[[], float] = time.time
