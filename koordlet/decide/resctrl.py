"""Strategy `resctrl`: who belongs to which cache and bandwidth group, and with what limits (spec/qos 9, 10). Pure.

Class groups LSR, LS and BE for classes whose resctrlQOS is on; `koordlet-<uid>` for pods with an annotation of their
own (gate Resctrl). The most restricting come first: when the machine's classes run out, those without a limit lose
least. A percentage of the cache means L3, or L2 where only that can be partitioned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from koordlet.decide.cachemask import bandwidth_of, mask_of
from koordlet.decide.squeeze import Squeeze, squeeze
from koordlet.model.pod import Pod
from koordlet.model.qos import Qos
from koordlet.model.resctrl import POD_PREFIX, CacheLine, PodResctrl, PodTasks, Range, Resctrl, ResctrlGroup
from koordlet.model.slo import NodeSlo, ResctrlQos
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.model.why import stages

CLASS_OF: Final = {Qos.LSE: "LSR", Qos.LSR: "LSR", Qos.LS: "LS", Qos.BE: "BE"}
WINDOW_S: Final = 60.0
"""How long a pod keeps its monitoring group when there are more pods than ids."""
_SAFE_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,126}")
_GATES: Final = {"RdtResctrl", "Resctrl"}


@dataclass(frozen=True, slots=True)
class State:
    """key: what the effects were made from."""

    key: tuple[object, ...] = ()
    effects: tuple[ResctrlGroup, ...] = ()
    notes: tuple[str, ...] = ()
    squeeze: Squeeze = field(default_factory=Squeeze)


class ResctrlStrategy:
    name = "resctrl"

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        info, slo = view.hardware.resctrl, policy.slo
        if info is None or slo is None or not (policy.resctrl_monitor or policy.gates & _GATES):
            return Outcome((), State(), until_s=math.inf)
        if view.pods.at_s is None:  # who is there is not known: nobody is moved on a guess
            return Outcome((), state, effects=state.effects)
        limits = Squeeze()
        if policy.resctrl_dynamic:
            limits = squeeze(state.squeeze, view, slo.be_resctrl, now_s)
        window = int(now_s // WINDOW_S) if policy.resctrl_monitor and info.monitoring is not None else -1
        key = (view.pods.revision, slo, info, policy.gates, policy.amd_bandwidth_units, window, limits.caps)
        if key == state.key:
            if limits != state.squeeze:
                state = replace(state, squeeze=limits)
            return Outcome((), state, effects=state.effects, notes=state.notes, gauges=_gauges(limits, policy))
        made = _Plan(view, policy, info, slo, limits, window)
        effects = made.effects()
        if effects == state.effects:
            effects = state.effects
        fresh = State(key, effects, tuple(made.notes), limits)
        return Outcome((), fresh, effects=effects, notes=fresh.notes, gauges=_gauges(limits, policy))


RESCTRL: Final = ResctrlStrategy()


class _Plan:
    """One making of all groups."""

    def __init__(
        self, view: NodeView, policy: Policy, info: Resctrl, slo: NodeSlo, limits: Squeeze, window: int
    ) -> None:
        self.policy, self.info, self.limits, self.window = policy, info, limits, window
        self.pods = [pod for pod in view.pods.pods if pod.active and pod.cgroup]
        self.classes = {"LSR": slo.lsr_resctrl, "LS": slo.ls_resctrl, "BE": slo.be_resctrl}
        if policy.resctrl_dynamic and not slo.be_resctrl.enable:
            self.classes["BE"] = replace(slo.be_resctrl, enable=True, cat_end_percent=100, mba_percent=100)
        self.notes: list[str] = []

    def effects(self) -> tuple[ResctrlGroup, ...]:
        own = self._pod_groups() if "Resctrl" in self.policy.gates and self.info.classes > 1 else {}
        groups: list[ResctrlGroup] = []
        rest = [pod for pod in self.pods if pod.uid not in own]
        in_class: set[str] = set()
        if "RdtResctrl" in self.policy.gates and self.info.classes > 1:
            for name, qos in sorted(self.classes.items(), key=lambda item: (_is_free(item[1]), item[0])):
                if not qos.enable:
                    continue
                mine = [pod for pod in rest if CLASS_OF.get(pod.default_qos) == name]
                in_class |= {pod.uid for pod in mine}
                groups.append(self._class_group(name, qos, mine))
        made = {group.target for group in groups}
        for group, pod in own.values():
            fallback = CLASS_OF.get(pod.default_qos, "")
            groups.append(replace(group, fallback=fallback if fallback in made else ""))
        if "Resctrl" in self.policy.gates and self.window < 0:
            groups.append(self._root([]))  # says that the pods are known: groups of others may go
        if self.window >= 0:
            groups.append(self._root([pod for pod in rest if pod.uid not in in_class]))
            groups = self._monitored(groups)
        return tuple(groups)

    def _class_group(self, name: str, qos: ResctrlQos, pods: list[Pod]) -> ResctrlGroup:
        wanted = Range(qos.cat_start_percent, qos.cat_end_percent)
        ways, percent = None, qos.mba_percent
        if name == "BE" and self.policy.resctrl_dynamic:
            ways, percent = self.limits.ways, min(qos.mba_percent, self.limits.mba_percent)
        lines = [self._cache_line(line, lambda _: wanted, ways) for line in self.info.shared_cache]
        lines += self._bandwidth(lambda _: percent)
        why = stages(
            cat_start_percent=wanted.start_percent,
            cat_end_percent=wanted.end_percent,
            mba_percent=percent,
            ways=sum(mask_of(line, wanted, ways).bit_count() for line in self.info.shared_cache[:1]),
            ways_shared_with_devices=sum(
                (mask_of(line, wanted, ways) & line.shareable).bit_count() for line in self.info.shared_cache[:1]
            ),
        )
        return ResctrlGroup(name, why, "resctrl", tuple(lines), _tasks(pods))

    def _pod_groups(self) -> dict[str, tuple[ResctrlGroup, Pod]]:
        found = {}
        for pod in self.pods:
            wish = pod.settings.resctrl
            if wish is None:
                continue
            if not _SAFE_UID.fullmatch(pod.uid):
                self.notes.append(f"{pod.key}: uid {pod.uid[:40]!r} cannot name a group")
                continue
            lines = self._pod_lines(pod, wish)
            if lines:
                why = stages(annotation="node.koordinator.sh/resctrl", pod=pod.key)
                found[pod.uid] = ResctrlGroup(POD_PREFIX + pod.uid, why, "resctrl", lines, _tasks([pod])), pod
        return found

    def _pod_lines(self, pod: Pod, wish: PodResctrl) -> tuple[str, ...]:
        lines: list[str] = []
        if wish.llc is not None or wish.llc_per_cache:
            ranges = dict(wish.llc_per_cache)
            # beyond: with values for single caches only, the others keep all their ways; the reference drops the line.
            usual = wish.llc or Range(0, 100)
            self._check_ids(pod, ranges, self.info.shared_cache)
            lines += [
                self._cache_line(line, lambda number: ranges.get(number, usual), None)
                for line in self.info.shared_cache
            ]
        if wish.mb_percent is not None or wish.mb_per_cache:
            percents = dict(wish.mb_per_cache)
            self._check_ids(pod, percents, (self.info.bandwidth,) if self.info.bandwidth else ())
            lines += self._bandwidth(lambda number: percents.get(number, wish.mb_percent or 100))
        if not lines:
            self.notes.append(f"{pod.key}: its resctrl annotation asks for nothing that this machine has")
        return tuple(lines)

    def _check_ids(self, pod: Pod, asked: Iterable[int], lines: Iterable[object]) -> None:
        known = {number for line in lines for number in getattr(line, "ids", ())}
        unknown = sorted(set(asked) - known)
        if unknown and known:
            self.notes.append(f"{pod.key}: resctrl annotation names cache {unknown[0]}, which is not here")

    def _cache_line(self, line: CacheLine, wanted: Callable[[int], Range], ways: int | None) -> str:
        return _line(line.name, {number: f"{mask_of(line, wanted(number), ways):x}" for number in line.ids})

    def _bandwidth(self, percent: Callable[[int], int]) -> list[str]:
        line = self.info.bandwidth
        if line is None:
            return []
        values = {number: bandwidth_of(line, percent(number), self.policy.amd_bandwidth_units) for number in line.ids}
        if not values or any(value is None for value in values.values()):
            return []
        return [_line(line.name, {number: str(value) for number, value in values.items()})]

    def _root(self, pods: list[Pod]) -> ResctrlGroup:
        return ResctrlGroup("", stages(monitoring=1), "resctrl", (), _tasks(pods))

    def _monitored(self, groups: list[ResctrlGroup]) -> list[ResctrlGroup]:
        """Marks the pods that have a monitoring group in this window, as many as there are ids."""
        assert self.info.monitoring is not None
        pods = [pod.uid for group in groups for pod in group.pods if not group.target.startswith(POD_PREFIX)]
        budget = self.info.monitoring.rmids - 1 - self.info.foreign_rmids - sum(bool(g.target) for g in groups)
        chosen = set(pods)
        if len(pods) > budget:
            if budget <= 0:
                self.notes.append("no monitoring id is left for pods")
            first = self.window * max(budget, 0) % max(len(pods), 1)
            chosen = set((pods + pods)[first : first + max(budget, 0)])
        return [
            replace(
                group,
                pods=tuple(
                    replace(pod, monitored=pod.uid in chosen and bool(_SAFE_UID.fullmatch(pod.uid)))
                    for pod in group.pods
                ),
            )
            for group in groups
        ]


def _tasks(pods: list[Pod]) -> tuple[PodTasks, ...]:
    return tuple(PodTasks(pod.uid, pod.cgroup, tuple(c.id for c in pod.containers if c.running)) for pod in pods)


def _is_free(qos: ResctrlQos) -> bool:
    return (qos.cat_start_percent, qos.cat_end_percent, qos.mba_percent) == (0, 100, 100)


def _line(name: str, values: dict[int, str]) -> str:
    return f"{name}:" + "".join(f"{number}={value};" for number, value in values.items())


def _gauges(limits: Squeeze, policy: Policy) -> tuple[tuple[str, tuple[tuple[str, str], ...], float], ...]:
    if not policy.resctrl_dynamic:
        return ()
    ways = () if limits.ways is None else (("be_resctrl_ways", (), float(limits.ways)),)
    return (*ways, ("be_resctrl_mba_percent", (), float(limits.mba_percent)))
