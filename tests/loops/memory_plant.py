"""A node's memory in virtual time: an online side that allocates, best-effort pods that want more, and the strategy.

Bytes are percents of the node here (capacity 100 GiB, one percent is 1 GiB). A best-effort pod grows at its rate until
its wish; memory.high on the root and a freeze stop that, page cache above memory.high is dropped, anonymous memory is
not (there is no swap). An evicted pod holds its memory for `grace_s` and is gone then. The kernel kills when nothing is
left. Steps of 50 ms; the sentinel looks at each of them; a tick may lose its sample or see an old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from koordlet.decide.memory_evict import MEMORY_EVICT
from koordlet.model.eviction import Evict, Eviction, EvictState
from koordlet.model.knob import Knob
from koordlet.model.pod import Pod, PodSet, Tree
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy, Reading, Usage, WorkloadUsage
from tests.unit.decide.evict_build import GIB, pod

STEP_S = 0.05
ROOT = "batch"
SUPPORT = Support({Knob.MEMORY_HIGH: Capability(Knob.MEMORY_HIGH, Level.NATIVE, "")})


@dataclass
class BatchPod:
    """anon, wish: percent. rate: percent per second."""

    name: str
    anon: float = 0.0
    wish: float = 100.0
    rate: float = 0.0
    cache: float = 0.0
    priority: int = 5500


@dataclass(frozen=True, slots=True)
class Tick:
    now_s: float
    used: float
    high: float | None
    frozen: bool
    evicted: tuple[str, ...]
    level: int
    outcome: Outcome[Any]


@dataclass
class MemoryPlant:
    """online: percent at a time. lost, late, noise: of a tick's sample. blind: no sample at all in that tick."""

    policy: Policy
    batch: list[BatchPod]
    online: Callable[[float], float] = lambda now_s: 20.0
    noise: Callable[[int], float] = lambda tick: 0.0
    lost: Callable[[int], bool] = lambda tick: False
    late: Callable[[int], int] = lambda tick: 0
    sentinel: bool = True
    grace_s: float = 0.2
    start_s: float = 1000.0
    state: Any = None
    evictions: dict[str, Eviction] = field(default_factory=dict)
    killed_by_kernel: bool = False

    def __post_init__(self) -> None:
        self.now_s = self.start_s
        self.state = MEMORY_EVICT.initial()
        self.high: float | None = None
        self.frozen: set[str] = set()
        self.evicted: list[str] = []
        self.outcome: Outcome[Any] = Outcome((), self.state)
        self._ends: dict[str, float] = {}
        self._samples: list[Reading] = []

    @property
    def elapsed_s(self) -> float:
        return self.now_s - self.start_s

    @property
    def used(self) -> float:
        return self.online(self.elapsed_s) + sum(p.anon for p in self.batch)

    def run(self, seconds: float) -> Iterator[Tick]:
        for tick in range(round(seconds)):
            for step in range(round(1 / STEP_S)):
                self._move()
                plan = self.outcome.plan
                line = None if plan is None else plan.memory_used_bytes
                if self.sentinel and line is not None and step and self.used * GIB > line:
                    yield self._decide(Reading(self.used * GIB, self.now_s))
            if not self.lost(tick):
                self._samples.append(Reading((self.used + self.noise(tick)) * GIB, self.now_s))
            seen = len(self._samples) - 1 - self.late(tick)
            yield self._decide(self._samples[seen] if seen >= 0 else None)

    def _move(self) -> None:
        self.now_s += STEP_S
        for name, end_s in list(self._ends.items()):
            if self.now_s >= end_s:
                self.batch = [p for p in self.batch if p.name != name]
                self.evictions.pop(name, None)
                del self._ends[name]
        for p in self.batch:
            if p.name in self.frozen or p.name in self._ends or p.anon >= p.wish:
                continue
            room = p.wish - p.anon
            if self.high is not None:
                over = sum(q.anon + q.cache for q in self.batch) - self.high
                for q in self.batch:
                    dropped = min(max(over, 0.0), q.cache)
                    q.cache, over = q.cache - dropped, over - dropped
                room = min(room, max(self.high - sum(q.anon + q.cache for q in self.batch), 0.0))
            p.anon += min(p.rate * STEP_S, room)
        if self.used >= 99.5:
            self.killed_by_kernel = True

    def _decide(self, used: Reading | None) -> Tick:
        view = self._view(used)
        self.outcome = outcome = MEMORY_EVICT.decide(view, self.policy, self.state, self.now_s)
        self.state = outcome.state
        wanted = {decision.key: decision.value for decision in outcome.decisions}
        high = wanted.get((ROOT, Knob.MEMORY_HIGH))
        self.high = high / GIB if isinstance(high, int) else None
        self.frozen = {p.name for p in self.batch if wanted.get((f"{ROOT}/{p.name}", Knob.FREEZE)) == 1}
        for effect in outcome.effects:
            if isinstance(effect, Evict) and effect.target not in self.evictions:
                self.evictions[effect.target] = Eviction(effect.target, "", EvictState.ACCEPTED, self.now_s)
                self._ends[effect.target] = self.now_s + self.grace_s
                self.evicted.append(effect.target)
        return Tick(
            self.elapsed_s,
            self.used,
            self.high,
            bool(self.frozen),
            tuple(self.evicted),
            self.state.ladder.level,
            outcome,
        )

    def _view(self, used: Reading | None) -> NodeView:
        pods = tuple(self._pod(p) for p in self.batch)
        anon, cache = sum(p.anon for p in self.batch), sum(p.cache for p in self.batch)
        return NodeView(
            now_s=self.now_s,
            node=NodeInfo("plant", capacity_bytes=100 * GIB),
            usage=Usage(node_memory_bytes=used),
            pods=PodSet(pods, len(self.evicted), self.now_s),
            be_roots=(BeRoot(ROOT, Tree.OURS),),
            support=SUPPORT,
            workloads={
                one.cgroup: self._row(one.cgroup, p.anon, p.cache) for one, p in zip(pods, self.batch, strict=True)
            },
            root_usage={ROOT: self._row(ROOT, anon, cache)},
            evictions=dict(self.evictions),
        )

    def _pod(self, p: BatchPod) -> Pod:
        made = pod(p.name, priority=p.priority)
        return Pod(
            uid=p.name,
            namespace="local",
            name=p.name,
            cgroup=f"{ROOT}/{p.name}",
            kube_qos=made.kube_qos,
            tree=Tree.OURS,
            qos=made.qos,
            priority=p.priority,
        )

    def _row(self, cgroup: str, anon: float, cache: float) -> WorkloadUsage:
        def reading(percent: float) -> Reading:
            return Reading(percent * GIB, self.now_s)

        return WorkloadUsage(
            cgroup,
            cgroup,
            memory_bytes=reading(anon),
            memory_raw_bytes=reading(anon + cache),
            file_bytes=reading(cache),
        )
