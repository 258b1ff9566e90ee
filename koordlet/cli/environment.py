"""Checks of what surrounds the agent: rights, limits, directories, another agent. Reads only."""

from __future__ import annotations

import importlib.util
import os
import resource
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordlet.cli.client import AgentError, ask
from koordlet.model.places import JOURNAL_FILE, SOCKET_FILE

if TYPE_CHECKING:
    from koordlet.kernel.host import Host

CAP_SYS_RESOURCE: Final = 24
FILES_WANTED: Final = 16_384
"""The agent keeps about ten files open per pod and container: 500 pods of two containers."""


class Grade(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """advice: what to do, "" when there is nothing to do."""

    name: str
    grade: Grade
    text: str
    advice: str = ""


def environment(host: Host, state_dir: Path, run_dir: Path) -> list[Finding]:
    return [_root(), _native(), _cgroups(host), _cap_sys_resource(host), _files(), _state(state_dir), _agent(run_dir)]


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", Grade.OK, "running as root")
    return Finding("root", Grade.WARN, f"running as user {os.geteuid()}", "the agent needs root: sudo koordlet check")


def _native() -> Finding:
    if importlib.util.find_spec("koordlet._native") is not None:
        return Finding("native code", Grade.OK, "koordlet._native is there")
    advice = "install the package, or in a source tree: python setup.py build_ext --inplace"
    return Finding("native code", Grade.FAIL, "koordlet._native is missing", advice)


def _cgroups(host: Host) -> Finding:
    place = host.dir("cpu", "")
    if not place.is_dir():
        advice = "mount the cgroup file system, or name it by --cgroup-root-dir"
        return Finding("cgroups", Grade.FAIL, f"{place} is not there", advice)
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        advice = "mount it read-write (in a container: privileged, or a host mount)"
        return Finding("cgroups", Grade.FAIL, f"{place} is mounted read-only", advice)
    if not os.access(place, os.W_OK):
        return Finding("cgroups", Grade.FAIL, f"{place} is not writable for this user", "run as root")
    return Finding("cgroups", Grade.OK, f"{place} is writable")


def _cap_sys_resource(host: Host) -> Finding:
    name = "CAP_SYS_RESOURCE"
    try:
        text = (host.proc_root / "self/status").read_text()
        mask = int(next(line.split()[1] for line in text.splitlines() if line.startswith("CapEff:")), 16)
    except (OSError, StopIteration, ValueError, IndexError):
        return Finding(name, Grade.WARN, "cannot be told")
    if mask >> CAP_SYS_RESOURCE & 1:
        return Finding(name, Grade.OK, "pressure triggers with short windows are allowed")
    advice = "grant it for faster wake-ups; without it the agent polls"
    return Finding(name, Grade.WARN, "pressure triggers only with windows of 2 s", advice)


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_limit(hard)} (now {_limit(soft)}, the agent raises it itself)"
    if hard == resource.RLIM_INFINITY or hard >= FILES_WANTED:
        return Finding("open files", Grade.OK, text)
    return Finding("open files", Grade.WARN, text, f"enough for a small node; LimitNOFILE={FILES_WANTED} for 500 pods")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _state(state_dir: Path) -> Finding:
    """The journal must be durable before the first write, so without this directory nothing is written at all."""
    place = state_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding("state dir", Grade.FAIL, f"{place} is not writable", "run as root, or choose another -state-dir")
    if place != state_dir:
        return Finding("state dir", Grade.OK, f"{state_dir} can be made")
    if (state_dir / JOURNAL_FILE).exists():
        return Finding("state dir", Grade.OK, f"{state_dir} has a journal")
    return Finding("state dir", Grade.OK, f"{state_dir} is writable")


def _agent(run_dir: Path) -> Finding:
    path = run_dir / SOCKET_FILE
    try:
        status, answer = ask(str(path), "/healthz")
    except AgentError as error:
        if error.gone:
            return Finding("agent", Grade.OK, f"none runs on {path}")
        return Finding("agent", Grade.WARN, str(error))
    if status == 200:
        return Finding("agent", Grade.OK, f"one runs on {path}")
    return Finding("agent", Grade.WARN, f"one runs on {path}, but: {answer}", "see its log; koordlet status")
