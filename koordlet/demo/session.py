"""Around a measurement: scratch cgroups, signals, scheduling of the measuring process, exit codes.

Used by the demo and by the benches that repeat its measurements for longer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from koordlet.load.cgroups import ScratchTree, scratch_tree
from koordlet.load.errors import LoadError

CGROUP: Final = "koordlet-demo"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked for the end; its number is the argument."""


def guarded(body: Callable[[], int]) -> int:
    """The body's exit code, 1 when this machine cannot run it, 128 + signal when it was stopped."""
    try:
        with _stop_on_signals():
            return body()
    except Stopped as stopped:
        number = int(stopped.args[0])
        say(f"stopped by {signal.Signals(number).name}; the demo's cgroups and processes are gone")
        return 128 + number
    except LoadError as error:
        say(str(error))
        return 1


@contextmanager
def session() -> Iterator[ScratchTree]:
    """Cgroups to measure in. Raises LoadError when this process may not make any."""
    if os.geteuid() != 0:
        raise LoadError("the demo makes cgroups of its own and needs root: sudo koordlet demo")
    with scratch_tree(CGROUP) as tree, _ahead_of_the_load():
        yield tree


def say(line: str) -> None:
    """Progress and complaints go to standard error."""
    print(f"koordlet demo: {line}", file=sys.stderr, flush=True)


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into `Stopped`; further ones must not disturb the cleaning up."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ahead_of_the_load() -> Iterator[None]:
    """Let this process read its counters in time while the machine is full; its children run as everybody does.

    It needs less than 1 % of a CPU. Where real-time scheduling is not allowed, readings may come late.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
