"""A node in virtual time: online load, best-effort demand, a sampler that may lose samples, and the strategies.

The plant stands in for everything but decide. BE uses what it wants, what its knobs allow and what the online side
leaves, whichever is least (the online side wins by weight). Time goes in steps of 50 ms; a tick comes each interval
with averages over that interval; between ticks a sentinel looks at a window of 100 ms. What a strategy wants is in
the kernel at once, and what it stops naming is restored to the original, as act does.

    plant = Plant(cores=16, ls=lambda t: 4.0, policy=policy())
    for tick in plant.run(60): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from koordlet.decide.strategies import STRATEGIES
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import PodSet, Tree
from koordlet.model.topology import Topology
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy, Reading, Usage

STEP_S = 0.05
ROOT = "kubepods/besteffort"


@dataclass(frozen=True, slots=True)
class Tick:
    """State after one decision. Cores; allowance None is unlimited. surge: it was a call between two ticks."""

    now_s: float
    allowance: float | None
    ls: float
    be: float
    cpus: CpuSet | None
    quota_us: int
    surge: bool
    outcomes: dict[str, Outcome[Any]]


@dataclass
class Plant:
    """ls: online demand in cores at a time; noise: what the sampler adds to it in that tick; lost: this tick brings
    no new sample; late: intervals by which a tick's sample is older than the tick."""

    cores: int
    ls: Callable[[float], float]
    policy: Policy
    topology: Topology | None = None
    system: float = 0.0
    reserved: float = 0.0
    be_demand: Callable[[float], float] = lambda now_s: 1e9
    noise: Callable[[int], float] = lambda tick: 0.0
    lost: Callable[[int], bool] = lambda tick: False
    late: Callable[[int], int] = lambda tick: 0
    sentinel: bool = True
    interval_s: float = 1.0
    start_s: float = 1000.0
    kernel: dict[tuple[str, Knob], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = CpuSet(range(self.cores))
        self.original = {(ROOT, Knob.CPU_QUOTA): -1, (ROOT, Knob.CPUSET): whole, (ROOT, Knob.CPU_SHARES): 2}
        self.kernel = {**self.original, **self.kernel}
        self.states: dict[str, Any] = {s.name: s.initial() for s in STRATEGIES}
        self.outcomes: dict[str, Outcome[Any]] = {}
        self.now_s = self.start_s
        self._samples: list[Usage] = [Usage()]
        self._window: list[float] = []
        self._facts: tuple[object, ...] = ()

    def run(self, seconds: float) -> Iterator[Tick]:
        """Ticks, and surges between them, over that time."""
        per_tick = round(self.interval_s / STEP_S)
        for tick in range(round(seconds / self.interval_s)):
            ls = be = 0.0
            for step in range(per_tick):
                now_ls, now_be = self.use()
                ls += now_ls / per_tick
                be += now_be / per_tick
                self._window = [*self._window[-1:], now_ls + self.system]
                self.now_s += STEP_S
                if step < per_tick - 1 and self._surging():
                    yield self._decide(self._samples[-1], surge=True)
            if not self.lost(tick):
                self._samples.append(self._sample(max(ls + self.noise(tick), 0.0), be))
            seen = max(len(self._samples) - 1 - self.late(tick), 0)
            yield self._decide(self._samples[seen], surge=False)

    def use(self) -> tuple[float, float]:
        """What the online side and BE use now."""
        ls = min(self.ls(self.now_s - self.start_s), self.cores - self.system)
        left = max(self.cores - ls - self.system, 0.0)
        allowed = self.allowance
        be = min(self.be_demand(self.now_s - self.start_s), left, left if allowed is None else allowed)
        return ls, be

    @property
    def allowance(self) -> float | None:
        """Cores that the kernel's knobs let BE use, None when it is not limited."""
        quota = self.kernel[ROOT, Knob.CPU_QUOTA]
        cpus = len(self.kernel[ROOT, Knob.CPUSET])
        limits = ([quota / 100_000] if quota >= 0 else []) + ([float(cpus)] if cpus < self.cores else [])
        return min(limits, default=None)

    def _sample(self, ls: float, be: float) -> Usage:
        def reading(cores: float) -> Reading:
            return Reading(cores * 1000, self.now_s)

        return Usage(
            node_mcpu=reading(ls + be + self.system),
            pods_mcpu=reading(ls + be),
            nonbe_pods_mcpu=reading(ls),
            be_mcpu=reading(be),
            system_mcpu=reading(self.system),
        )

    def _surging(self) -> bool:
        plans = [outcome.plan for outcome in self.outcomes.values() if outcome.plan is not None]
        window_mcpu = sum(self._window) / len(self._window) * 1000
        return self.sentinel and any(p.nonbe_mcpu is not None and window_mcpu > p.nonbe_mcpu for p in plans)

    def _decide(self, usage: Usage, surge: bool) -> Tick:
        if self.sentinel:
            window = sum(self._window) / len(self._window)
            usage = replace(usage, surge_mcpu=Reading(window * 1000, self.now_s))
        view = self._view(usage)
        facts = (self.policy, *view.facts())
        for strategy in STRATEGIES:
            outcome = strategy.decide(view, self.policy, self.states[strategy.name], self.now_s)
            check_promise(self.outcomes.get(strategy.name), outcome, facts == self._facts, self.now_s)
            self.states[strategy.name] = outcome.state
            self.outcomes[strategy.name] = outcome
        self._facts = facts
        self._apply([d for outcome in self.outcomes.values() for d in outcome.decisions])
        ls, be = self.use()
        return Tick(
            now_s=self.now_s - self.start_s,
            allowance=self.allowance,
            ls=ls,
            be=be,
            cpus=self.kernel[ROOT, Knob.CPUSET],
            quota_us=self.kernel[ROOT, Knob.CPU_QUOTA],
            surge=surge,
            outcomes=dict(self.outcomes),
        )

    def _view(self, usage: Usage) -> NodeView:
        root = BeRoot(
            path=ROOT,
            tree=Tree.KUBELET,
            levels=((ROOT,), (), ()),
            quota_us=self.kernel[ROOT, Knob.CPU_QUOTA],
            period_us=100_000,
            cpuset=self.kernel[ROOT, Knob.CPUSET],
            shares=self.kernel[ROOT, Knob.CPU_SHARES],
        )
        node = NodeInfo(
            name="plant",
            capacity_mcpu=self.cores * 1000,
            reserved_mcpu=int(self.reserved * 1000),
            topology=self.topology,
        )
        return NodeView(
            now_s=self.now_s,
            interval_s=self.interval_s,
            node=node,
            usage=usage,
            pods=PodSet((), 1, self.now_s),
            be_roots=(root,),
        )

    def _apply(self, decisions: list[Decision]) -> None:
        wanted = {decision.key: decision.value for decision in decisions}
        self.kernel = {key: wanted.get(key, original) for key, original in self.original.items()}


def check_promise(before: Outcome[Any] | None, now: Outcome[Any], same_facts: bool, now_s: float) -> None:
    """The loop does not ask a strategy again that said how long its answer holds; so it must hold."""
    if before is not None and same_facts and now_s < before.until_s:
        assert (before.decisions, before.effects, before.plan) == (now.decisions, now.effects, now.plan)
        assert before.gauges == now.gauges
