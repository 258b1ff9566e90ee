"""The rate at which one agent may ask the API server (--kube-api-qps, --kube-api-burst)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimit:
    """A token bucket. `take` says how long to wait for one's turn; turns are given in the order of asking."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst = per_s, float(max(burst, 1))
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens, self._at_s = self._burst, clock()

    def take(self) -> float:
        """Seconds to wait before sending. per_s of 0 or less: no limit."""
        if self._per_s <= 0:
            return 0.0
        with self._lock:
            self._fill()
            self._tokens -= 1.0
            return max(0.0, -self._tokens / self._per_s)

    def spare(self) -> float:
        """How many may be sent now without waiting."""
        with self._lock:
            self._fill()
            return self._tokens

    def _fill(self) -> None:
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
