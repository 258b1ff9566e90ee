"""Freezing a group for a moment, never for longer: noted durably before it is frozen, thawed by whoever comes after us.

Only the killing of a group that keeps forking needs it (kill.py). An agent that dies meanwhile would leave the group
frozen for ever, and on cgroup v1 a frozen process does not even die.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from koordlet.act.attributes import Attributes
from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import Host
from koordlet.kernel.knobs import knob_path
from koordlet.kernel.knobtext import encode
from koordlet.kernel.write import write_file
from koordlet.model.knob import Knob

log = structlog.get_logger(__name__)


class Freezer:
    """Keeps `cgroup -> inode` of what it froze among the attributes, under `kind`."""

    kind = "frozen"

    def __init__(self, host: Host, attributes: Attributes, writer: Callable[[Path, bytes], None] = write_file) -> None:
        self._host, self._attributes, self._writer = host, attributes, writer

    @contextmanager
    def hold(self, target: str) -> Iterator[None]:
        """Frozen while the block runs; not at all where there is no freezer or where it cannot be noted down. Raises
        OSError; what could not be thawed stays noted."""
        inode = self._note(target)
        if inode is None:
            yield
            return
        try:
            self._write(target, 1)
            yield
        finally:
            self._thaw(target, inode)  # v1 lets a frozen process die only then

    def thaw_all(self) -> tuple[str, ...]:
        """What an agent left frozen, if it still is that group; one line per group that could not be thawed."""
        errors = []
        for target, inode in self._attributes.of(self.kind).items():
            try:
                self._thaw(target, inode)
                log.info("freeze.thawed", cgroup=target)
            except OSError as error:
                errors.append(f"{target}: {error.strerror}")
                log.warning("freeze.not_thawed", cgroup=target, error=error.strerror)
        return tuple(errors)

    def _note(self, target: str) -> int | None:
        """The group's inode once it is noted down, else None."""
        try:
            inode = os.stat(self._path(target)).st_ino
            self._attributes.add(self.kind, {target: inode})
        except OSError as error:
            if not is_gone(error):
                log.warning("freeze.not_noted", cgroup=target, error=error.strerror)
            return None
        return inode

    def _thaw(self, target: str, inode: int) -> None:
        try:
            if os.stat(self._path(target)).st_ino == inode:
                self._write(target, 0)
        except OSError as error:
            if not is_gone(error):
                raise
        self._attributes.drop(self.kind, {target})

    def _path(self, target: str) -> Path:
        path = knob_path(self._host, target, Knob.FREEZE)
        assert path is not None, "both versions have one"
        return path

    def _write(self, target: str, frozen: int) -> None:
        self._writer(self._path(target), encode(self._host.version, Knob.FREEZE, frozen))
