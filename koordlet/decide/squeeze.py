"""How much cache and bandwidth best effort keeps while an online workload is slower than it used to be. Pure.

Fast attack: at the first sample over, ways and bandwidth are halved together. Slow decay: while all online workloads
are clear, one of the two grows by one step each RAISE_S, in turns. If a raise is followed by an excess, that one is
taken back and stays below for CEILING_S; so the two settle, each on its own, where the online side just bears them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from koordlet.decide.cachemask import mask_of
from koordlet.model.resctrl import Range
from koordlet.model.slo import ResctrlQos
from koordlet.model.view import NodeView

OVER: Final = 0.10
CLEAR: Final = 0.05
"""Excess over the baseline at which best effort is squeezed, and below which it gets back; between them: hold."""
RAISE_S: Final = 5.0
BLAME_S: Final = 10.0
"""An excess this soon after a raise is that raise's doing."""
CEILING_S: Final = 300.0
STALE_S: Final = 15.0
STEP_PERCENT: Final = 10


@dataclass(frozen=True, slots=True)
class Squeeze:
    """ways: cap on the number of cache ways, None for no cap. raised: what grew last ("ways", "mba"), "" when that is
    settled. ceilings: (value, until) per knob."""

    ways: int | None = None
    mba_percent: int = 100
    sample_s: float = float("-inf")
    changed_s: float = float("-inf")
    raised: str = ""
    turn: str = "ways"
    ways_ceiling: tuple[int, float] = (1 << 16, 0.0)
    mba_ceiling: tuple[int, float] = (100, 0.0)

    @property
    def caps(self) -> tuple[int | None, int]:
        return (self.ways, self.mba_percent)


def squeeze(state: Squeeze, view: NodeView, qos: ResctrlQos, now_s: float) -> Squeeze:
    """The next state. Without a new sample, or with none that is fresh, everything stays as it is."""
    info = view.hardware.resctrl
    online = [row for row in view.hardware.online if row.excess is not None]
    fresh = [row for row in online if now_s - row.at_s <= STALE_S]
    if info is None or (online and not fresh):
        return state
    sample_s = max((row.at_s for row in fresh), default=now_s)
    if sample_s <= state.sample_s:
        return state
    state = replace(state, sample_s=sample_s)
    wanted = Range(0, 100) if not qos.enable else Range(qos.cat_start_percent, qos.cat_end_percent)
    lines = info.shared_cache[:1]
    most_ways = min((mask_of(line, wanted).bit_count() for line in lines), default=0)
    least_ways = max((line.min_bits for line in lines), default=0)
    most_mba = qos.mba_percent if qos.enable and qos.mba_percent else 100
    worst = max((row.excess for row in fresh if row.excess is not None), default=0.0)
    if worst > OVER:
        return _down(state, now_s, most_ways, least_ways, most_mba)
    if worst < CLEAR and now_s - state.changed_s >= RAISE_S:
        return _up(state, now_s, most_ways, most_mba)
    return state


def _down(state: Squeeze, now_s: float, most_ways: int, least_ways: int, most_mba: int) -> Squeeze:
    ways = most_ways if state.ways is None else min(state.ways, most_ways)
    mba = min(state.mba_percent, most_mba)
    if state.raised and now_s - state.changed_s <= BLAME_S:
        if state.raised == "ways":
            ways = max(least_ways, ways - 1)
            return replace(state, ways=ways, ways_ceiling=(ways, now_s + CEILING_S), raised="", changed_s=now_s)
        mba = max(STEP_PERCENT, mba - STEP_PERCENT)
        return replace(state, mba_percent=mba, mba_ceiling=(mba, now_s + CEILING_S), raised="", changed_s=now_s)
    ways = max(least_ways, ways // 2)
    mba = max(STEP_PERCENT, mba // 2 // STEP_PERCENT * STEP_PERCENT)
    return replace(state, ways=ways, mba_percent=mba, raised="", changed_s=now_s)


def _up(state: Squeeze, now_s: float, most_ways: int, most_mba: int) -> Squeeze:
    """One step of the knob whose turn it is, or of the other where that one may not grow."""
    if state.ways is None and state.mba_percent >= most_mba:
        return state
    ceilings = {
        "ways": min(most_ways, state.ways_ceiling[0]) if now_s < state.ways_ceiling[1] else most_ways,
        "mba": min(most_mba, state.mba_ceiling[0]) if now_s < state.mba_ceiling[1] else most_mba,
    }
    now = {"ways": most_ways if state.ways is None else state.ways, "mba": state.mba_percent}
    order = ("ways", "mba") if state.turn == "ways" else ("mba", "ways")
    for name in order:
        if now[name] >= ceilings[name]:
            continue
        other = "mba" if name == "ways" else "ways"
        if name == "ways":
            ways = now["ways"] + 1
            return replace(state, ways=None if ways >= most_ways else ways, raised=name, turn=other, changed_s=now_s)
        mba = min(ceilings["mba"], now["mba"] + STEP_PERCENT)
        return replace(state, mba_percent=mba, raised=name, turn=other, changed_s=now_s)
    return state
