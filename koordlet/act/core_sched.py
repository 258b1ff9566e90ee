"""Core scheduling cookies: the processes of a group share one, so that no other group runs on a core beside them.

Each round compares what the processes have with what they should have, so a process that came late, or one whose
cookie was lost because its giver died, is put right by the next one. The cookies that a former agent gave are adopted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from koordlet.act.attributes import Attributes
from koordlet.act.kill import members
from koordlet.kernel import coresched
from koordlet.kernel.host import Host
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.podeffects import CoreCookie

EAGER_S: Final = 10.0
CALM_S: Final = 10.0


class Cookies(Protocol):
    """The kernel's side (kernel/coresched.py)."""

    def cookie_of(self, pid: int) -> int: ...
    def create(self, pid: int) -> int: ...
    def share(self, source: int, pids: Iterable[int]) -> dict[int, OSError]: ...
    def clear(self, pids: Iterable[int]) -> dict[int, OSError]: ...


@dataclass(slots=True)
class _Round:
    done: int = 0
    undone: int = 0
    state: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class CoreCookies:
    """The applier. observe: looks, but changes nothing. count: told (group, well) of each round that changed, or could
    not change, a group's processes."""

    kind = CoreCookie.kind

    def __init__(
        self,
        host: Host,
        attributes: Attributes,
        *,
        observe: bool = False,
        kernel: Cookies | None = None,
        count: Callable[[str, bool], None] = lambda group, ok: None,
    ) -> None:
        self._count = count
        self._host, self._attributes, self._observe = host, attributes, observe
        self._kernel: Cookies = kernel or coresched
        self._cookies: dict[str, int] = {}
        self._effects: tuple[Effect, ...] = ()
        self._eager_until_s = self._due_s = float("-inf")
        self._report = EffectReport()

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        if effects != self._effects or self._due_s == float("-inf"):
            self._effects, self._eager_until_s = effects, now_s + EAGER_S
        elif now_s >= self._eager_until_s and now_s < self._due_s:
            return self._report
        self._due_s = now_s + CALM_S
        turn = _Round()
        groups: dict[str, list[str]] = {}
        for effect in effects:
            if isinstance(effect, CoreCookie):
                groups.setdefault(effect.group, []).append(effect.target)
        self._leave({target for targets in groups.values() for target in targets}, turn)
        for group, targets in groups.items():
            before = turn.done, len(turn.errors)
            self._together(group, targets, turn)
            if (turn.done, len(turn.errors)) != before:
                self._count(group, len(turn.errors) == before[1])
        self._cookies = {group: cookie for group, cookie in self._cookies.items() if group in groups}
        until_s = self._due_s if now_s >= self._eager_until_s else 0.0
        self._report = EffectReport(turn.done, turn.undone, len(turn.errors), turn.state, tuple(turn.errors), until_s)
        return self._report

    def restore_all(self, now_s: float, why: str) -> None:
        self._leave(set(), _Round())
        self._effects, self._cookies, self._due_s = (), {}, float("-inf")

    def _together(self, group: str, targets: list[str], turn: _Round) -> None:
        """One cookie for all processes of these cgroups."""
        found: dict[int, int] = {}
        for target in targets:
            found |= self._look(target, turn)
        if not found:
            return
        cookie = self._cookies.get(group) or self._adopted(found)
        if self._observe:
            return
        try:
            self._attributes.add(self.kind, dict.fromkeys(targets, group))
        except OSError as error:
            turn.errors.append(f"not made durable, nothing was changed: {error}")
            return
        if cookie not in found.values() or not cookie:
            cookie = self._create(found, turn)
            if not cookie:
                return
        self._cookies[group] = cookie
        self._share(cookie, found, turn)
        for target in targets:
            turn.state[target] = f"group {group or '(unlabelled)'} cookie {cookie:#x}"

    def _adopted(self, found: dict[int, int]) -> int:
        """A cookie that some of them have already and no other group: the former agent's."""
        taken = set(self._cookies.values())
        return next((cookie for cookie in found.values() if cookie and cookie not in taken), 0)

    def _create(self, found: dict[int, int], turn: _Round) -> int:
        for pid in found:
            try:
                found[pid] = self._kernel.create(pid)
            except OSError as error:
                _note(error, turn)
                continue
            turn.done += 1
            return found[pid]
        return 0

    def _share(self, cookie: int, found: dict[int, int], turn: _Round) -> None:
        """From whoever has it; the first giver may have died since we looked."""
        late = [pid for pid, has in found.items() if has != cookie]
        for source in [pid for pid, has in found.items() if has == cookie] if late else ():
            try:
                failed = self._kernel.share(source, late)
            except OSError as error:
                _note(error, turn)
                continue
            for fault in failed.values():
                _note(fault, turn)
            turn.done += len(late) - len(failed)
            return

    def _leave(self, wanted: set[str], turn: _Round) -> None:
        """Clear what is in the book and no longer wanted."""
        gone = set(self._attributes.of(self.kind)) - wanted
        if self._observe or not gone:
            return
        groups = self._attributes.of(self.kind)
        for target in gone:
            errors = len(turn.errors)
            pids = [pid for pid, cookie in self._look(target, turn).items() if cookie]
            failed = self._kernel.clear(pids) if pids else {}
            for error in failed.values():
                _note(error, turn)
            turn.undone += len(pids) - len(failed)
            if pids or len(turn.errors) > errors:
                self._count(str(groups[target]), len(turn.errors) == errors)
        self._attributes.drop(self.kind, gone)

    def _look(self, target: str, turn: _Round) -> dict[int, int]:
        """Processes of a cgroup and their cookies."""
        found: dict[int, int] = {}
        try:
            pids = sorted(members(self._host, target))
        except OSError as error:
            turn.errors.append(f"{target}: {error}")
            return found
        for pid in pids:
            try:
                if pid:  # 0: of another PID namespace
                    found[pid] = self._kernel.cookie_of(pid)
            except OSError as error:
                _note(error, turn)
        return found


def _note(error: OSError, turn: _Round) -> None:
    if error.errno != errno.ESRCH:  # a process that ended is none of our faults
        turn.errors.append(f"{error.filename or 'prctl'}: {error.strerror}")
