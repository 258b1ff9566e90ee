"""From the doors' threads to the loop's: what an answer wants written, and that something new is known.

A door never writes. It puts its answer's decisions here and wakes the loop, which holds them for a while: by then the
reconciler knows the pod and names them itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from koordlet.decide.podrules.resize import OWNER as AHEAD
from koordlet.model.effect import Effect
from koordlet.model.knob import Decision

OWNER: Final = "admission"
"""Not in the precedence table, hence last: whatever a strategy wants of the same knob wins."""
HOLD_S: Final = 30.0
MAX_WAITING: Final = 8192


class Inbox:
    """Bounded: what finds no room is dropped and counted; the reconciler makes up for it. Any thread may put."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decisions: list[Decision] = []
        self._effects: list[Effect] = []
        self._news = self._told = False
        self._number = self._taken = self._done = 0
        self._carried_out = threading.Condition(self._lock)
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.dropped = 0

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._fd

    def put(
        self, decisions: tuple[Decision, ...] = (), effects: tuple[Effect, ...] = (), *, news: bool = False
    ) -> None:
        """news: so much is new that the loop is to judge all pods at once, not in its next round."""
        with self._lock:
            if self._fd < 0:
                return
            room = MAX_WAITING - len(self._decisions) - len(self._effects)
            if len(decisions) + len(effects) > room:
                self.dropped += len(decisions) + len(effects)
            else:
                self._decisions += decisions
                self._effects += effects
            self._news |= news
            self._told = True
            self._number += 1
            os.eventfd_write(self._fd, 1)

    def put_and_wait(self, decisions: tuple[Decision, ...], limit_s: float) -> bool:
        """The same, and whether the loop has carried them out within limit_s."""
        self.put(decisions)
        with self._lock:
            number = self._number
            return self._carried_out.wait_for(lambda: self._done >= number or self._fd < 0, limit_s) and self._fd >= 0

    def done(self) -> None:
        """The loop has carried out what it took."""
        with self._lock:
            self._done = self._taken
            self._carried_out.notify_all()

    def take(self) -> tuple[list[Decision], list[Effect], bool]:
        with self._lock:
            if self._told and self._fd >= 0:
                os.eventfd_read(self._fd)
            self._told = False
            decisions, self._decisions = self._decisions, []
            effects, self._effects = self._effects, []
            news, self._news = self._news, False
            self._taken = self._number
        return decisions, effects, news

    def close(self) -> None:
        with self._lock:
            os.close(self._fd)
            self._fd = -1
            self._carried_out.notify_all()


class Admitted:
    """What was admitted lately, for the loop's thread. Hands out the same tuples while nothing changes.

    ahead: what goes before every strategy's wishes, decisions: what comes after them.
    """

    def __init__(self) -> None:
        self._decisions: dict[object, tuple[float, Decision]] = {}
        self._effects: dict[object, tuple[float, Effect]] = {}
        self.decisions: tuple[Decision, ...] = ()
        self.ahead: tuple[Decision, ...] = ()
        self.effects: tuple[Effect, ...] = ()

    def add(self, decisions: list[Decision], effects: list[Effect], now_s: float) -> None:
        """The newest wish for one knob counts. Wishes without a target are not admitted (they would be the root's)."""
        until_s = now_s + HOLD_S
        self._decisions |= {decision.key: (until_s, decision) for decision in decisions if decision.target}
        self._effects |= {(effect.kind, effect.target): (until_s, effect) for effect in effects if effect.target}
        if decisions or effects:
            self._refresh()

    def expire(self, now_s: float) -> None:
        if not (self._decisions or self._effects):
            return
        before = len(self._decisions), len(self._effects)
        self._decisions = {key: row for key, row in self._decisions.items() if row[0] > now_s}
        self._effects = {key: row for key, row in self._effects.items() if row[0] > now_s}
        if before != (len(self._decisions), len(self._effects)):
            self._refresh()

    def with_effects(self, wanted: Iterable[Iterable[Effect]]) -> Iterator[Effect]:
        """All that the strategies want, then what was admitted and they do not name."""
        named = set()
        for effects in wanted:
            for effect in effects:
                if self.effects:
                    named.add((effect.kind, effect.target))
                yield effect
        yield from (effect for effect in self.effects if (effect.kind, effect.target) not in named)

    def _refresh(self) -> None:
        found = [decision for _, decision in self._decisions.values()]
        self.ahead = tuple(decision for decision in found if decision.owner == AHEAD)
        self.decisions = tuple(decision for decision in found if decision.owner != AHEAD)
        self.effects = tuple(effect for _, effect in self._effects.values())
