"""One owner per knob: who wins when two strategies want the same (target, knob). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordlet.act.order import Key
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.status import Shadowed

PRECEDENCE: Final[tuple[str, ...]] = (
    "undo",  # a person asked for the original
    "resize",  # the kubelet is changing a limit or ending a pod: nothing of ours may be in its way
    "burst",  # only where podrules leave a quota, and only above it: raises that very base for a while
    "podrules",  # an allocation names this very pod; the loops only shape what is shared
    "pinning",
    "memory_evict",  # an emergency of the node goes before what a pod's quality asks for
    "suppress",
    "be_cpus",  # the outer bound, where suppress lends no smaller set
    "identity",
    "memory_qos",
    "blkio",
    "system",
    "coldpages",
)
"""Earlier wins. Owners that are not listed come last, by name."""


@dataclass(frozen=True, slots=True)
class Merged:
    decisions: dict[Key, Decision]
    shadowed: tuple[Shadowed, ...]


def merge(by_owner: Mapping[str, Sequence[Decision]]) -> Merged:
    """One decision per (target, knob), and the losers. The order of the mapping does not matter.

    An empty CPU set means "do not pin": no opinion, hence no write and no error (case empty-cpuset-not-written).
    The same owner naming a key twice with different values is its fault: the first stays, the second is reported.
    While cpu.idle is wanted on a target, weights there are not: the kernel answers EINVAL to writes of them.
    """
    decisions: dict[Key, Decision] = {}
    shadowed: list[Shadowed] = []
    for owner in sorted(by_owner, key=_rank):
        for decision in by_owner[owner]:
            if isinstance(decision.value, CpuSet) and not decision.value:
                continue
            first = decisions.setdefault(decision.key, decision)
            if first is not decision and (first.owner != decision.owner or first.value != decision.value):
                shadowed.append(Shadowed(decision, first.owner))
    for (target, knob), decision in list(decisions.items()):
        if knob is Knob.CPU_IDLE and decision.value == 1:
            weight = decisions.pop((target, Knob.CPU_SHARES), None)
            if weight is not None:
                shadowed.append(Shadowed(weight, decision.owner))
    return Merged(decisions, tuple(shadowed))


def _rank(owner: str) -> tuple[int, str]:
    return (PRECEDENCE.index(owner) if owner in PRECEDENCE else len(PRECEDENCE), owner)
