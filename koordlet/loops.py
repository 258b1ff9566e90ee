"""When each thing runs: the fixed-rate tick, the sentinel's wake-ups between ticks, isolation of failures.

The engine knows no clock and no thread of its own: `Engine.tick(now_s)` and `Engine.surge(now_s)` do one round for the
moment they are given, so tests drive them in virtual time. `run` is the only part that waits.

Longer than our other files: a tick, a surge and what comes between two ticks work on one state and are read together.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from koordlet.decide.podrules.resize import OWNER as AHEAD
from koordlet.doors.admission import OWNER, Admitted
from koordlet.model.effect import Applier, Effect, EffectReport
from koordlet.model.eviction import Evict
from koordlet.model.knob import Decision
from koordlet.model.pod import NO_CLAIM, Pod, PodSet
from koordlet.model.status import ApplyReport, Snapshot, TickStats
from koordlet.model.view import NodeView, Outcome, Policy, SurgePlan, Usage, WorkloadUsage
from koordlet.parts import AnyStrategy, Parts, Watch
from koordlet.sense.lazy import LazyWorkloads
from koordlet.sources.merge import merge_pods

log = structlog.get_logger(__name__)

NOTE_EVERY_S = 60.0
MAX_FAILED_TICKS = 5
"""Shorter than it takes until a watchdog would end the process without giving anything back."""
LOOK_EVERY_S = 5.0
"""Between two looks at all inputs, at the longest; sooner when one of them changed."""
SOURCES_EVERY_S = 10.0
"""The sentinel's descriptors may have gone stale: a cgroup was made anew under the same path."""


def _with_memory(usage: Usage, watch: Watch) -> Usage:
    """What the sentinel saw of memory, where it is younger than the pass."""
    used, pressure = watch.memory()
    known = usage.node_memory_bytes
    if used is not None and (known is None or used.at_s > known.at_s):
        usage = replace(usage, node_memory_bytes=used)
    return usage if pressure is None else replace(usage, memory_pressure_permyriad=pressure)


class Engine:
    """One node's sense -> store -> decide -> act -> report, a round at a time."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.lock = threading.Lock()
        self.snapshot: Snapshot | None = None
        self.stats = TickStats()
        self._states = {s.name: s.initial() for s in parts.strategies}
        self._outcomes: dict[str, Outcome[Any]] = {}
        self._wishes: dict[str, tuple[Decision, ...]] = {}
        self._due: dict[str, float] = {}
        self._facts: tuple[object, ...] = ()
        self._settled: set[str] = set()
        self._pods = PodSet()
        self._revisions: tuple[int, ...] = ()
        self._merged: tuple[Pod, ...] = ()
        self._seen: tuple[object, ...] = ()
        self._sources_due_s = 0.0
        self._view: NodeView | None = None
        self._policy = Policy()
        self._look_due_s = 0.0
        self._notes: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        self._effects: dict[str, EffectReport] = {}
        self._carried: dict[str, tuple[Effect, ...]] = {}
        self._admitted = Admitted()
        # A refused write may be due to a group below a BE root that we do not know yet (EBUSY, EINVAL on v1).
        self._doubt = False

    def tick(self, now_s: float) -> Snapshot:
        """One full round. A failing strategy keeps its previous decisions; the others' tick goes on."""
        started = time.perf_counter()
        news = self._take_in(now_s)
        with self.lock:
            view = self._look(now_s) if news else self._glance(now_s) or self._look(now_s)
        policy = self._policy
        if (facts := (policy, *view.facts())) != self._facts:
            self._facts = facts
            self._settled.clear()
        soon_s = now_s + 0.5 * self.parts.interval_s
        for strategy in self.parts.strategies:
            name = strategy.name
            if name in self._settled and now_s < self._outcomes[name].until_s:
                continue
            if soon_s >= self._due.get(name, now_s):
                self._due[name] = now_s + self.parts.intervals_s.get(name, self.parts.interval_s)
                self._decide(strategy, view, policy, now_s)
        report = self._apply(now_s)
        self._doubt = report.failed > 0
        self.stats = TickStats(
            ticks=self.stats.ticks + 1,
            overruns=self.stats.overruns,
            last_ms=(time.perf_counter() - started) * 1e3,
            surges=self.stats.surges,
            strategy_errors=dict(self._errors),
        )
        return self._publish(view, report)

    def surge(self, now_s: float) -> Snapshot | None:
        """The short path: judge again with what the sentinel saw, without reading the workloads."""
        if self._view is None or self.parts.watch is None:
            return None
        nonbe, pressure = self.parts.watch.surge()
        usage = replace(self._view.usage, surge_mcpu=nonbe, ls_pressure_permyriad=pressure)
        usage = _with_memory(usage, self.parts.watch)
        roots = tuple(self.parts.be.read(root.path, root.tree, self._pods, now_s) for root in self._view.be_roots)
        view = replace(self._view, now_s=now_s, usage=usage, be_roots=roots, evictions=self.parts.evictions())
        policy = self.parts.policy(now_s)
        for strategy in self.parts.strategies:
            outcome = self._outcomes.get(strategy.name)
            if outcome is not None and outcome.plan is not None:
                self._decide(strategy, view, policy, now_s)
        report = self._apply(now_s)
        self._doubt |= report.failed > 0
        self.stats = replace(self.stats, surges=self.stats.surges + 1)
        return self._publish(view, report)

    def between_writes(self, now_s: float) -> None:
        """Amid a pass of writes, which takes long where many files change or the kernel is busy: memory that runs out
        meanwhile does not wait for the rest of them. Only evictions are carried out now; other wishes come next."""
        watch = self.parts.watch
        if watch is None or self._view is None or not watch.take():
            return
        view = replace(self._view, now_s=now_s, usage=_with_memory(self._view.usage, watch))
        view = replace(view, evictions=self.parts.evictions())
        policy = self.parts.policy(now_s)
        for strategy in self.parts.strategies:
            outcome = self._outcomes.get(strategy.name)
            if outcome is not None and outcome.plan is not None and outcome.plan.memory_used_bytes is not None:
                self._decide(strategy, view, policy, now_s)
        effects = self._wanted(now_s)
        for applier in self.parts.appliers:
            if applier.kind == Evict.kind:
                self._carry_out(applier, effects, now_s)
        self._set_plan()  # what else has fired fires again

    def admit(self, now_s: float) -> Snapshot | None:
        """A door told something: write what its answers want, without a sample; after news judge all pods."""
        news = self._take_in(now_s)
        if self._view is None:
            return None
        return self._between(self._view, self._poll(now_s) if news else self._pods, now_s)

    def arrivals(self, now_s: float) -> Snapshot | None:
        """A source may have news between two ticks: judge its pods when it has, else None."""
        if self._view is None or (pods := self._poll(now_s)).revision == self._pods.revision:
            return None
        return self._between(self._view, pods, now_s)

    def _between(self, view: NodeView, pods: PodSet, now_s: float) -> Snapshot:
        if pods.revision != self._pods.revision:
            self._pods = pods
            self._view = view = replace(view, now_s=now_s, pods=pods)
            self._look_due_s = now_s
            policy = self.parts.policy(now_s)
            for strategy in self.parts.strategies:
                if strategy.name in self.parts.on_pods:
                    self._decide(strategy, view, policy, now_s)
        report = self._apply(now_s)
        self._doubt |= report.failed > 0
        return self._publish(view, report)

    def _take_in(self, now_s: float) -> bool:
        if self.parts.inbox is None:
            return False
        decisions, effects, news = self.parts.inbox.take()
        self._admitted.expire(now_s)
        self._admitted.add(decisions, effects, now_s)
        return news

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Those of the round under way, on the loop's thread."""
        return self._pods.pods

    def latest(self) -> tuple[Snapshot | None, list[WorkloadUsage]]:
        """The last snapshot and a row of every workload, for whoever asks from another thread. Usage and rows are of
        one pass: amid a tick, whose writes may take a while, the rows are newer than what was published."""
        with self.lock:
            rows, snapshot, view = list(self.parts.sense.workloads()), self.snapshot, self._view
        if snapshot is not None and view is not None and view.now_s > snapshot.view.now_s:
            snapshot = replace(snapshot, view=replace(snapshot.view, now_s=view.now_s, usage=view.usage))
        return snapshot, rows

    def _glance(self, now_s: float) -> NodeView | None:
        """Nothing but use is different from the last look, which was not long ago. None where that is not so."""
        parts, view = self.parts, self._view
        soon_s = now_s + 0.5 * parts.interval_s  # ticks are never quite on time
        if parts.changed(now_s) or view is None or self._doubt or soon_s >= self._look_due_s:
            return None
        return self._used(view, now_s)

    def _look(self, now_s: float) -> NodeView:
        """At everything. One that fails is made up for in the next tick."""
        parts = self.parts
        self._look_due_s = now_s
        self._pods = pods = self._poll(now_s)
        self._policy = policy = parts.policy(now_s)
        apps = policy.slo.host_apps if policy.slo else ()
        roots = parts.be.roots(pods, now_s)
        if (seen := (pods.revision, apps, roots)) != self._seen:
            self._seen, self._sources_due_s = seen, now_s
            parts.sense.sync(pods, apps, tuple(path for path, _ in roots))
        if parts.watch is not None and now_s >= self._sources_due_s:
            self._sources_due_s = now_s + SOURCES_EVERY_S
            try:
                for what in parts.watch.set_sources(tuple(path for path, _ in roots), parts.ls_groups(pods)):
                    self._note(f"sentinel: cannot watch {what}", now_s)
            except OSError as error:  # descriptors may have run out; the ticks still look
                self._note(f"sentinel: {os.strerror(error.errno or 0)}", now_s)
        parts.be.refresh(now_s, anew=self._doubt)
        facts = NodeView(
            now_s=now_s,
            interval_s=parts.interval_s,
            node=parts.node(now_s),
            pods=pods,
            host_apps=apps,
            be_roots=tuple(parts.be.read(path, tree, pods, now_s) for path, tree in roots),
        )
        view = self._used(facts, now_s)
        self._look_due_s = now_s + LOOK_EVERY_S
        return view

    def _used(self, view: NodeView, now_s: float) -> NodeView:
        """The view with what is different in every tick."""
        parts = self.parts
        self._view = replace(
            view,
            now_s=now_s,
            usage=self._sample(now_s),
            support=parts.support(now_s),
            workloads=LazyWorkloads(parts.sense.workloads, parts.sense.find),
            root_usage=LazyWorkloads(parts.sense.root_usage),
            evictions=parts.evictions(),
            blocks=parts.blocks(view.pods, self._policy, now_s),
            hardware=parts.hardware(view.pods, view.online, now_s),
            wall_s=parts.wall(),
        )
        return self._view

    def _sample(self, now_s: float) -> Usage:
        watch = self.parts.watch
        if watch is None:
            return self.parts.sense.sample(now_s)
        return _with_memory(self.parts.sense.sample(now_s, *watch.surge()), watch)

    def _poll(self, now_s: float) -> PodSet:
        """One set of all sources, as old as its oldest answer; of pods with the same UID the first source's."""
        answers = [source.poll(now_s) for source in self.parts.sources]
        if not answers:
            return PodSet(at_s=now_s)  # nobody is asked: no workload is a valid state, and known now
        if len(answers) == 1 and answers[0].at_s != NO_CLAIM:
            return answers[0]
        revisions = tuple(answer.revision for answer in answers)
        if revisions != self._revisions:
            self._revisions = revisions
            self._merged = merge_pods([answer.pods for answer in answers])
        claims = [answer.at_s for answer in answers if answer.at_s != NO_CLAIM]
        ages = [at_s for at_s in claims if at_s is not None]
        return PodSet(self._merged, sum(revisions), min(ages, default=None) if claims else now_s)

    def _decide(self, strategy: AnyStrategy, view: NodeView, policy: Policy, now_s: float) -> None:
        try:
            outcome = strategy.decide(view, policy, self._states[strategy.name], now_s)
        except Exception as error:  # one strategy's fault must not stop the others' tick
            self._failed(strategy.name, error)
            self._settled.discard(strategy.name)
            return
        self._errors.pop(strategy.name, None)
        self._states[strategy.name] = outcome.state
        self._outcomes[strategy.name] = outcome
        self._wishes[strategy.name] = outcome.decisions
        if outcome.until_s > now_s:
            self._settled.add(strategy.name)
        for note in outcome.notes:
            self._note(f"{strategy.name}: {note}", now_s)

    def _failed(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._errors.get(name) != text:
            log.exception("strategy.failed", strategy=name)
        self._errors[name] = text

    def _apply(self, now_s: float) -> ApplyReport:
        wishes = self._wishes
        if self._admitted.decisions or self._admitted.ahead:
            wishes = wishes | {OWNER: self._admitted.decisions, AHEAD: self._admitted.ahead}
        self._set_plan()
        effects = self._wanted(now_s)
        # Before the writes: one of memory.high reclaims inside the kernel, and an eviction is what ends the shortage.
        for applier in self.parts.appliers:
            if applier.kind == Evict.kind:
                self._carry_out(applier, effects, now_s)
        report = self.parts.act.apply(wishes, now_s)
        if self.parts.inbox is not None:
            self.parts.inbox.done()
        for applier in self.parts.appliers:
            if applier.kind != Evict.kind:
                self._carry_out(applier, effects, now_s)
        return report

    def _wanted(self, now_s: float) -> dict[str, tuple[Effect, ...]]:
        """What is wanted of each kind of which anything is."""
        outcomes = [self._outcomes[one.name] for one in self.parts.strategies if one.name in self._outcomes]
        wanted: dict[str, list[Effect]] = {}
        if self._admitted.effects or any(outcome.effects for outcome in outcomes):
            for effect in self._admitted.with_effects(outcome.effects for outcome in outcomes):
                wanted.setdefault(effect.kind, []).append(effect)
            for kind in wanted.keys() - {applier.kind for applier in self.parts.appliers}:
                self._note(f"{wanted[kind][0].owner}: no way to carry out {kind} here", now_s)
        return {kind: tuple(effects) for kind, effects in wanted.items()}

    def _carry_out(self, applier: Applier, wanted: Mapping[str, tuple[Effect, ...]], now_s: float) -> None:
        """Hand an applier what is wanted of its kind, unless it said that it has nothing to do. One that fails keeps
        the others going."""
        kind = applier.kind
        effects = wanted.get(kind, ())
        if effects == self._carried.get(kind) and now_s < self._effects[kind].until_s:
            return
        try:
            self._effects[kind] = applier.apply(effects, now_s)
            self._carried[kind] = effects
            self._errors.pop(f"act {kind}", None)
        except Exception as error:
            self._carried.pop(kind, None)
            self._failed(f"act {kind}", error)

    def _set_plan(self) -> None:
        if self.parts.watch is None:
            return
        plan = SurgePlan()
        for outcome in self._outcomes.values():
            if outcome.plan is not None:
                plan = plan.beside(outcome.plan)
        self.parts.watch.set_plan(plan)

    def _note(self, text: str, now_s: float) -> None:
        if now_s - self._notes.get(text, -NOTE_EVERY_S) >= NOTE_EVERY_S:
            if len(self._notes) > 256:
                self._notes.clear()
            self._notes[text] = now_s
            log.warning("note", what=text)

    def _publish(self, view: NodeView, report: ApplyReport) -> Snapshot:
        self.snapshot = Snapshot(
            view=view,
            outcomes=dict(self._outcomes),
            apply=report,
            stats=self.stats,
            wall_s=self.parts.wall(),
            observe=self.parts.observe,
            degraded=self.parts.degraded(),
            notes=self.parts.notes(),
            pressures=self.parts.pressures(view.pods, view.now_s),
            effects=dict(self._effects),
        )
        return self.snapshot

    def look_anew(self) -> None:
        """Have the next tick ask for all inputs."""
        self._look_due_s = 0.0

    def late(self) -> None:
        """Count a tick that started late by more than one interval."""
        self.stats = replace(self.stats, overruns=self.stats.overruns + 1)


def run(
    engine: Engine,
    stopping: Callable[[], bool],
    wake_fd: int,
    after_tick: Callable[[float], None] = lambda now_s: None,
) -> None:
    """Tick at a fixed rate on the monotonic clock until `stopping()`; serve the sentinel and the doors in between.

    wake_fd becomes readable when a signal or news of the pods arrived. A tick that is missed (the machine slept, the
    process was stopped) is skipped, not made up for. A tick that raises leaves everything as it was and the next one
    is tried; after MAX_FAILED_TICKS of them in a row the fault is raised, and the caller gives everything back.
    """
    interval = engine.parts.interval_s
    poller = select.poll()
    poller.register(wake_fd, select.POLLIN)
    watch, inbox = engine.parts.watch, engine.parts.inbox
    for source in (watch, inbox):
        if source is not None:
            poller.register(source.fileno(), select.POLLIN)
    next_s = time.monotonic()
    failed = 0
    while not stopping():
        now_s = time.monotonic()
        if now_s >= next_s:
            if now_s - next_s > interval:
                engine.late()
                next_s += (now_s - next_s) // interval * interval
            next_s += interval
            try:
                engine.tick(now_s)
            except Exception:  # out of descriptors, say: a moment later there may be some again
                failed += 1
                log.exception("tick.failed", in_a_row=failed, gives_up_at=MAX_FAILED_TICKS)
                if failed >= MAX_FAILED_TICKS:
                    raise
            else:
                failed = 0
                after_tick(now_s)
            continue
        for fd, _ in poller.poll(max(1.0, (next_s - now_s) * 1e3)):
            if fd == wake_fd:
                os.read(wake_fd, 512)
                engine.arrivals(time.monotonic())
            elif inbox is not None and fd == inbox.fileno():
                engine.admit(time.monotonic())
            elif watch is not None and watch.take():
                engine.surge(time.monotonic())
