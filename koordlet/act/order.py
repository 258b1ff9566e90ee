"""In which order a set of changes is written, so that no single write is refused by the kernel. Pure.

cgroup v1 checks at each write: a limited quota is within its nearest limited ancestor's, a CPU set within its
parent's, burst within quota. So values first grow from the top down, to the wanted value or, where a set moves
sideways, to the union of old and new; then they shrink from the bottom up. Every state in between is the wider of
old and new at some cgroups and exactly old or new at the others, which keeps child <= parent throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from koordlet.kernel.knobs import KNOBS, Hierarchy
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob, KnobValue

Key = tuple[str, Knob]


@dataclass(frozen=True, slots=True)
class Change:
    """Model units; current None where the file's content made no sense. -1 is unlimited, above everything."""

    current: KnobValue | None
    wanted: KnobValue


@dataclass(frozen=True, slots=True)
class Step:
    """One write. final: it brings the wanted value; otherwise it is a stopover."""

    target: str
    knob: Knob
    value: KnobValue
    final: bool = True


def plan(changes: Mapping[Key, Change]) -> list[Step]:
    """Steps in order. Deterministic: the order of the mapping does not matter.

    Around the two passes: freezing comes before everything, thawing after it (a frozen group cannot hurt while the
    slower knobs change). cpu.idle is cleared before the weight is written and set after it. A burst shrinks before
    its quota and grows after it.
    """
    head: list[Step] = []
    grow: list[Step] = []
    shrink: list[Step] = []
    tail: list[Step] = []
    plain: list[Step] = []
    for target, knob in sorted(changes, key=_depth):
        change = changes[target, knob]
        step = Step(target, knob, change.wanted)
        if knob is Knob.FREEZE or knob is Knob.CPU_IDLE:
            early = bool(change.wanted) == (knob is Knob.FREEZE)
            (head if early else tail).append(step)
        elif knob is Knob.CPU_BURST:
            lower = change.current is not None and height(change.wanted) < height(change.current)
            (head if lower else plain).append(step)
        elif KNOBS[knob].hierarchy is Hierarchy.NONE:
            plain.append(step)
        else:
            stopover = _wider(change.current, change.wanted)
            if stopover != change.current:
                grow.append(Step(target, knob, stopover, final=stopover == change.wanted))
            if stopover != change.wanted:
                shrink.append(step)
    head.sort(key=_head_rank)
    tail.sort(key=_tail_rank)
    return [*head, *grow, *reversed(shrink), *plain, *tail]


def _depth(key: Key) -> tuple[int, str, Knob]:
    return (key[0].count("/"), *key)


def _head_rank(step: Step) -> bool:
    return step.knob is not Knob.FREEZE


def _tail_rank(step: Step) -> bool:
    return step.knob is Knob.FREEZE


def _wider(current: KnobValue | None, wanted: KnobValue) -> KnobValue:
    if isinstance(current, CpuSet) and isinstance(wanted, CpuSet):
        return current | wanted
    return wanted if current is None or height(wanted) >= height(current) else current


def height(value: KnobValue) -> float:
    """A number as it counts here, or the size of a set; unlimited is above everything."""
    return math.inf if isinstance(value, int) and value < 0 else float(value if isinstance(value, int) else len(value))
