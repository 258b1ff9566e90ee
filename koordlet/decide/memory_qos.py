"""Memory QoS: protection, throttling, watermarks, OOM order and page cache of pods and containers. Pure. (8)

A pod for which nothing is asked has no decision: act restores its files once and leaves them to the kubelet. Where the
kernel has no watermarks or page cache limit of its own, reclaim effects stand in for them (18.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard

from koordlet.decide import memory_values as values
from koordlet.decide.freshness import FLOOR_AGE_S
from koordlet.model.effect import Effect
from koordlet.model.knob import Decision, Knob
from koordlet.model.memory_qos import MemoryClasses, MemoryQos
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.reclaim import Reclaim
from koordlet.model.support import Support
from koordlet.model.view import NodeView, Outcome, Policy, Reading
from koordlet.model.why import Why, stages

NAME: Final = "memory_qos"
GATE: Final = "CgroupReconcile"
RECLAIM: Final = "memory.reclaim"
"""Name of the probe's row."""
LEAST_RECLAIM_BYTES: Final = 1 << 20
MAX_RECLAIM_BYTES: Final = 256 << 20
"""One write holds up the worker as long as the kernel reclaims; the rest follows in the next rounds."""
_QOS_CLASS: Final = {KubeQos.GUARANTEED: Qos.LSR, KubeQos.BURSTABLE: Qos.LS, KubeQos.BESTEFFORT: Qos.BE}


@dataclass(frozen=True, slots=True)
class Watched:
    """A pod whose watermarks or page cache limit we keep ourselves. bytes; None: not asked."""

    cgroup: str
    marks: tuple[int, int] | None
    file_bytes: int | None


@dataclass(frozen=True, slots=True)
class State:
    """acted_s: by pod, the time of the reading on which it was last reclaimed from: one reading, one deed."""

    revision: int = -1
    classes: MemoryClasses | None = None
    support: Support | None = None
    memory_bytes: int | None = None
    decisions: tuple[Decision, ...] = ()
    watched: tuple[Watched, ...] = ()
    effects: tuple[Effect, ...] = ()
    acted_s: Mapping[str, float] = field(default_factory=dict)


class MemoryQosLoop:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        if GATE not in policy.gates or policy.slo is None:
            return Outcome((), State(), until_s=math.inf)
        classes = policy.slo.memory
        known = (state.revision, state.memory_bytes) == (view.pods.revision, _node_bytes(view))
        if not known or state.support is not view.support or state.classes != classes:
            state = replace(_built(view, classes), acted_s=state.acted_s)
        acted_s = dict(state.acted_s)
        effects = _reclaims(view, state, acted_s, now_s)
        if effects or state.effects:
            state = replace(state, effects=effects, acted_s=acted_s)
        return Outcome(state.decisions, state, effects=state.effects)


MEMORY_QOS: Final = MemoryQosLoop()


def _node_bytes(view: NodeView) -> int:
    """Memory that a container without a limit may use."""
    return view.node.allocatable.memory_bytes or view.node.capacity_bytes or 0


class _Wishes:
    """Collects decisions; of a knob that this kernel lacks one, so that it is told once and held against nobody."""

    def __init__(self, support: Support) -> None:
        self.support = support
        self.found: list[Decision] = []
        self._lacking: set[Knob] = set()

    def want(self, target: str, knob: Knob, value: int | None, why: Why) -> None:
        if value is None or not target:
            return
        if lacks(self.support, knob):
            if knob in self._lacking:
                return
            self._lacking.add(knob)
        self.found.append(Decision(target, knob, value, why, NAME))


def lacks(support: Support, knob: Knob) -> bool:
    """The probe looked, and there is no such file."""
    return knob in support.table and not support.has(knob)


def _built(view: NodeView, classes: MemoryClasses) -> State:
    wishes = _Wishes(view.support)
    node_bytes = _node_bytes(view)
    sums: dict[str, dict[Knob, int]] = {}
    groups: dict[str, KubeQos] = {}
    watched: list[Watched] = []
    for pod in view.pods.pods:
        if not pod.active or not pod.cgroup:
            continue
        groups.update(_groups(pod))
        qos = values.resolve(pod, classes)
        if qos is None:
            continue
        least, low = values.protected(values.pod_request_bytes(pod), qos)
        for group in _groups(pod):
            for knob, amount in ((Knob.MEMORY_MIN, least), (Knob.MEMORY_LOW, low)):
                if amount is not None:
                    sums.setdefault(group, {}).setdefault(knob, 0)
                    sums[group][knob] += amount
        _of_pod(pod, qos, wishes, node_bytes)
        if (one := _watch(pod, qos, view.support)) is not None:
            watched.append(one)
    for group, amounts in sums.items():
        for knob, amount in amounts.items():
            wishes.want(group, knob, amount, stages(sum_of="its pods"))
    for group, kube in groups.items():
        found = values.class_of(classes, _QOS_CLASS[kube])
        if found.enable:
            _priority(group, found.qos, wishes)
    return State(view.pods.revision, classes, view.support, node_bytes, tuple(wishes.found), tuple(watched))


def _groups(pod: Pod) -> dict[str, KubeQos]:
    """The kubelet's directories above a pod, that need at least the sum of what is protected below them."""
    above = pod.cgroup.rpartition("/")[0]
    if pod.tree is not Tree.KUBELET or not above:
        return {}
    if pod.kube_qos is KubeQos.GUARANTEED:
        return {above: KubeQos.GUARANTEED}  # the root of all pods
    top = above.rpartition("/")[0]
    return {above: pod.kube_qos, **({top: KubeQos.GUARANTEED} if top else {})}


def _of_pod(pod: Pod, qos: MemoryQos, wishes: _Wishes, node_bytes: int) -> None:
    request, limit = values.pod_request_bytes(pod), values.pod_limit_bytes(pod)
    _protect(pod.cgroup, request, qos, wishes)
    _common(pod.cgroup, qos, wishes)
    enable, size, sync = values.page_cache(limit, qos)
    why = stages(limit_bytes=limit, percent=-1 if qos.pagecache_percent is None else qos.pagecache_percent)
    wishes.want(pod.cgroup, Knob.PAGECACHE_SIZE, size, why)
    wishes.want(pod.cgroup, Knob.PAGECACHE_SYNC, sync, why)
    wishes.want(pod.cgroup, Knob.PAGECACHE_ENABLE, enable, why)
    for container in pod.containers:
        if not container.cgroup:
            continue
        request, limit = values.request_bytes(pod, container), values.limit_bytes(pod, container)
        _protect(container.cgroup, request, qos, wishes)
        high = values.throttle_at(request, limit, node_bytes, qos)
        throttle = stages(request_bytes=request, limit_bytes=limit, throttling_percent=qos.throttling_percent or 0)
        wishes.want(container.cgroup, Knob.MEMORY_HIGH, high, throttle)
        _common(container.cgroup, qos, wishes)


def _protect(target: str, request: int, qos: MemoryQos, wishes: _Wishes) -> None:
    least, low = values.protected(request, qos)
    wishes.want(target, Knob.MEMORY_MIN, least, stages(request_bytes=request, min_percent=qos.min_percent or 0))
    wishes.want(target, Knob.MEMORY_LOW, low, stages(request_bytes=request, low_percent=qos.low_percent or 0))


def _common(target: str, qos: MemoryQos, wishes: _Wishes) -> None:
    why = stages(memory_qos="as configured")
    wishes.want(target, Knob.MEMORY_WMARK_RATIO, qos.wmark_ratio, why)
    wishes.want(target, Knob.MEMORY_WMARK_SCALE, qos.wmark_scale_permill, why)
    wishes.want(target, Knob.MEMORY_WMARK_MIN_ADJ, qos.wmark_min_adj, why)
    _priority(target, qos, wishes)
    # 0 is the default and cannot mean "off": a container runtime's own 1 stays (F-20).
    wishes.want(target, Knob.MEMORY_OOM_GROUP, qos.oom_kill_group or None, why)


def _priority(target: str, qos: MemoryQos, wishes: _Wishes) -> None:
    """beyond: no oom.group on the kubelet's own directories, where the reference sets it: an OOM of the whole node
    would then kill every pod below (kernel: the topmost such group is killed)."""
    why = stages(memory_qos="as configured")
    wishes.want(target, Knob.MEMORY_USE_PRIORITY_OOM, qos.priority_enable, why)
    wishes.want(target, Knob.MEMORY_PRIORITY, qos.priority, why)


def _watch(pod: Pod, qos: MemoryQos, support: Support) -> Watched | None:
    if not support.has(RECLAIM):
        return None
    limit = values.pod_limit_bytes(pod)
    marks = values.watermarks(limit, None, qos) if lacks(support, Knob.MEMORY_WMARK_RATIO) else None
    enable, size, _ = values.page_cache(limit, qos)
    cache = size if enable and size and lacks(support, Knob.PAGECACHE_SIZE) else None
    return None if marks is None and cache is None else Watched(pod.cgroup, marks, cache)


def _reclaims(view: NodeView, state: State, acted_s: dict[str, float], now_s: float) -> tuple[Effect, ...]:
    """What is above its mark now; notes in `acted_s` what it acted on."""
    found: list[Effect] = []
    for one in state.watched:
        row = view.workloads.get(one.cgroup)
        if row is None:
            continue
        used, file = row.memory_raw_bytes, row.file_bytes
        last_s = acted_s.get(one.cgroup, float("-inf"))
        if one.marks is not None and _usable(used, last_s, now_s) and used.value > one.marks[0]:
            start, stop = one.marks
            why = stages(used_bytes=int(used.value), start_bytes=start, stop_bytes=stop)
            made = _reclaim(one.cgroup, int(used.value) - stop, False, why)
            at_s = used.at_s
        elif one.file_bytes is not None and _usable(file, last_s, now_s):
            why = stages(file_bytes=int(file.value), limit_bytes=one.file_bytes)
            made = _reclaim(one.cgroup, int(file.value) - one.file_bytes, True, why)
            at_s = file.at_s
        else:
            continue
        if made:
            acted_s[one.cgroup] = at_s
            found += made
    return tuple(found)


def _usable(reading: Reading | None, last_s: float, now_s: float) -> TypeGuard[Reading]:
    """Newer than the last one acted on, and not old: reclaim on a guess costs the pod reads."""
    return reading is not None and reading.at_s > last_s and reading.age_s(now_s) <= FLOOR_AGE_S


def _reclaim(cgroup: str, excess: int, file_only: bool, why: Why) -> list[Effect]:
    if excess < LEAST_RECLAIM_BYTES:
        return []
    return [Reclaim(cgroup, why, NAME, min(excess, MAX_RECLAIM_BYTES), file_only)]
