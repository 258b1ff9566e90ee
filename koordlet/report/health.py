"""Is the agent alive, and is each part of it ready? Pure: a snapshot and a moment in, words out.

Alive says whether a restart would help; ready says what already works. A degraded part makes neither false:
it is told in the text, because restarting a pod does not mount a cgroup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordlet.model.status import Snapshot

LIVE_INTERVALS: Final = 5
START_GRACE_S: Final = 30.0
"""How long the first tick may take after the start."""
FRESH_INTERVALS: Final = 10


@dataclass(frozen=True, slots=True)
class Health:
    """lines: one per part, "name: ok|waiting|degraded: reason"."""

    ok: bool
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def liveness(snapshot: Snapshot | None, now_s: float, started_s: float) -> Health:
    """True while the last tick is younger than five intervals. now_s, started_s: monotonic."""
    if snapshot is None:
        waited_s = now_s - started_s
        return Health(waited_s <= START_GRACE_S, (f"tick: none yet, {waited_s:.1f} s after the start",))
    age_s = now_s - snapshot.view.now_s
    limit_s = LIVE_INTERVALS * snapshot.view.interval_s
    if age_s <= limit_s:
        return Health(True, (f"tick: ok, {age_s:.1f} s ago",))
    return Health(False, (f"tick: stuck, the last was {age_s:.1f} s ago (limit {limit_s:g} s)",))


def readiness(snapshot: Snapshot | None, now_s: float) -> Health:
    """Ready when node figures are fresh and the workloads have been read once. now_s: monotonic."""
    if snapshot is None:
        return Health(False, ("tick: waiting for the first",))
    view = snapshot.view
    lines = ["tick: ok"]
    ok = True
    node = view.usage.node_mcpu
    if node is None:
        ok, line = False, "node: waiting: no CPU usage yet"
    elif node.age_s(now_s) > FRESH_INTERVALS * view.interval_s:
        ok, line = False, f"node: waiting: CPU usage is {node.age_s(now_s):.1f} s old"
    else:
        line = "node: ok"
    lines.append(line)
    if view.pods.at_s is None:
        ok = False
        lines.append("pods: waiting: no source has answered yet")
    else:
        lines.append(f"pods: ok, {len(view.pods.pods)} known, read {now_s - view.pods.at_s:.1f} s ago")
    failing = snapshot.stats.strategy_errors
    lines += [f"{name}: degraded: {failing[name]}" if name in failing else f"{name}: ok" for name in _names(snapshot)]
    lines += [f"degraded: {reason}" for reason in snapshot.degraded]
    lines += [f"note: {note}" for note in snapshot.notes]
    return Health(ok, tuple(lines))


def _names(snapshot: Snapshot) -> list[str]:
    return sorted({*snapshot.outcomes, *snapshot.stats.strategy_errors})
