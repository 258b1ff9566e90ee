"""Settings of the machine itself, from `systemStrategy`: reclaim watermarks, scheduler features, vendor switches. Pure.

A field that is not set is not named, and act gives back what stood there before. A value out of the kernel's sensible
range is a fault: it changes nothing, and what was in force stays. (12)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from koordlet.model.knob import SYSTEM, Decision, Knob
from koordlet.model.system import SystemStrategy
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.model.why import stages

NAME: Final = "system"
GATE: Final = "SystemConfig"
MIN_FREE_KIB: Final = (10_240, 10_485_760)
WATERMARK_SCALE: Final = (10, 400)


@dataclass(frozen=True, slots=True)
class State:
    made_from: tuple[object, ...] = ()
    decisions: tuple[Decision, ...] = ()


class SystemConfig:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> State:
        return State()

    def decide(self, view: NodeView, policy: Policy, state: State, now_s: float) -> Outcome[State]:
        if GATE not in policy.gates or policy.slo is None:
            return Outcome((), State(), until_s=math.inf)
        made_from = (policy.slo.system, view.node.capacity_bytes)
        if made_from == state.made_from:
            return Outcome(state.decisions, state, until_s=math.inf)
        notes: list[str] = []
        known = {decision.key: decision for decision in state.decisions}
        decisions = _decide(policy.slo.system, view.node.capacity_bytes or 0, known, notes)
        return Outcome(decisions, State(made_from, decisions), notes=tuple(notes), until_s=math.inf)


SYSTEM_CONFIG: Final = SystemConfig()


def min_free_kib(capacity_bytes: int, factor: int) -> int:
    """KiB for a factor in 1/10000 of the memory."""
    return capacity_bytes // 1024 * factor // 10_000


def _decide(
    wanted: SystemStrategy, capacity_bytes: int, known: dict[tuple[str, Knob], Decision], notes: list[str]
) -> tuple[Decision, ...]:
    found: list[Decision] = []

    def want(knob: Knob, value: int | None, legal: tuple[int, int] | None = None, **why: int) -> None:
        if value is None:
            return
        if legal is not None and not legal[0] <= value <= legal[1]:
            notes.append(f"{knob}: {value} is not in {legal[0]}..{legal[1]}: what is in force stays")
            kept = known.get((SYSTEM, knob))
            found.extend([kept] if kept is not None else [])
            return
        found.append(Decision(SYSTEM, knob, value, stages(**why, wanted=value), NAME))

    if wanted.min_free_factor is not None:
        if capacity_bytes > 0:
            factor = wanted.min_free_factor
            kib = min_free_kib(capacity_bytes, factor)
            want(Knob.VM_MIN_FREE_KBYTES, kib, MIN_FREE_KIB, capacity_bytes=capacity_bytes, factor=factor)
        else:
            kept = known.get((SYSTEM, Knob.VM_MIN_FREE_KBYTES))
            found.extend([kept] if kept is not None else [])
    want(Knob.VM_WATERMARK_SCALE, wanted.watermark_scale, WATERMARK_SCALE)
    want(Knob.MEMCG_REAP, wanted.memcg_reap)
    want(Knob.SCHED_GROUP_IDENTITY, wanted.group_identity)
    want(Knob.SCHED_IDLE_SAVER, wanted.idle_saver_wmark_ns)
    want(Knob.PAGECACHE_LIMIT, wanted.pagecache_limit)
    for name, on in wanted.sched_features:
        why = stages(feature=name, wanted=int(on))
        found.append(Decision(f"{SYSTEM}/{name}", Knob.SCHED_FEATURE, int(on), why, NAME))
    return tuple(found)
