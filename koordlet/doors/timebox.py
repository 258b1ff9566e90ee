"""Runs short questions on a few threads of its own and waits for each only so long. What comes late is thrown away."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_THREADS: Final = 8


class LateError(Exception):
    """No answer in time, or every thread is still busy with an earlier question."""


class _Question(Generic[T]):
    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self.done = threading.Event()
        self.answer: T | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.answer = self._ask()
        except Exception as error:  # the asker's to judge
            self.error = error
        self.done.set()


class Timebox:
    """Threads are daemons: one that never comes back does not keep the process from ending."""

    def __init__(self, name: str, threads: int = MAX_THREADS) -> None:
        self._name = name
        self._most = threads
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        self._waiting: queue.SimpleQueue[_Question[object] | None] = queue.SimpleQueue()

    def ask(self, ask: Callable[[], T], limit_s: float) -> T:
        """The answer. Raises LateError, or what the question raised."""
        question = _Question(ask)
        with self._lock:
            if self._busy >= self._most:
                raise LateError(f"all {self._most} threads are busy")
            self._busy += 1
            if self._busy > self._threads:
                self._threads += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._waiting.put(question)  # type: ignore[arg-type]
        if not question.done.wait(limit_s):
            raise LateError(f"no answer within {limit_s:.2f} s")
        if question.error is not None:
            raise question.error
        return question.answer  # type: ignore[return-value]

    def close(self) -> None:
        """Idle threads end; the others after their question."""
        with self._lock:
            threads, self._most = self._threads, 0
        for _ in range(threads):
            self._waiting.put(None)

    def _serve(self) -> None:
        while (question := self._waiting.get()) is not None:
            question.run()
            with self._lock:
                self._busy -= 1
