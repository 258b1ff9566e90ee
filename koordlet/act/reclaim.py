"""Reclaim: asks the kernel to take memory back from a cgroup (v2, memory.reclaim), on a thread of its own.

The kernel does the work inside the write, which may take long; the loop never waits for it. One request per cgroup is
under way at a time, and of those that wait the newest counts.
"""

from __future__ import annotations

import errno
import math
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import ensure_target
from koordlet.kernel.write import write_file
from koordlet.model.audit import AuditRecord, AuditSink
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.reclaim import Reclaim
from koordlet.model.why import why_text

log = structlog.get_logger(__name__)

FILE: Final = "memory.reclaim"
LEVEL: Final = 3
END_S: Final = 1.0
Write = Callable[[Path, bytes], None]


class Reclaimer:
    """The applier of `Reclaim`. observe: nothing is asked of the kernel. write: tests pass another."""

    kind = Reclaim.kind

    def __init__(self, host: Host, audit: AuditSink, *, observe: bool = False, write: Write = write_file) -> None:
        self._host, self._audit, self._observe, self._write = host, audit, observe, write
        self._wanted: queue.SimpleQueue[Reclaim | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[Reclaim, int, str]] = queue.SimpleQueue()
        self._busy: set[str] = set()
        self._state: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._can_say_file_only = True

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        done, failed, errors = 0, 0, list[str]()
        while not self._finished.empty():  # nobody else takes from it
            effect, freed, error = self._finished.get_nowait()
            self._busy.discard(effect.target)
            done, failed = done + (not error), failed + bool(error)
            self._tell(effect, freed, error)
            if error:
                errors.append(f"{effect.target}/{FILE}: {error}")
        self._state = {target: text for target, text in self._state.items() if target in {e.target for e in effects}}
        for effect_ in effects:
            if isinstance(effect_, Reclaim) and effect_.target not in self._busy:
                self._ask(effect_)
        until_s = 0.0 if effects or self._busy else math.inf
        return EffectReport(done=done, failed=failed, state=dict(self._state), errors=tuple(errors), until_s=until_s)

    def restore_all(self, now_s: float, why: str) -> None:
        """Reclaimed memory comes back by itself; only the thread is told to end. One that the kernel holds up is left
        to end by itself."""
        if self._thread is not None:
            self._wanted.put(None)
            self._thread.join(END_S)
            self._thread = None

    def _ask(self, effect: Reclaim) -> None:
        if self._observe:
            if self._state.get(effect.target) != "observed":
                self._state[effect.target] = "observed"
                self._audit(self._record("observe", effect, f"would reclaim {effect.bytes} bytes"))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="reclaim", daemon=True)
            self._thread.start()
        self._busy.add(effect.target)
        self._state[effect.target] = f"reclaiming {effect.bytes} bytes"
        self._wanted.put(effect)

    def _work(self) -> None:
        while (effect := self._wanted.get()) is not None:
            try:
                freed, error = self._reclaim(effect)
            except ValueError as fault:
                freed, error = 0, str(fault)
            self._finished.put((effect, freed, error))

    def _reclaim(self, effect: Reclaim) -> tuple[int, str]:
        """(bytes by which the usage fell, error). Less than asked for is no error: the kernel found no more."""
        if self._host.version is not CgroupVersion.V2:
            return 0, "needs cgroup v2"
        group = self._host.dir("memory", ensure_target(effect.target))
        before = _current(group)
        try:
            self._write_amount(group / FILE, effect)
        except OSError as error:
            if error.errno != errno.EAGAIN and not is_gone(error):
                return 0, error.strerror or str(error)
        return max(before - _current(group), 0), ""

    def _write_amount(self, path: Path, effect: Reclaim) -> None:
        """File pages only by a swappiness of 0, which kernels take since 6.7; older ones answer EINVAL to it."""
        amount = b"%d" % effect.bytes
        if effect.file_only and self._can_say_file_only:
            try:
                self._write(path, amount + b" swappiness=0")
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._can_say_file_only = False
            else:
                return
        self._write(path, amount)

    def _tell(self, effect: Reclaim, freed: int, error: str) -> None:
        if error:
            log.warning("reclaim.failed", target=effect.target, bytes=effect.bytes, error=error)
        self._audit(self._record("refused" if error else "write", effect, f"freed {freed} bytes", error))

    def _record(self, mode: str, effect: Reclaim, what: str, error: str = "") -> AuditRecord:
        kinds = "file pages" if effect.file_only else "memory"
        text = f"{mode} {effect.target}/{FILE}: {effect.bytes} bytes of {kinds}, {what}; {why_text(effect.why)}"
        return AuditRecord(
            level=LEVEL,
            kind="group",
            reason="UpdateCgroups",
            message=text,
            name=effect.target,
            target=effect.target,
            knob=FILE,
            after=str(effect.bytes),
            owner=effect.owner,
            why=effect.why,
            mode=mode,
            error=error,
        )


def _current(group: Path) -> int:
    """memory.current, 0 when it is gone: only the audit reads it."""
    try:
        fd = os.open(group / "memory.current", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        text = os.read(fd, 32)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return int(text) if text.strip().isdigit() else 0
