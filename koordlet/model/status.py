"""What the agent can tell about itself: rows for status, top, explain and metrics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from koordlet.model.effect import EffectReport
from koordlet.model.knob import Decision, Knob
from koordlet.model.psi import Pressures
from koordlet.model.view import NodeView, Outcome, WorkloadUsage
from koordlet.model.why import Why


class HeldState(StrEnum):
    """State of one knob that some strategy wants."""

    HELD = "held"  # the kernel has our value
    OBSERVED = "observed"  # --observe: would be written
    FAILED = "failed"  # the kernel or the journal refused; retried with back-off
    UNSUPPORTED = "unsupported"  # no such file here
    GONE = "gone"  # the cgroup vanished


@dataclass(frozen=True, slots=True)
class Held:
    """One knob under our control. wanted/original: file text. since_s: monotonic time of the last change."""

    target: str
    knob: Knob
    wanted: str
    original: str
    owner: str
    why: Why
    state: HeldState
    since_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A decision that lost to another owner's on the same (target, knob)."""

    decision: Decision
    winner: str


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """What one apply did. written/restored/failed/drifted count knobs of this pass, held is the whole book."""

    written: int = 0
    restored: int = 0
    failed: int = 0
    drifted: int = 0
    held: tuple[Held, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TickStats:
    """The loop's own figures. overruns: ticks that started late by more than one interval."""

    ticks: int = 0
    overruns: int = 0
    last_ms: float = 0.0
    surges: int = 0
    strategy_errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One tick's whole story, handed by the loop to report; immutable, so any thread may read it.

    degraded: reasons why health is degraded, empty when fine. notes: what else the operator should know (an unknown key
    of the policy). wall_s: time.time() of the tick.
    pressures: latest pressure readings, None where the kernel has none. effects: by kind of effect.
    """

    view: NodeView
    outcomes: dict[str, Outcome[object]]
    apply: ApplyReport
    stats: TickStats
    wall_s: float
    observe: bool = False
    degraded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pressures: Pressures | None = None
    effects: dict[str, EffectReport] = field(default_factory=dict)


Latest = Callable[[], tuple[Snapshot | None, Sequence[WorkloadUsage]]]
"""The last snapshot, None before the first tick, and a row of every workload; usage and rows are of one pass."""
