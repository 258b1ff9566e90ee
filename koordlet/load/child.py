"""`Child`: a load in a process of its own, in a cgroup from its first instruction on.

Talk over pipes: the child says `ready`, gets one line per run with the CLOCK_MONOTONIC nanosecond to start at, and
answers each with one line of JSON. It ends when its stdin is closed, when it is killed, or with its parent.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from koordlet._native import lib
from koordlet.load.batch import BatchLoad, BatchResult, Surge
from koordlet.load.errors import LoadError
from koordlet.load.online import OnlineLoad, OnlineResult, Slot

Load = OnlineLoad | BatchLoad | Surge
READY: Final = "ready"
READY_TIMEOUT_S: Final = 30.0


def start(load: Load, procs_files: Sequence[Path] = ()) -> Child:
    """Start the load's process in the cgroups of those `cgroup.procs` files and wait until it can go."""
    arguments = [sys.executable, "-m", "koordlet.load", type(load).__name__, json.dumps(asdict(load))]
    child = Child(
        subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=python_env(),
            process_group=0,  # a terminal's ^C reaches the parent alone, which then ends its children in order
            preexec_fn=before_exec(procs_files),
        )
    )
    try:
        if child.read_line(READY_TIMEOUT_S) != READY:
            raise LoadError(f"load child {arguments[3:]} did not get ready")
    except BaseException:
        child.close()
        raise
    return child


class Child:
    """A running load process. Use as a context manager: leaving it kills and reaps the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self, start_ns: int) -> None:
        """Start one run at that moment of CLOCK_MONOTONIC."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{start_ns}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise LoadError(f"load child is gone: {error}") from error

    def online_result(self, timeout_s: float) -> OnlineResult:
        answer = self._answer(timeout_s)
        slots = tuple(Slot(**slot) for slot in answer.pop("slots"))
        return OnlineResult(**answer, slots=slots)

    def batch_result(self, timeout_s: float) -> BatchResult:
        return BatchResult(**self._answer(timeout_s))

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of a run that has no result (a surge)."""
        self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        line = self.read_line(timeout_s)
        answer = json.loads(line) if line else {"error": f"the process ended, code {self._process.poll()}"}
        if "error" in answer:
            raise LoadError(f"load child: {answer['error']}")
        return dict(answer)

    def read_line(self, timeout_s: float) -> str:
        """The child's next line, "" when it ended. Raises LoadError when none comes in time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            raise LoadError(f"load child {self._process.pid} has not answered for {timeout_s:.0f} s")
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """Kill and reap; its own children die with it."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # an unflushed line to a process that is gone
                    pipe.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def before_exec(procs_files: Sequence[Path] = ()) -> Callable[[], None]:
    """For Popen's preexec_fn: join the cgroups, and die with this process even when it is killed.

    Callers have no threads, so running Python between fork and exec is safe.
    """
    parent = os.getpid()

    def prepare() -> None:
        if lib.kl_load_die_with_parent(parent) < 0:
            os._exit(1)
        for procs in procs_files:
            procs.write_text("0")  # 0 is the writing process

    return prepare


def python_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, in which `python -m koordlet...` finds this package from any directory."""
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(extra or {})}


def soon_ns(delay_s: float = 0.3) -> int:
    """A start for several children at once: late enough that all have read it."""
    return time.monotonic_ns() + round(delay_s * 1e9)
