"""Applier of `ResctrlGroup`: groups as wanted, their schemata, and every task of their pods in them.

Order within a round: what is not wanted any more goes first (its class is needed), then groups, then schemata, then
tasks, so that no task ever runs under limits that are not its own. Ours are the groups in the state file and those
named `koordlet-...`; nobody else's group is changed, and a task that somebody put into his own group stays there.

Cost. Schemata are read back once per CHECK_S, tasks as resctrl_tasks says. Anything else is one comparison.
"""

from __future__ import annotations

import errno
import math
from typing import Final

import structlog

from koordlet.act.resctrl_state import Adopted, State, StateError
from koordlet.act.resctrl_tasks import NO_ROOM_S, Group, TaskMover, monitor_dir
from koordlet.act.resctrl_tree import Refused, ResctrlTree
from koordlet.act.resctrl_undo import give_back, undo_resctrl
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import Host
from koordlet.kernel.resctrl import full_lines, read_resctrl, same_line
from koordlet.model.audit import AuditRecord, AuditSink
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.resctrl import POD_PREFIX, ResctrlGroup

log = structlog.get_logger(__name__)

CHECK_S: Final = 30.0
BACKOFF_S: Final = (2.0, 60.0)
"""First and longest pause after a refusal."""


class ResctrlApplier:
    """kind "resctrl". observe: says what it would do and writes nothing."""

    kind = "resctrl"

    def __init__(self, host: Host, state: State, audit: AuditSink, tree: ResctrlTree, *, observe: bool = False) -> None:
        self._host, self._state, self._audit, self._tree, self._observe = host, state, audit, tree, observe
        self._effects: tuple[Effect, ...] = ()
        self._groups: dict[str, Group] = {}
        self._tasks = TaskMover(host, state, tree, self._moved)
        self._clean = True  # until somebody wants something there is nothing to take back
        self._due_s = -math.inf
        self._names: list[str] = []
        self._report = EffectReport(until_s=math.inf)
        self._done = self._undone = 0

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        if effects != self._effects:
            self._take(effects, now_s)
        elif now_s < self._due_s or (self._clean and not effects):
            return self._report
        if self._observe:
            return self._observed()
        self._done = self._undone = self._tasks.done = 0
        errors: list[str] = []
        try:
            if not self._tree.mounted():
                errors += ["resctrl is not mounted"] if effects else []
                self._forget()
            else:
                self._round(now_s, errors)
        except StateError as error:
            errors.append(f"not written, it could not be recorded: {error}")
        except (Refused, KernelFileError) as error:
            errors.append(str(error))
        self._due_s = self._next(now_s)
        errors += [group.error for group in self._groups.values() if group.error]
        rows = {
            name or "(root)": group.error or f"in force, {group.moved} tasks moved"
            for name, group in self._groups.items()
        }
        self._report = EffectReport(
            self._done + self._tasks.done, self._undone, len(errors), rows, tuple(dict.fromkeys(errors))
        )
        return self._report

    def restore_all(self, now_s: float, why: str) -> None:
        if self._observe:
            return
        try:
            done, errors = undo_resctrl(self._tree, self._state)
        except StateError as error:
            done, errors = 0, [str(error)]
        if done or errors:
            log.info("resctrl.restored", why=why, groups=done, errors=errors)
        self._effects, self._groups = (), {}
        self._tasks.forget()

    # wishes

    def _take(self, effects: tuple[Effect, ...], now_s: float) -> None:
        self._effects, self._clean = effects, False
        wanted = {effect.target: effect for effect in effects if isinstance(effect, ResctrlGroup)}
        before, self._groups = self._groups, {}
        for name, effect in wanted.items():
            group = before.get(name)
            if group is None:
                group = Group(effect)
            elif group.effect.schemata != effect.schemata:
                group.due_s, group.fails = -math.inf, 0
            group.effect = effect
            self._groups[name] = group
        self._tasks.take(wanted, now_s)

    def _forget(self) -> None:
        for group in self._groups.values():
            group.there, group.lines, group.due_s = False, (), -math.inf
        self._clean = True

    # one round

    def _round(self, now_s: float, errors: list[str]) -> None:
        names = self._tree.groups()
        if len(names) < len(self._names):  # somebody's class came free
            for group in self._groups.values():
                group.due_s = -math.inf if group.fails else group.due_s
        self._remove_unwanted(names, errors)
        for name, group in self._groups.items():
            if name in names or name == "":
                if not group.there:
                    group.due_s = min(group.due_s, now_s)
            elif group.there:
                log.warning("resctrl.group_vanished", group=name)
                group.there, group.lines, group.due_s = False, (), -math.inf
                self._tasks.hurry(name)
            if group.due_s <= now_s:
                self._settle(name, group, names, now_s)
        self._names = names
        self._clean = not errors
        self._tasks.move(self._groups, names, now_s)

    def _remove_unwanted(self, names: list[str], errors: list[str]) -> None:
        record = self._state.record
        for name in list(names):
            if name in self._groups or not (name.startswith(POD_PREFIX) or name in record.made):
                continue
            try:
                self._tree.remove(name)
            except Refused as refused:
                self._tell("refused", "CreateCATGroup", name, error=str(refused))
                errors.append(str(refused))
                continue
            names.remove(name)
            self._undone += 1
            self._tell("restore", "CreateCATGroup", name, note="removed")
            if name in record.made:
                record.made.remove(name)
                self._state.save()
        for name in [name for name in record.adopted if name not in self._groups]:
            if name in names:
                failed = give_back(self._tree, name, record.adopted[name])
                if failed:
                    errors += failed
                    continue
                self._undone += 1
                self._tell("restore", "UpdateResctrl", name, note="as it was before us")
            del record.adopted[name]
            self._state.save()
        for name in ["", *(name for name in names if name in self._groups)]:
            group = self._groups.get(name)
            wanted = {POD_PREFIX + pod.uid for pod in group.effect.pods if pod.monitored} if group else set()
            for inner in self._tree.monitors(name):
                if inner in wanted:
                    continue
                try:
                    self._tree.remove(monitor_dir(name, inner))
                    self._undone += 1
                except Refused as refused:
                    errors.append(str(refused))

    def _settle(self, name: str, group: Group, names: list[str], now_s: float) -> None:
        """Bring one group into being and its schemata into force; a refusal is remembered and tried again later."""
        fresh = False
        try:
            if name and name not in names:
                self._make(name)
                names.append(name)
                fresh = True
            elif name and not group.there:
                self._adopt(name)
            refused = self._write_lines(name, group, fresh) if name else None
            if refused is not None and fresh and not group.lines:
                # Nothing of it is in force: an empty shell would only use up a class.
                self._tree.remove(name)
                names.remove(name)
                self._state.record.made.remove(name)
                self._state.save()
                raise refused
            became = not group.there
            group.there = True
            if became:
                self._tasks.hurry(name)
            if refused is not None:
                raise refused
        except Refused as refusal:
            self._failed(name, group, refusal, now_s)
            return
        if group.error:
            log.info("resctrl.works_again", group=name)
        group.error, group.told, group.fails = "", "", 0
        group.due_s = now_s + CHECK_S

    def _make(self, name: str) -> None:
        record = self._state.record
        if name not in record.made:
            record.made.append(name)
            self._state.save()
        try:
            self._tree.make(name)
        except Refused as refused:
            if refused.code != errno.EEXIST:
                record.made.remove(name)
                self._state.save()
            raise
        self._done += 1
        self._tell("write", "CreateCATGroup", name, note="made")

    def _adopt(self, name: str) -> None:
        """A group of our name that we did not make: the reference's, or a predecessor's of another state directory."""
        record = self._state.record
        if name in record.made or name in record.adopted or name.startswith(POD_PREFIX):
            return
        record.adopted[name] = Adopted(self._tree.schemata_text(name), sorted(self._tree.tasks(name)))
        self._state.save()
        log.info("resctrl.group_adopted", group=name)

    def _write_lines(self, name: str, group: Group, fresh: bool) -> Refused | None:
        """Write what differs, each line alone. Lines that we wrote once and are not wanted any more are lifted."""
        found = self._tree.schemata(name)
        wanted = list(group.effect.schemata)
        if len(wanted) < len(group.lines) or (not group.lines and not fresh and len(wanted) < len(found)):
            wanted += self._lifted(name, wanted)
        kept, first = [], None
        for line in wanted:
            if same_line(line, found):
                kept.append(line)
                continue
            try:
                self._tree.write(name, line)
                kept.append(line)
                self._done += 1
                self._tell("write", "UpdateResctrl", name, note=line)
                if line in group.lines:
                    log.info("resctrl.drift", group=name, line=line)
            except Refused as refused:
                if refused.gone:
                    raise
                first = first or refused
        group.lines = tuple(kept)
        return first

    def _lifted(self, name: str, wanted: list[str]) -> list[str]:
        info = read_resctrl(self._host) if name.startswith(POD_PREFIX) or name in self._state.record.made else None
        have = {line.partition(":")[0] for line in wanted}
        return [line for line in full_lines(info) if line.partition(":")[0] not in have] if info else []

    def _failed(self, name: str, group: Group, refused: Refused, now_s: float) -> None:
        first, longest = NO_ROOM_S if refused.code == errno.ENOSPC else BACKOFF_S
        group.due_s = now_s + min(first * 2**group.fails, longest)
        group.fails = min(group.fails + 1, 16)
        group.error = f"resctrl group {name}: {refused}"
        if refused.gone:
            group.there = False
        if group.told != group.error:
            group.told = group.error
            log.warning("resctrl.refused", group=name, error=str(refused))
            self._tell("refused", "UpdateResctrl", name, error=str(refused))

    def _next(self, now_s: float) -> float:
        return max(now_s, min((self._tasks.next_s(now_s), *(group.due_s for group in self._groups.values()))))

    def _observed(self) -> EffectReport:
        self._due_s = math.inf
        self._report = EffectReport(state={name or "(root)": "observed" for name in self._groups})
        return self._report

    def _moved(self, name: str, note: str) -> None:
        self._tell("write", "ApplyCatL3GroupTasks", name, note=note, level=5)

    def _tell(self, mode: str, reason: str, name: str, *, note: str = "", error: str = "", level: int = 3) -> None:
        message = "; ".join(part for part in (f"{mode} resctrl {name or '(root)'}", note, error) if part)
        self._audit(
            AuditRecord(
                level=level,
                kind="group",
                reason=reason,
                message=message,
                name=name,
                target=f"resctrl/{name}",
                after=note,
                owner="resctrl",
                mode=mode,
                error=error,
            )
        )
