"""How long to wait after a failure: doubling, bounded, spread, so that a thousand nodes do not return as one."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Waits of about first_s, 2 first_s, ... up to most_s, each times 0.5..1. `random`: uniform in [0, 1)."""

    def __init__(self, first_s: float = 0.5, most_s: float = 30.0, random: Callable[[], float] = random.random) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._random = random
        self._next_s = first_s

    def next_s(self) -> float:
        """The wait after one more failure in a row."""
        wait_s = self._next_s * (0.5 + 0.5 * self._random())
        self._next_s = min(2 * self._next_s, self._most_s)
        return wait_s

    def reset(self) -> None:
        """It worked."""
        self._next_s = self._first_s
