"""`Effect`: what a strategy wants done that is no cgroup knob: an eviction, a reclaim, a process attribute, a tc class.

Each kind is a frozen subclass here or in a file of its own, with the applier of act/ that carries it out. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from koordlet.model.why import Why


@dataclass(frozen=True, slots=True)
class Effect:
    """target: what it is done to (a cgroup, a pod's uid, a device ...), with `kind` the identity of the wish.

    owner: the strategy's name. A strategy names its effects in every outcome while it wants them; whether one that is
    no longer named is undone (an attribute) or was a deed (an eviction) is the applier's to know.
    """

    kind: ClassVar[str] = ""
    target: str
    why: Why
    owner: str


@dataclass(frozen=True, slots=True)
class EffectReport:
    """What an applier did in one round. state: target -> one line, for explain and status. errors: one line each.
    until_s: with the same effects there is nothing to do before; 0: ask in every round."""

    done: int = 0
    undone: int = 0
    failed: int = 0
    state: dict[str, str] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    until_s: float = 0.0


class Applier(Protocol):
    """Carries out one kind of effects; lives in act/. Called on the loop's thread: bounded, never waits for a peer."""

    @property
    def kind(self) -> str: ...

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        """All that is wanted of this kind now, in the strategies' order. Never raises for a fault of the target."""

    def restore_all(self, now_s: float, why: str) -> None:
        """Undo what can be undone, on a clean stop."""
