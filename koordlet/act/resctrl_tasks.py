"""The tasks of wanted resctrl groups: each pod's threads into its group, and its monitor group's.

Tasks inherit their group at fork, so tasks come from outside only with a new container. A pod is looked at when it or
its containers change, twice more soon after (a container's first process may follow its status), and all of them once
per ROTATE_S in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from koordlet.act.resctrl_state import State
from koordlet.act.resctrl_tree import Refused, ResctrlTree
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.resctrl import is_ours, threads
from koordlet.model.resctrl import POD_PREFIX, PodTasks, ResctrlGroup

log = structlog.get_logger(__name__)

STEP_S: Final = 5.0
ROTATE_S: Final = 30.0
SOON_S: Final = (1.0, 5.0)
NO_ROOM_S: Final = (60.0, 600.0)
"""First and longest pause after "no more groups"."""
FORK_ROUNDS: Final = 3


@dataclass(slots=True)
class Group:
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


class TaskMover:
    """done: tasks moved and monitor groups made since the owner last set it to 0. told: the note and the group of
    tasks that were moved."""

    def __init__(self, host: Host, state: State, tree: ResctrlTree, told: Callable[[str, str], None]) -> None:
        self._host, self._state, self._tree, self._told = host, state, tree, told
        self._hierarchy = ("", "cgroup.threads") if host.version is CgroupVersion.V2 else ("cpu", "tasks")
        self._pods: dict[str, _Pod] = {}
        self._left: list[_Pod] = []
        self._step = -1
        self.done = 0

    def take(self, wanted: Mapping[str, ResctrlGroup], now_s: float) -> None:
        """These pods belong to these groups from now on; those that left a group that stays go back to the root."""
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

    def forget(self) -> None:
        self._pods, self._left = {}, []

    def hurry(self, name: str) -> None:
        """The group came or went: its pods are due."""
        for pod in self._pods.values():
            if pod.group == name:
                pod.due.insert(0, -math.inf)

    def next_s(self, now_s: float) -> float:
        """When to be called again."""
        return min((now_s + STEP_S, *(pod.due[0] for pod in self._pods.values() if pod.due)))

    def move(self, groups: Mapping[str, Group], names: list[str], now_s: float) -> None:
        """One round over the pods that are due. names: of all groups there are. Raises Refused."""
        due = [pod for pod in self._pods.values() if pod.due and pod.due[0] <= now_s]
        due += self._rotation(now_s, due)
        if not due and not self._left:
            return
        members: dict[str, set[int]] = {}
        others: set[int] = set()
        for name in names:
            if not is_ours(name):
                others |= self._members(name)
        for pod in due:
            pod.due = [at for at in pod.due if at > now_s]
            self._move(pod, groups, members, others, now_s)
        for pod in self._left:
            group = groups.get(pod.group)
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

    def _move(
        self,
        pod: _Pod,
        groups: Mapping[str, Group],
        members: dict[str, set[int]],
        others: set[int],
        now_s: float,
    ) -> None:
        wanted = groups[pod.group]
        name = pod.group if wanted.there else wanted.effect.fallback
        group = groups.get(name)
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
                    self._told(name, f"{moved} tasks of {pod.tasks.cgroup}")
            if pod.tasks.monitored and name == pod.group:
                self._monitor(pod, name, group, seen, now_s)
        except Refused as refusal:
            if not refusal.gone:
                group.error = str(refusal)

    def _monitor(self, pod: _Pod, name: str, group: Group, tids: set[int], now_s: float) -> None:
        if now_s < pod.mon_retry_s:
            return
        inner = POD_PREFIX + pod.tasks.uid
        path = monitor_dir(name, inner)
        try:
            if inner not in self._tree.monitors(name):
                if not self._state.record.monitored:
                    self._state.record.monitored = True
                    self._state.save()
                self._tree.make(path)
                self.done += 1
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

    def _count(self, group: Group, moved: int, refused: str) -> None:
        self.done += moved
        group.moved += moved
        if refused:
            group.error = refused


def monitor_dir(name: str, inner: str) -> str:
    return f"{name}/mon_groups/{inner}" if name else f"mon_groups/{inner}"
