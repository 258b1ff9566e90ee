"""The reconciler: asks `answer` for every pod, container and host application, so that what a hook missed, or somebody
changed since, is put right within a tick. Pure. (spec/hooks 3.5)

A steady tick compares identities and hands back the same tuples. Values of pods that are new or got new containers are
`hot` for a while: that is when the kubelet and the runtime write, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from koordlet.decide.podrules import NAME, PodContext, answer, context_of, cpuset, group_identity, network, terway
from koordlet.model.effect import Effect
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Container, HostApp, Pod, PodSet
from koordlet.model.podevent import Hook, PodAnswer, PodEvent
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.model.why import stages

YOUNG_S: Final = 30.0
"""For so long values of a pod with new containers are read back each tick."""
_CAPPED: Final = (Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.CPUSET)
"""What belongs to the loops on the root of a best-effort subtree."""

_SANDBOX: Final = Container("")
_Known = dict[str, tuple[tuple[str, ...], float]]
"""Pod uid -> (ids of its containers, since when)."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What one pod gets, kept while the pod and the context stay."""

    pod: Pod
    decisions: tuple[Decision, ...]
    effects: tuple[Effect, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """key: what the decisions were made from. young_until_s: when the first pod stops being young. made: by pod uid."""

    key: tuple[object, ...] = ()
    context: PodContext | None = None
    known: _Known | None = None
    young_until_s: float = float("inf")
    decisions: tuple[Decision, ...] = ()
    effects: tuple[Effect, ...] = ()
    notes: frozenset[str] = field(default_factory=frozenset)
    roots: frozenset[str] = field(default_factory=frozenset)
    made: dict[str, _Made] = field(default_factory=dict)


class PodRules:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        key = _key(view, policy)
        if now_s < state.young_until_s and _same(key, state.key):
            return Outcome(state.decisions, state, effects=state.effects, until_s=state.young_until_s)
        context = context_of(view, policy, state.context)
        known, young, until_s = _ages(view.pods, state.known, now_s)
        decisions: list[Decision] = []
        effects: list[Effect] = []
        notes: set[str] = set()
        roots = frozenset(root.path for root in view.be_roots)
        before = state.made if context is state.context and roots == state.roots else {}
        kept: dict[str, _Made] = {}
        for pod in view.pods.pods:
            if not pod.active:
                continue
            row = before.get(pod.uid)
            if row is None or row.pod != pod:
                row = _make(pod, context, roots)
            kept[pod.uid] = row
            decisions += map(_hot, row.decisions) if pod.uid in young else row.decisions
            effects += row.effects
            notes.update(row.faults)
        for app in view.host_apps:
            decisions += _of_host_app(app, context, roots)
        classes, faults = network.node_classes(context)
        effects += classes
        notes.update(faults)
        effects += terway.files(view.pods, context)
        made, done = tuple(decisions), tuple(effects)
        fresh = State(
            key=key,
            context=context,
            known=known,
            young_until_s=until_s,
            decisions=state.decisions if made == state.decisions else made,
            effects=state.effects if done == state.effects else done,
            notes=frozenset(notes),
            roots=roots,
            made=kept,
        )
        fresh_notes = tuple(sorted(notes - state.notes))
        return Outcome(fresh.decisions, fresh, notes=fresh_notes, effects=fresh.effects, until_s=until_s)


RECONCILER: Final = PodRules()


def _key(view: NodeView, policy: Policy) -> tuple[object, ...]:
    roots = tuple(root.path for root in view.be_roots)
    return (view.pods.revision, policy, view.node, view.support, view.host_apps, roots)


def _same(key: tuple[object, ...], before: tuple[object, ...]) -> bool:
    """Parts are compared by identity first, which is enough in a steady tick."""
    return len(key) == len(before) and all(new is old or new == old for new, old in zip(key, before, strict=True))


def _ages(pods: PodSet, before: _Known | None, now_s: float) -> tuple[_Known | None, frozenset[str], float]:
    """What is known now, who is young, and until when. What was there when pods were first known is not young."""
    if pods.at_s is None:
        return before, frozenset(), float("inf")
    known: _Known = {}
    for pod in pods.pods:
        ids = tuple(container.id for container in pod.containers)
        old = (before or {}).get(pod.uid)
        known[pod.uid] = old if old is not None and old[0] == ids else (ids, float("-inf") if before is None else now_s)
    young = frozenset(uid for uid, (_, since_s) in known.items() if now_s - since_s < YOUNG_S)
    return known, young, min((known[uid][1] + YOUNG_S for uid in young), default=float("inf"))


def _hot(decision: Decision) -> Decision:
    return Decision(decision.target, decision.knob, decision.value, decision.why, decision.owner, hot=True)


def _make(pod: Pod, context: PodContext, roots: frozenset[str]) -> _Made:
    answers = list(_answers(pod, context))
    decisions = [decision for found in answers for decision in _of_pod(found, roots)]
    return _Made(
        pod,
        (*decisions, *_of_sandbox(pod, context)),
        tuple(effect for found in answers for effect in found.effects),
        tuple(f"pod {pod.key}: {fault}" for found in answers for fault in found.faults),
    )


def _answers(pod: Pod, context: PodContext) -> Iterator[PodAnswer]:
    yield answer(PodEvent(Hook.RECONCILE, pod, cgroup=pod.cgroup), context)
    for container in pod.containers:
        cgroup = pod.directory(container)
        if cgroup and container.running:
            yield answer(PodEvent(Hook.RECONCILE, pod, container, cgroup=cgroup), context)


def _of_sandbox(pod: Pod, context: PodContext) -> Iterator[Decision]:
    """The pause process stays on its pod's CPUs, too; nothing else of it is ours."""
    if pod.sandbox_cgroup and context.on("CPUSetAllocator"):
        cpus, which = cpuset.container_cpus(pod, _SANDBOX, context)
        if cpus:
            yield Decision(pod.sandbox_cgroup, Knob.CPUSET, cpus, stages(CPUSetAllocator=which), NAME)


def _of_pod(found: PodAnswer, roots: frozenset[str]) -> Iterator[Decision]:
    for decision in found.decisions:
        if decision.target not in roots or decision.knob not in _CAPPED:
            yield decision


def _of_host_app(app: HostApp, context: PodContext, roots: frozenset[str]) -> Iterator[Decision]:
    why = stages(host_application=app.name)
    cpus = cpuset.host_app_cpus(app, context) if context.on("CPUSetAllocator") and app.cgroup not in roots else None
    if cpus is not None:
        yield Decision(app.cgroup, Knob.CPUSET, cpus, why, NAME)
    if context.on("GroupIdentity") and group_identity.active(context):
        yield Decision(app.cgroup, Knob.CPU_BVT, group_identity.host_app_bvt(app, context), why, NAME)
