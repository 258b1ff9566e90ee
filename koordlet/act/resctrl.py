"""Applier of `ResctrlGroup`: groups as wanted, their schemata, and every task of their pods in them.

Order within a round: what is not wanted any more goes first (its class is needed), then groups, then schemata, then
tasks, so that no task ever runs under limits that are not its own. Ours are the groups in the state file and those
named `koordlet-...`; nobody else's group is changed, and a task that somebody put into his own group stays there.

Cost. Tasks inherit their group at fork, so tasks come from outside only with a new container. A pod is looked
at when it or its containers change, twice more soon after (a container's first process may follow its status), and
all of them once per ROTATE_S in turns. Schemata are read back once per CHECK_S. Anything else is one comparison.
"""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass, field
from typing import Final

import structlog

from koordlet.act.resctrl_state import Adopted, State, StateError
from koordlet.act.resctrl_tree import Refused, ResctrlTree
from koordlet.act.resctrl_undo import give_back, undo_resctrl
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.resctrl import full_lines, is_ours, read_resctrl, same_line, threads
from koordlet.model.audit import AuditRecord, AuditSink
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.resctrl import POD_PREFIX, PodTasks, ResctrlGroup

log = structlog.get_logger(__name__)

STEP_S: Final = 5.0
CHECK_S: Final = 30.0
ROTATE_S: Final = 30.0
SOON_S: Final = (1.0, 5.0)
BACKOFF_S: Final = (2.0, 60.0)
NO_ROOM_S: Final = (60.0, 600.0)
"""First and longest pause after a refusal, and after "no more groups"."""
FORK_ROUNDS: Final = 3


@dataclass(slots=True)
class _Group:
    """What is known of one wanted group. lines: schemata lines of ours in force. error: the last refusal, told once."""

    effect: ResctrlGroup
    there: bool = False
    due_s: float = -math.inf
    fails: int = 0
    error: str = ""
    told: str = ""
    lines: tuple[str, ...] = ()
    moved: int = 0


@dataclass(slots=True)
class _Pod:
    tasks: PodTasks
    group: str
    due: list[float] = field(default_factory=list)
    mon_retry_s: float = -math.inf


class ResctrlApplier:
    """kind "resctrl". observe: says what it would do and writes nothing."""

    kind = "resctrl"

    def __init__(self, host: Host, state: State, audit: AuditSink, tree: ResctrlTree, *, observe: bool = False) -> None:
        self._host, self._state, self._audit, self._tree, self._observe = host, state, audit, tree, observe
        self._hierarchy = ("", "cgroup.threads") if host.version is CgroupVersion.V2 else ("cpu", "tasks")
        self._effects: tuple[Effect, ...] = ()
        self._groups: dict[str, _Group] = {}
        self._pods: dict[str, _Pod] = {}
        self._left: list[_Pod] = []
        self._clean = True  # until somebody wants something there is nothing to take back
        self._due_s = -math.inf
        self._names: list[str] = []
        self._step = -1
        self._report = EffectReport()
        self._done = self._undone = 0

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        if effects != self._effects:
            self._take(effects, now_s)
        elif now_s < self._due_s or (self._clean and not effects):
            return self._report
        if self._observe:
            return self._observed()
        self._done = self._undone = 0
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
        self._report = EffectReport(self._done, self._undone, len(errors), rows, tuple(dict.fromkeys(errors)))
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
        self._effects, self._groups, self._pods, self._left = (), {}, {}, []

    # wishes

    def _take(self, effects: tuple[Effect, ...], now_s: float) -> None:
        self._effects, self._clean = effects, False
        wanted = {effect.target: effect for effect in effects if isinstance(effect, ResctrlGroup)}
        before, self._groups = self._groups, {}
        for name, effect in wanted.items():
            group = before.get(name)
            if group is None:
                group = _Group(effect)
            elif group.effect.schemata != effect.schemata:
                group.due_s, group.fails = -math.inf, 0
            group.effect = effect
            self._groups[name] = group
        pods: dict[str, _Pod] = {}
        for name, effect in wanted.items():
            for tasks in effect.pods:
                known = self._pods.get(tasks.uid)
                if known is None or known.tasks != tasks or known.group != name:
                    pods[tasks.uid] = _Pod(tasks, name, [-math.inf, *(now_s + soon for soon in SOON_S)])
                else:
                    pods[tasks.uid] = known
        self._left += [pod for uid, pod in self._pods.items() if uid not in pods and pod.group in wanted and pod.group]
        self._pods = pods

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
                for pod in self._pods.values():
                    if pod.group == name:
                        pod.due.insert(0, -math.inf)
            if group.due_s <= now_s:
                self._settle(name, group, names, now_s)
        self._names = names
        self._clean = not errors
        self._tasks(now_s)

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
                    self._tree.remove(_mon(name, inner))
                    self._undone += 1
                except Refused as refused:
                    errors.append(str(refused))

    def _settle(self, name: str, group: _Group, names: list[str], now_s: float) -> None:
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
                for pod in self._pods.values():
                    if pod.group == name:
                        pod.due.insert(0, -math.inf)
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

    def _write_lines(self, name: str, group: _Group, fresh: bool) -> Refused | None:
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

    def _failed(self, name: str, group: _Group, refused: Refused, now_s: float) -> None:
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

    # tasks

    def _tasks(self, now_s: float) -> None:
        due = [pod for pod in self._pods.values() if pod.due and pod.due[0] <= now_s]
        due += self._rotation(now_s, due)
        if not due and not self._left:
            return
        members: dict[str, set[int]] = {}
        others: set[int] = set()
        for name in self._names:
            if not is_ours(name):
                others |= self._members(name)
        for pod in due:
            pod.due = [at for at in pod.due if at > now_s]
            self._move(pod, members, others, now_s)
        for pod in self._left:
            group = self._groups.get(pod.group)
            if group is not None and group.there:
                inside = self._members(pod.group) & set(self._threads(pod.tasks.cgroup))
                self._count(group, *self._tree.move("", sorted(inside)))
        self._left = []

    def _rotation(self, now_s: float, due: list[_Pod]) -> list[_Pod]:
        """A part of the pods, all of them in ROTATE_S, to find tasks that came in unnoticed."""
        parts, step = round(ROTATE_S / STEP_S), int(now_s // STEP_S)
        if step == self._step:
            return []
        self._step = step
        ids = {id(pod) for pod in due}
        return [pod for i, pod in enumerate(self._pods.values()) if i % parts == step % parts and id(pod) not in ids]

    def _move(self, pod: _Pod, members: dict[str, set[int]], others: set[int], now_s: float) -> None:
        wanted = self._groups[pod.group]
        name = pod.group if wanted.there else wanted.effect.fallback
        group = self._groups.get(name)
        if group is None or not group.there:
            return
        try:
            if name not in members:
                members[name] = self._members(name) if name else set()
            have = members[name]
            seen: set[int] = set()
            for _ in range(FORK_ROUNDS):  # a thread that was not moved yet may have forked meanwhile
                now = set(self._threads(pod.tasks.cgroup)) - others
                fresh = sorted(now - seen - have) if name else []
                seen |= now
                if not fresh:
                    break
                moved, refused = self._tree.move(name, fresh)
                have.update(fresh)
                self._count(group, moved, refused)
                if moved:
                    self._tell(
                        "write", "ApplyCatL3GroupTasks", name, note=f"{moved} tasks of {pod.tasks.cgroup}", level=5
                    )
            if pod.tasks.monitored and name == pod.group:
                self._monitor(pod, name, group, seen, now_s)
        except Refused as refusal:
            if not refusal.gone:
                group.error = str(refusal)

    def _monitor(self, pod: _Pod, name: str, group: _Group, tids: set[int], now_s: float) -> None:
        if now_s < pod.mon_retry_s:
            return
        inner = POD_PREFIX + pod.tasks.uid
        path = _mon(name, inner)
        try:
            if inner not in self._tree.monitors(name):
                if not self._state.record.monitored:
                    self._state.record.monitored = True
                    self._state.save()
                self._tree.make(path)
                self._done += 1
            inside = self._members(path)
            self._tree.move(path, sorted(tids - inside))
        except Refused as refused:
            pod.mon_retry_s = now_s + NO_ROOM_S[0]
            text = f"monitoring of pods: {refused}"
            if group.told != text:
                group.told = text
                log.warning("resctrl.refused", group=name, error=str(refused))

    def _members(self, name: str) -> set[int]:
        try:
            return self._tree.tasks(name)
        except Refused as refused:
            if refused.gone:
                return set()
            raise

    def _threads(self, cgroup: str) -> list[int]:
        subsystem, file = self._hierarchy
        try:
            return list(threads(self._host.dir(subsystem, cgroup), file))
        except OSError as error:
            raise Refused(f"{cgroup}/{file}", error) from error

    def _count(self, group: _Group, moved: int, refused: str) -> None:
        self._done += moved
        group.moved += moved
        if refused:
            group.error = refused

    def _next(self, now_s: float) -> float:
        soon = [pod.due[0] for pod in self._pods.values() if pod.due]
        later = [group.due_s for group in self._groups.values()]
        return max(now_s, min((now_s + STEP_S, *soon, *later)))

    def _observed(self) -> EffectReport:
        self._due_s = math.inf
        self._report = EffectReport(state={name or "(root)": "observed" for name in self._groups})
        return self._report

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


def _mon(name: str, inner: str) -> str:
    return f"{name}/mon_groups/{inner}" if name else f"mon_groups/{inner}"
