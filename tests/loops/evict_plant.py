"""The plant of plant.py with best-effort pods that want CPU, and their eviction. Amounts are cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from koordlet.model.eviction import Evict, Eviction, EvictState
from koordlet.model.pod import Pod, PodSet
from koordlet.model.view import NodeView, Reading, Usage, WorkloadUsage
from tests.loops.plant import Plant, Tick
from tests.unit.decide.evict_build import pod


@dataclass(frozen=True, slots=True)
class Job:
    """A best-effort pod: what it requests, and what it would use."""

    name: str
    request: float
    demand: float


@dataclass(frozen=True, slots=True)
class Round:
    """New victims of one decision, and the newest sample known to it: its age, and whether best effort was in it."""

    now_s: float
    names: tuple[str, ...]
    age_s: float
    known: bool


@dataclass
class EvictPlant(Plant):
    """absent: this tick's sample has no figure of best effort. An evicted pod runs on for grace_s."""

    jobs: list[Job] = field(default_factory=list)
    absent: Callable[[int], bool] = lambda tick: False
    grace_s: float = 1.0
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.be_demand = lambda now_s: sum(job.demand for job in self.jobs)
        self._evictions: dict[str, Eviction] = {}
        self._ends: dict[str, float] = {}
        self._revision = 1
        self._pods: dict[str, Pod] = {}

    @property
    def evicted(self) -> list[str]:
        return [name for one in self.rounds for name in one.names]

    @property
    def requested(self) -> float:
        return sum(job.request for job in self.jobs)

    def _sample(self, ls: float, be: float) -> Usage:
        usage = super()._sample(ls, be)
        return replace(usage, be_mcpu=None) if self.absent(len(self._samples)) else usage

    def _view(self, usage: Usage) -> NodeView:
        for job in self.jobs:
            if job.name not in self._pods:
                self._pods[job.name] = pod(job.name, batch=round(job.request * 1000))
        pods = tuple(self._pods[job.name] for job in self.jobs)
        wanted = sum(job.demand for job in self.jobs) or 1.0
        be = self.use()[1]
        rows = {
            one.cgroup: WorkloadUsage(
                one.key, one.cgroup, one, cpu_mcpu=Reading(be * job.demand / wanted * 1000, self.now_s)
            )
            for one, job in zip(pods, self.jobs, strict=True)
        }
        view = super()._view(usage)
        return replace(
            view, pods=PodSet(pods, self._revision, self.now_s), workloads=rows, evictions=dict(self._evictions)
        )

    def _decide(self, usage: Usage, surge: bool) -> Tick:
        ended = {name for name, end_s in self._ends.items() if self.now_s >= end_s}
        if ended:
            self.jobs = [job for job in self.jobs if job.name not in ended]
            self._evictions = {name: e for name, e in self._evictions.items() if name not in ended}
            self._ends = {name: end_s for name, end_s in self._ends.items() if name not in ended}
            self._revision += 1
        tick = super()._decide(usage, surge)
        new = [name for name in _wanted(tick.outcomes["cpu_evict"]) if name not in self._evictions]
        for name in new:
            self._evictions[name] = Eviction(name, "", EvictState.ACCEPTED, self.now_s)
            self._ends[name] = self.now_s + self.grace_s
        if new:
            last = tick.outcomes["cpu_evict"].state.samples[-1]  # a late sample may come after a younger one
            self.rounds.append(Round(tick.now_s, tuple(new), self.now_s - last.at_s, last.be_mcpu is not None))
        return tick


def _wanted(outcome: Any) -> list[str]:
    return [effect.target for effect in outcome.effects if isinstance(effect, Evict)]
