"""The life of the built agent: what the signals ask for, the loop, and giving everything back at its end.

SIGTERM, SIGINT: loop ends -> everything written is given back (unless told to keep it) -> doors close.
SIGHUP makes the next tick look at every file, whether its change was told or not.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

import structlog

from koordlet.act.executor import Executor
from koordlet.config.flags import Flags
from koordlet.kernel.ownpages import collapse_heap
from koordlet.loops import Engine
from koordlet.loops import run as run_loop
from koordlet.model.status import Snapshot
from koordlet.report.notify import Notifier, watchdog_interval_s
from koordlet.wiring.runtime import RuntimeDoors

log = structlog.get_logger(__name__)

JUDGED_TICKS = 3
"""By then a rate has been taken, and every strategy has named what it wants."""
JUDGED_LATEST_S = 30.0
"""Without pods, what a predecessor left is given back after this."""


class Stop:
    """Signals become bytes on a pipe that the loop waits on, and flags it reads. Handlers do nothing else: they may
    interrupt anything, a log line included."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.reload = False
        self.wake_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)

    def wake(self) -> None:
        """Let the loop look for news of its sources; from any thread."""
        with suppress(BlockingIOError):  # full: it is awake already
            os.write(self._write_fd, b"\0")

    def _ask(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self.reload = True
        else:
            self.asked = signal.Signals(number)


@dataclass(slots=True)
class Agent:
    """The built agent; `serve` runs it."""

    flags: Flags
    engine: Engine
    executor: Executor
    doors: RuntimeDoors
    notifier: Notifier
    stop: Stop

    def serve(self) -> None:
        interval_s = watchdog_interval_s()
        pinged_s, started_s = 0.0, time.monotonic()
        degraded: tuple[str, ...] = ()
        reloading = False

        def after_tick(now_s: float) -> None:
            nonlocal pinged_s, degraded, reloading
            snapshot = self.engine.snapshot
            if snapshot is not None and snapshot.degraded != degraded:
                tell_degraded(degraded, snapshot.degraded)
                degraded = snapshot.degraded
            if reloading:  # this tick has looked at every file after the signal
                reloading = False
                self.notifier.ready("running")
                log.info("reload.done")
            if self.executor.owes and snapshot is not None and self._judged(snapshot, now_s - started_s):
                self.executor.give_back_left()
            if self.stop.reload:
                self.stop.reload = False
                reloading = True
                self.engine.look_anew()
                self.notifier.reloading()
                log.info("reload.asked")
            if self.engine.stats.ticks == 1:
                self.notifier.ready("running")
                settle()
                log.info("ready", node=snapshot.view.node.name if snapshot else "")
            if interval_s is not None and now_s - pinged_s >= interval_s:
                pinged_s = now_s
                self.notifier.watchdog()

        log.info("start", pid=os.getpid(), standalone=self.flags.standalone, observe=self.flags.observe)
        try:
            run_loop(self.engine, lambda: self.stop.asked is not None, self.stop.wake_fd, after_tick)
        finally:  # whatever ended the loop, nothing of ours stays behind
            asked = self.stop.asked
            log.info("stopping", signal=asked.name if asked else "")
            self.notifier.stopping()
            self.doors.close()  # or a pod of this moment would get what is being given back
            if self.flags.restore_on_exit:
                why = "clean stop" if asked else "the loop failed"
                for applier in self.engine.parts.appliers:
                    applier.restore_all(time.monotonic(), why)
                self.executor.restore_all(time.monotonic(), why)
        log.info("stopped")

    def _judged(self, snapshot: Snapshot, running_s: float) -> bool:
        """Whether what nobody wants now is not wanted: the inputs were there, or a write was refused that a value left
        behind may stand in the way of, or they have not come for too long."""
        ticks = self.engine.stats.ticks
        known = snapshot.view.pods.at_s is not None and ticks >= JUDGED_TICKS
        return known or snapshot.apply.failed > 0 or running_s >= JUDGED_LATEST_S


def settle() -> None:
    """What lives until now lives for good: keep the collector off it, and make it cheap to reach."""
    gc.collect()
    gc.freeze()
    collapse_heap()


def tell_degraded(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    """What is new is a warning, what is over is none."""
    if over := [reason for reason in before if reason not in now]:
        log.info("degraded.over", reasons=over, left=len(now))
    if fresh := [reason for reason in now if reason not in before]:
        log.warning("degraded", reasons=fresh)
