"""Where every hook call ends, whichever door it came through: ask the pod rules, in time or not at all.

The answer comes from memory. What the protocol can carry goes back as the reply, the rest to the loop's thread.
Whatever goes wrong the reply is "unchanged": a runtime drops a slow plugin and fails a pod on an error, and the
reconciler comes by anyway.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from koordlet.doors.admission import Inbox
from koordlet.doors.timebox import LateError, Timebox
from koordlet.model.podevent import Hook, PodAnswer, PodEvent

log = structlog.get_logger(__name__)

LIMIT_S: Final = 1.0
"""Half of what containerd and CRI-O give (2 s)."""
UNCHANGED: Final = PodAnswer()
_QUIET_S: Final = 60.0


class HookError(Exception):
    """A hook failed and the operator wants the pod to fail with it (-runtime-hooks-plugin-failure-policy=Fail)."""


class Desk:
    """answer: the pod rules over the last view, called on a thread of ours. observed: count and log, reply "unchanged".
    disabled: stages that are never asked for. timed: called with (stage, status, milliseconds)."""

    def __init__(
        self,
        answer: Callable[[PodEvent], PodAnswer],
        inbox: Inbox,
        *,
        observe: bool = False,
        fail: bool = False,
        disabled: frozenset[Hook] = frozenset(),
        limit_s: float = LIMIT_S,
        timed: Callable[[str, str, float], None] = lambda stage, status, ms: None,
    ) -> None:
        self._answer = answer
        self._inbox = inbox
        self._observe, self._fail = observe, fail
        self._disabled = disabled
        self._limit_s = limit_s
        self._timed = timed
        self._box = Timebox("hook")
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._told: dict[str, float] = {}

    def ask(self, event: PodEvent, door: str, limit_s: float = LIMIT_S) -> PodAnswer:
        """What to reply; `UNCHANGED` itself whenever nothing is to be said. limit_s: what the caller can wait, of which
        half is used at most for the answer, and a quarter until the loop, which may be amid a tick, has carried out
        what must be in the kernel before the reply. Raises HookError."""
        if event.hook in self._disabled:
            return UNCHANGED
        began_s = time.monotonic()
        status, why = "succeeded", ""
        answer = UNCHANGED
        try:
            answer = self._box.ask(lambda: self._answer(event), min(self._limit_s, limit_s / 2))
            if answer.faults:
                status, why = "failed", "; ".join(answer.faults)
        except LateError as error:
            status, why = "failed", str(error)
            self.count(f"hook_late_total{{door={door}}}")
        except Exception as error:
            status, why = "failed", f"{type(error).__name__}: {error}"
        self._timed(event.hook.value, status, (time.monotonic() - began_s) * 1e3)
        self.count(f"hook_calls_total{{door={door},status={status}}}")
        if why:
            self._complain(event, door, why)
            if self._fail:
                raise HookError(why)
        if self._observe:
            return UNCHANGED
        if answer.decisions or answer.effects:
            self._inbox.put(answer.decisions, answer.effects)
        if answer.ahead and not self._inbox.put_and_wait(answer.ahead, limit_s / 4):
            self.count(f"hook_late_total{{door={door}}}")
        return answer

    def news(self) -> None:
        """All pods were told of: have the loop judge them now. A single one waits for its next round: its answer has
        said what must be at once."""
        self._inbox.put(news=True)

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    def figures(self) -> dict[str, float]:
        """For /metrics, as report.metrics takes them."""
        with self._lock:
            return {**self._counts, "hook_dropped_total": self._inbox.dropped}

    def close(self) -> None:
        self._box.close()

    def _complain(self, event: PodEvent, door: str, why: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._told.get(why, -_QUIET_S) < _QUIET_S:
                return
            if len(self._told) > 256:
                self._told.clear()
            self._told[why] = now_s
        name = event.container.name if event.container else ""
        log.warning("hook.failed", door=door, stage=event.hook.value, pod=event.pod.key, container=name, error=why)
