"""The ladder before a kill: what best effort has to give while the node's memory runs short. Pure. (spec 18.3 item 7)

    level 1  its page cache is reclaimed, so that the online side finds free pages
    level 2  memory.high on the best-effort roots: it may grow no further than the eviction threshold's lower line
    level 3  the largest best-effort workload is stopped: frozen in a tree of ours, held at its size elsewhere

Up at once, by usage, by its slope (time until the threshold) or by memory pressure; down only after 30 quiet seconds
well below the line. So with a best effort that always wants more the cap stands still at the lower line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from koordlet.decide.victims import around_others
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Pod, Tree
from koordlet.model.reclaim import Reclaim
from koordlet.model.view import NodeView, Reading, SurgePlan
from koordlet.model.why import Why, stages

RECLAIM_BELOW_PERCENT: Final = 3
"""Of capacity, below the lower line: where level 1 begins."""
RELEASE_BELOW_PERCENT: Final = 5
QUIET_S: Final = 30.0
HORIZON_S: Final = (10.0, 3.0, -1.0)
"""Time to the threshold at which a level begins whatever the usage. Nobody is stopped for what may come: the cap lets
best effort grow to the lower line and no further."""
NEAR_PERCENT: Final = 15
"""Of capacity below level 1: slopes and pressure count only from there on."""
NEAR_S: Final = 5.0
"""The watch between ticks begins that much earlier: some samples may be lost on the way."""
PRESSURE_PERMYRIAD: Final = (1000, 3000, 10_001)
SLOPE_TAU_S: Final = 0.5
RECLAIM_EVERY_S: Final = 1.0
LOOK_PERCENT: Final = 0.5
"""Of capacity: from level 2 on a look at each further growth by that much."""
HOLD_S: Final = 0.1
"""Until a cap is written and best effort has stopped growing."""
LOOSEN_EVERY_S: Final = 10.0
_PRESSURE_AGE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Lines:
    """Bytes of node usage: threshold and lower line of the eviction policy."""

    capacity: int
    upper: int
    lower: int

    @classmethod
    def of(cls, capacity: int, upper_percent: int, lower_percent: int) -> Lines:
        return cls(capacity, capacity * upper_percent // 100, capacity * lower_percent // 100)

    def part(self, percent: float) -> int:
        return int(self.capacity * percent / 100)

    def begin(self, level: int) -> int:
        """Usage from which a level holds."""
        return (self.lower - self.part(RECLAIM_BELOW_PERCENT), self.lower, self.upper)[level - 1]


@dataclass(frozen=True, slots=True)
class Ladder:
    """slope: bytes per second; slope_known: of two readings. since_s: when the level was reached. quiet_from_s: since
    when a lower one would do. high: (root, bytes) in force. held_s: from when on that shows; held: a reading since
    then. stopped: uid of the workload that is stopped. shape, decisions: kept while equal."""

    level: int = 0
    since_s: float = 0.0
    quiet_from_s: float | None = None
    used: Reading | None = None
    slope: float = 0.0
    slope_known: bool = False
    high: tuple[tuple[str, int], ...] = ()
    held_s: float = math.inf
    held: Reading | None = None
    loosened_s: float = 0.0
    stopped: str = ""
    reclaim: tuple[Reclaim, ...] = ()
    reclaimed_s: float = float("-inf")
    shape: tuple[object, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def used_now(self, now_s: float) -> float:
        """The last reading, carried on at its slope where it grew: samples come late, growth does not wait."""
        assert self.used is not None
        return self.used.value + self.slope * max(self.used.age_s(now_s), 0.0)

    @property
    def held_slope(self) -> float:
        """Growth while best effort was held, thus not its own, over the last half second; 0 while that is not known."""
        if self.used is None or self.held is None or self.used.at_s - self.held.at_s < HOLD_S:
            return 0.0
        return max((self.used.value - self.held.value) / (self.used.at_s - self.held.at_s), 0.0)

    def seconds_to(self, line: int, now_s: float) -> float:
        """Until usage reaches a line at the present slope; 0 above it, infinite when it does not grow."""
        used = self.used_now(now_s)
        if used >= line:
            return 0.0
        return (line - used) / self.slope if self.slope > 0 else math.inf


def seen(ladder: Ladder, used: Reading, ending: bool = False) -> Ladder:
    """With a new reading; the slope is smoothed over half a second, however far apart the readings are. ending:
    somebody's memory is coming back, so that a fall says nothing about the growth of the rest."""
    before = ladder.used
    if before is None or used.at_s <= before.at_s:
        return ladder if before is not None else replace(ladder, used=used)
    passed = used.at_s - before.at_s
    weight = 1.0 - math.exp(-passed / SLOPE_TAU_S)
    slope = (used.value - before.value) / passed
    if used.at_s < ladder.held_s:
        ladder = replace(ladder, held=None)
    elif ladder.held is None or slope < 0 or used.at_s - ladder.held.at_s > SLOPE_TAU_S:
        ladder = replace(ladder, held=used if ladder.held is None or slope < 0 else before)
    if ending and slope < 0:
        return replace(ladder, used=used)
    return replace(ladder, used=used, slope_known=True, slope=max(ladder.slope + weight * (slope - ladder.slope), 0.0))


def climb(ladder: Ladder, view: NodeView, lines: Lines, owner: str, going: frozenset[str]) -> Ladder:
    """The next state on a fresh reading (`seen`). going: uids that are to be evicted; they must be able to end."""
    ladder = _level(ladder, view, lines)
    if ladder.level == 0:
        return replace(ladder, high=(), held_s=math.inf, stopped="", reclaim=(), shape=(), decisions=())
    ladder = _reclaim(ladder, view, lines, owner)
    ladder = _high(ladder, view, lines)
    ladder = _stop(ladder, view, going)
    return _decisions(ladder, view, lines, owner)


def plan(ladder: Ladder, lines: Lines, now_s: float) -> SurgePlan | None:
    """When to look again before the next tick: at the next line, and above the last one at each further half percent.
    Always while it is not known how fast usage grows."""
    if ladder.used is None:
        return SurgePlan(memory_used_bytes=lines.begin(1))
    near = lines.begin(1) - lines.part(NEAR_PERCENT)
    if ladder.level == 0 and ladder.slope_known and ladder.used_now(now_s) + ladder.slope * NEAR_S < near:
        return None
    above = [line for level in (1, 2, 3) if (line := lines.begin(level)) > ladder.used.value]
    further = int(ladder.used.value) + lines.part(LOOK_PERCENT)
    line = min(above[0], further) if above and ladder.level >= 2 else above[0] if above else further
    # Once best effort is held, pressure tells nothing new, and a wake-up at each look would only add to it.
    pressure = PRESSURE_PERMYRIAD[1] if ladder.level < 2 else None
    return SurgePlan(memory_used_bytes=line, memory_pressure_permyriad=pressure)


def _level(ladder: Ladder, view: NodeView, lines: Lines) -> Ladder:
    used, now_s = ladder.used_now(view.now_s), view.now_s
    near = used >= lines.begin(1) - lines.part(NEAR_PERCENT)
    pressure = view.usage.memory_pressure_permyriad
    stalled = pressure.value if near and pressure is not None and pressure.age_s(now_s) <= _PRESSURE_AGE_S else 0.0
    wanted = 0
    for level in (1, 2, 3):
        soon = near and ladder.seconds_to(lines.upper, now_s) <= HORIZON_S[level - 1]
        if used >= lines.begin(level) or soon or stalled >= PRESSURE_PERMYRIAD[level - 1]:
            wanted = level
    if wanted > ladder.level:
        return replace(ladder, level=wanted, since_s=now_s, quiet_from_s=None)
    kept = max((at for at in (1, 2, 3) if used >= lines.begin(at) - lines.part(RELEASE_BELOW_PERCENT)), default=0)
    lower = max(wanted, kept)
    if lower >= ladder.level:
        return ladder if ladder.quiet_from_s is None else replace(ladder, quiet_from_s=None)
    if ladder.quiet_from_s is None:
        return replace(ladder, quiet_from_s=now_s)
    if now_s - ladder.quiet_from_s < QUIET_S:
        return ladder
    return replace(ladder, level=lower, since_s=now_s, quiet_from_s=None)


def _reclaim(ladder: Ladder, view: NodeView, lines: Lines, owner: str) -> Ladder:
    """Page cache of best effort, a share per second: what the slope will want in two seconds, one percent at least."""
    if view.now_s - ladder.reclaimed_s < RECLAIM_EVERY_S:
        return replace(ladder, reclaim=()) if ladder.reclaim else ladder
    wanted = max(int(ladder.slope * 2), lines.part(1))
    made: list[Reclaim] = []
    for root in view.be_roots:
        row = view.root_usage.get(root.path)
        if row is None or row.file_bytes is None:
            continue
        cache = int(row.file_bytes.value)
        amount = min(cache, wanted)
        if amount > lines.part(0.1):
            why = stages(level=ladder.level, cache_bytes=cache, slope_bytes_s=int(ladder.slope), amount_bytes=amount)
            made.append(Reclaim(root.path, why, owner, amount, file_only=True))
            wanted -= amount
    return replace(ladder, reclaim=tuple(made), reclaimed_s=view.now_s)


def _high(ladder: Ladder, view: NodeView, lines: Lines) -> Ladder:
    """memory.high of the roots: what they hold, and what is left below the lower line; divided as they hold.

    Never below what they hold without page cache, what they may have grown by since they were read included: the
    kernel reclaims inside the write, and tries long, in vain, where there is nothing that it can take.
    """
    if ladder.level < 2:
        return replace(ladder, high=(), held_s=math.inf)
    held: dict[str, int] = {}
    fixed: dict[str, int] = {}
    for root in view.be_roots:
        row = view.root_usage.get(root.path)
        if row is not None and row.memory_raw_bytes is not None:
            held[root.path] = int(row.memory_raw_bytes.value)
            cache = 0 if row.file_bytes is None else int(row.file_bytes.value)
            grown = int(ladder.slope * max(row.memory_raw_bytes.age_s(view.now_s), 0.0))
            fixed[root.path] = held[root.path] - min(cache, held[root.path]) + grown
    if not held or ladder.used is None:
        return ladder  # nothing is squeezed on a guess; what is in force stays
    total = sum(held.values())
    room = lines.lower - int(ladder.used_now(view.now_s))
    share = {path: held[path] / total if total else 1 / len(held) for path in held}
    least = max(lines.part(0.5), 16 << 20)
    wanted = {path: max(held[path] + int(room * share[path]), fixed[path], least) for path in held}
    present = dict(ladder.high)
    if present.keys() == wanted.keys():
        change = sum(wanted.values()) - sum(present.values())
        if -lines.part(0.5) < change < lines.part(2):
            return ladder
        if change > 0 and (ladder.quiet_from_s is None or view.now_s - ladder.loosened_s < LOOSEN_EVERY_S):
            return ladder
        if change > 0:
            ladder = replace(ladder, loosened_s=view.now_s)
    held_s = min(ladder.held_s, view.now_s + HOLD_S)
    return replace(ladder, high=tuple(sorted(wanted.items())), held_s=held_s)


def _stop(ladder: Ladder, view: NodeView, going: frozenset[str]) -> Ladder:
    """The largest best-effort workload that is not ending anyway. It stays the same one while it is there."""
    if ladder.level < 3:
        return replace(ladder, stopped="")
    shared = around_others(view)
    pods = [pod for pod in view.pods.pods if _may_stop(pod, going) and pod.cgroup not in shared]
    if any(pod.uid == ladder.stopped for pod in pods):
        return ladder
    sizes = {pod.uid: _size(pod, view) for pod in pods}
    largest = max(sizes, key=lambda uid: (sizes[uid], uid), default="")
    return replace(ladder, stopped=largest if sizes.get(largest) else "")


def _may_stop(pod: Pod, going: frozenset[str]) -> bool:
    return pod.is_be and pod.active and not pod.terminating and pod.uid not in going and bool(pod.cgroup)


def _size(pod: Pod, view: NodeView) -> int:
    row = view.workloads.get(pod.cgroup)
    return 0 if row is None or row.memory_bytes is None else int(row.memory_bytes.value)


def _decisions(ladder: Ladder, view: NodeView, lines: Lines, owner: str) -> Ladder:
    shape = (ladder.high, ladder.stopped, ladder.level)
    if shape == ladder.shape:
        return ladder
    assert ladder.used is not None
    why: Why = stages(
        level=ladder.level,
        used_bytes=int(ladder.used.value),
        lower_bytes=lines.lower,
        threshold_bytes=lines.upper,
        slope_bytes_s=int(ladder.slope),
    )
    made = [Decision(path, Knob.MEMORY_HIGH, value, why, owner) for path, value in ladder.high]
    stopped = next((pod for pod in view.pods.pods if pod.uid == ladder.stopped), None)
    if stopped is not None and stopped.tree is Tree.OURS:
        made.append(Decision(stopped.cgroup, Knob.FREEZE, 1, why, owner))
    elif stopped is not None and all(path != stopped.cgroup for path, _ in ladder.high):
        row = view.workloads.get(stopped.cgroup)
        raw = row.memory_raw_bytes if row is not None else None
        if raw is not None:
            made.append(Decision(stopped.cgroup, Knob.MEMORY_HIGH, int(raw.value), why, owner))
    return replace(ladder, shape=shape, decisions=tuple(made))
