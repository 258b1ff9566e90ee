"""Counting of idle pages by the kernel (kidled), while gate ColdPageCollector is on: its pace, and that the count of a
cgroup holds those below. Pure. (spec/collect 1.6)

What stood there before is given back with the gate. beyond: the reference writes both whenever somebody asks whether
the collector is ready (FAULT-17), and leaves them behind.
"""

from __future__ import annotations

import math
from typing import Final

from koordlet.model.knob import SYSTEM, Decision, Knob
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.model.why import stages

NAME: Final = "coldpages"
GATE: Final = "ColdPageCollector"
SCAN_PERIOD_S: Final = 5

_WANTED: Final = (
    Decision(SYSTEM, Knob.KIDLED_SCAN_PERIOD, SCAN_PERIOD_S, stages(scan_period_s=SCAN_PERIOD_S), NAME),
    Decision(SYSTEM, Knob.KIDLED_HIERARCHY, 1, stages(use_hierarchy=1), NAME),
)


class ColdPageCounting:
    """The strategy object; it holds nothing."""

    name: str = NAME

    def initial(self) -> None:
        return None

    def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
        """Nothing on a kernel without kidled: every mainline kernel."""
        wanted = GATE in policy.gates and all(view.support.has(decision.knob) for decision in _WANTED)
        return Outcome(_WANTED if wanted else (), None, until_s=math.inf)


COLD_PAGES: Final = ColdPageCounting()
