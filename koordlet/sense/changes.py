"""`Changes`: whether anything changed where the loop's inputs come from, for a few microseconds.

Asking for all of them through Python every tick cost more than measuring the pods did (bench/tick.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koordlet._native import ffi, lib

if TYPE_CHECKING:
    from koordlet._native import CData


@dataclass(frozen=True, slots=True)
class Places:
    """files: directories in which files come, go or are written. groups: cgroups in which others come and go.
    contents: kernel files that are compared."""

    files: tuple[Path, ...] = ()
    groups: tuple[Path, ...] = ()
    contents: tuple[Path, ...] = ()


class Changes:
    """places: where to look; asked at every look, the same object while it is the same. A directory that is not there
    is found within five looks. Where the kernel tells nothing (its limits of inotify are reached) everything counts as
    changed.
    """

    def __init__(self, places: Callable[[], Places]) -> None:
        self._places = places
        self._known: Places | None = None
        self._native: CData = ffi.NULL

    def any(self) -> bool:
        """Whether something changed since the last look; True at the first look at these places."""
        places = self._places()
        if places is not self._known:
            self._known = places
            self._follow(places)
        return bool(lib.kl_changes_look(self._native))

    def _follow(self, places: Places) -> None:
        """Raises MemoryError."""
        made = lib.kl_changes_new()
        if made == ffi.NULL:
            raise MemoryError("no memory to follow files")
        self._native = ffi.gc(made, lib.kl_changes_free)
        for path in places.files:
            _check(lib.kl_changes_follow_directory(made, os.fsencode(path), True))
        for path in places.groups:
            _check(lib.kl_changes_follow_directory(made, os.fsencode(path), False))
        for path in places.contents:
            _check(lib.kl_changes_follow_content(made, os.fsencode(path)))


def _check(error: int) -> None:
    if error:
        raise MemoryError("no memory to follow files")
