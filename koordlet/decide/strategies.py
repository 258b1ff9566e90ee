"""The strategies, in the order in which a tick runs them; the only list of them. Pure.

Adding one: a file with an object of the `Strategy` shape, its line in `STRATEGIES`, its tests. There is no
registration by import.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

from koordlet.decide import (
    be_cpus,
    blkio,
    burst,
    coldpages,
    cpu_evict,
    identity,
    memory_evict,
    memory_qos,
    resctrl,
    suppress,
    system,
)
from koordlet.decide.pinning import isolate
from koordlet.decide.podrules import reconcile
from koordlet.model.view import NodeView, Outcome, Policy

S = TypeVar("S")


class Strategy(Protocol[S]):
    """Judgement without effects: equal arguments give equal answers.

    `decide` names everything that the strategy wants now. What it named before and names no longer is
    restored by act to the recorded original, so "off" is an `Outcome` without decisions.
    """

    name: str

    def initial(self) -> S: ...

    def decide(self, view: NodeView, policy: Policy, state: S, now_s: float) -> Outcome[S]: ...


# Each strategy keeps its own kind of state, which the loop hands back unseen: hence Any.
STRATEGIES: Final[tuple[Strategy[Any], ...]] = (
    identity.IDENTITY,
    suppress.SUPPRESS,
    be_cpus.BE_CPUS,
    isolate.ISOLATION,
    reconcile.RECONCILER,
    cpu_evict.CPU_EVICT,
    memory_evict.MEMORY_EVICT,
    burst.BURST,
    resctrl.RESCTRL,
    memory_qos.MEMORY_QOS,
    blkio.BLKIO,
    system.SYSTEM_CONFIG,
    coldpages.COLD_PAGES,
)
