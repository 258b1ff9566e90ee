"""From declarations to cgroups: which directories exist for each match, and who gets one that several want."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import is_gone
from koordlet.kernel.host import Host
from koordlet.kernel.systemd import pid_cgroup, unit_cgroups
from koordlet.model.cgroup import ancestors
from koordlet.model.places import SHARED
from koordlet.model.qos import Qos
from koordlet.sources.declarations import Declaration, Match, Rank

MAX_MATCHES: Final = 4096
"""Cgroups that one declaration may match."""
UNIT_WALK_S: Final = 2.0
"""Least time between two walks of the unit tree for one match; known units are looked at on every call."""
_PID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Found:
    """One matched cgroup. inode tells a directory from a later one of the same name."""

    path: str
    inode: int
    declaration: Declaration


@dataclass(frozen=True, slots=True)
class Resolution:
    """found: sorted by path. notes: ties, nested matches and matches that cannot be used."""

    found: tuple[Found, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Walk:
    """Result of one walk of the unit tree. note: why its units cannot be used, "" when they can."""

    at_s: float
    paths: tuple[str, ...]
    note: str = ""


class Resolver:
    """Finds the cgroups of declarations in the cpu hierarchy (v2: the unified one), cheaply enough for each tick."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._root = host.dir("cpu", "")
        self._walks: dict[str, _Walk] = {}
        self._last: dict[str, list[tuple[str, int]]] = {}

    def resolve(self, declarations: tuple[Declaration, ...], now_s: float) -> Resolution:
        """One claimant per cgroup, the most specific; of one declaration only the outermost cgroups."""
        notes: list[str] = []
        claims: dict[str, list[tuple[Declaration, int]]] = {}
        for declaration in declarations:
            for path, inode in self._usable(declaration, now_s, notes):
                claims.setdefault(path, []).append((declaration, inode))
        found = []
        for path in sorted(claims):
            declaration, inode = _winner(path, claims[path], notes)
            found.append(Found(path, inode, declaration))
        notes += _nested(found)
        return Resolution(tuple(found), tuple(notes))

    def forget(self) -> None:
        """Look for everything anew at the next call; the declarations changed."""
        self._walks.clear()
        self._last.clear()

    def _usable(self, declaration: Declaration, now_s: float, notes: list[str]) -> list[tuple[str, int]]:
        """Matched cgroups that may be managed; those of the last call when the kernel refuses to tell."""
        where = declaration.where
        try:
            matched = self._matches(declaration.match, now_s)
        except _UnusableError as error:
            notes.append(f"{where}: {error}")
            return []
        except OSError as error:
            notes.append(f"{where}: {error.strerror or error}")
            return self._last.get(where, [])
        usable: dict[str, int] = {}
        for path, inode in matched:
            if not path:
                notes.append(f"{where}: the process is in the root cgroup, which cannot be managed")
            elif declaration.match.rank is Rank.PID_FILE and path.rpartition("/")[2] in SHARED:
                notes.append(
                    f"{where}: the process is in {path} with other people's work, left out; give it its own cgroup"
                )
            elif _is_kubelets(path):
                notes.append(f"{where}: cgroup {path} belongs to the kubelet, left out")
            elif not any(outer in usable for outer in ancestors(path)):
                usable[path] = inode
        if len(usable) > MAX_MATCHES:
            notes.append(f"{where}: matches {len(usable)} cgroups, only {MAX_MATCHES} are taken")
        self._last[where] = list(usable.items())[:MAX_MATCHES]
        return self._last[where]

    def _matches(self, match: Match, now_s: float) -> list[tuple[str, int]]:
        """(path, inode) sorted by path, parents before children."""
        if match.rank is Rank.CGROUP:
            return self._existing((match.text,))
        if match.rank is Rank.CGROUP_GLOB:
            return self._glob(match)
        if match.rank is Rank.PID_FILE:
            return self._existing(self._pid_path(Path(match.text)))
        return self._units(match.text, now_s)

    def _existing(self, paths: Iterable[str]) -> list[tuple[str, int]]:
        found = []
        for path in paths:
            inode = self._inode(path)
            if inode is not None:
                found.append((path, inode))
        return found

    def _inode(self, path: str) -> int | None:
        try:
            return (self._root / path).stat().st_ino
        except OSError as error:
            if is_gone(error):
                return None
            raise

    def _glob(self, match: Match) -> list[tuple[str, int]]:
        parts = match.text.split("/")
        fixed = match.text[: match.literal].count("/")
        level = [("/".join(parts[:fixed]), 0)]
        for part in parts[fixed:]:
            level = [
                (f"{parent}/{name}" if parent else name, inode)
                for parent, _ in level[: MAX_MATCHES + 1]
                for name, inode in self._children(parent)
                if fnmatchcase(name, part)
            ]
        return sorted(level)

    def _children(self, path: str) -> list[tuple[str, int]]:
        try:
            with os.scandir(self._root / path) as entries:
                return [(entry.name, entry.inode()) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if is_gone(error):
                return []
            raise

    def _units(self, pattern: str, now_s: float) -> list[tuple[str, int]]:
        walk = self._walks.get(pattern)
        found = self._existing(walk.paths) if walk else []
        several = any(mark in pattern for mark in "*?[")
        if walk is None or ((several or not found) and now_s - walk.at_s >= UNIT_WALK_S):
            paths = tuple(unit_cgroups(self._host, pattern))
            found = self._existing(paths)
            note = ""
            if paths and not found:
                unit = paths[0].rpartition("/")[2]
                note = f"unit {unit} has no cgroup in the cpu hierarchy; set CPUAccounting=yes in it"
            walk = self._walks[pattern] = _Walk(now_s, paths, note)
        if walk.note and not found:
            raise _UnusableError(walk.note)
        return found

    def _pid_path(self, file: Path) -> tuple[str, ...]:
        try:
            with file.open("rb") as opened:
                text = opened.read(_PID_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            if is_gone(error):
                return ()
            raise
        if not (text.isascii() and text.isdigit() and len(text) < 11):
            raise _UnusableError(f"{file} holds no process id")
        path = pid_cgroup(self._host, int(text), "cpu")
        return () if path is None else (path,)


class _UnusableError(Exception):
    """The match exists, but nothing can be done with it."""


def _winner(path: str, claims: list[tuple[Declaration, int]], notes: list[str]) -> tuple[Declaration, int]:
    """Most specific match; of equals the first in file and item order, and that is said."""
    ranked = sorted(enumerate(claims), key=lambda claim: (_specific(claim[1][0].match), claim[0]))
    first = ranked[0][1]
    for _, other in ranked[1:]:
        if _specific(other[0].match) == _specific(first[0].match):
            notes.append(f"cgroup {path} is matched by {first[0].where} and {other[0].where}; the first one holds")
    return first


def _specific(match: Match) -> tuple[int, int]:
    longest_first = -match.literal if match.rank is Rank.CGROUP_GLOB else 0
    return (match.rank, longest_first)


def _nested(found: list[Found]) -> list[str]:
    """A workload inside another one is counted in both: its owner should know."""
    by_path = {item.path: item.declaration for item in found}

    def spared(inner: Declaration, outer: Declaration) -> str:
        mixed = outer.qos is Qos.BE and inner.qos is not Qos.BE
        return f", and being {inner.qos} it keeps the outer one from being capped or evicted" if mixed else ""

    return [
        f"{item.declaration.where}: cgroup {item.path} lies inside {outer} of {by_path[outer].where}; "
        f"its usage counts in both{spared(item.declaration, by_path[outer])}"
        for item in found
        for outer in ancestors(item.path)
        if outer in by_path
    ]


def _is_kubelets(path: str) -> bool:
    return any(part == "kubepods" or part.endswith("kubepods.slice") for part in path.split("/"))
