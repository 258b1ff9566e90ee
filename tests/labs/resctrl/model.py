"""The state of a mounted resctrl and what mkdir, rmdir, rename and writes to cpus, tasks and mode do to it.

No file system here: `tree` names the files, `serve` mounts them. Errors are OSError with the kernel's errno, and the
text the kernel leaves in info/last_cmd_status.

Rules, from fs/resctrl/rdtgroup.c (function named beside each) and Documentation/filesystems/resctrl.rst
("Resource alloc and monitor groups", "Info directory"):
- A failure may leave no text (an unknown domain id, a missing newline): last_cmd_status then says "ok".
- The lowest free CLOSID is used. A new group gets what is shareable or unused, cut to the first run of ones.
- Moving a task to a CTRL_MON group takes it out of any MON group; a MON group takes only tasks of its parent.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.labs.resctrl import text as kernel
from tests.labs.resctrl.monitor import Monitor
from tests.labs.resctrl.schemata import Schemata
from tests.labs.resctrl.shapes import Shape
from tests.labs.resctrl.status import Status
from tests.labs.resctrl.tasks import Caller, Tasks


@dataclass(eq=False)
class Group:
    """A CTRL_MON group (no parent but the root) or a MON group (parent: its CTRL_MON group)."""

    name: str
    closid: int
    rmid: int
    parent: Group | None = None
    children: list[Group] = field(default_factory=list)
    cpus: set[int] = field(default_factory=set)
    mode: str = "shareable"
    mbps_event: str = "mbm_local_bytes"
    deleted: bool = False

    @property
    def is_mon(self) -> bool:
        return self.parent is not None

    @property
    def locking(self) -> bool:
        return self.mode.startswith("pseudo")


class Machine:
    def __init__(self, shape: Shape, tasks: Tasks | None = None) -> None:
        self.shape = shape
        self.tasks = tasks or Tasks()
        self.status = Status(shape.era.old_wording)
        self.monitor = Monitor(shape) if shape.monitoring else None
        self.default = Group("", 0, 0, cpus=set(range(shape.cpus)))
        self.groups = [self.default]  # the newest before the older ones, the default group last
        self.schemata = Schemata(self)
        self.free_closids = set(range(1, self.schemata.num_closids))

    @property
    def can_alloc(self) -> bool:
        return bool(self.shape.resources)

    def rmids(self, group: Group) -> list[int]:
        return [group.rmid, *(child.rmid for child in group.children)]

    # directories

    def mkdir_ctrl(self, name: str) -> Group:
        """rdtgroup_mkdir_ctrl_mon(): ENOSPC without CLOSID, RMID or cache bits; EBUSY while RMIDs are in limbo."""
        self.status.clear()
        if not self.free_closids:
            raise self.status.fail(errno.ENOSPC, "Out of CLOSIDs\n")
        closid = min(self.free_closids)
        group = Group(name, closid, self._new_rmid())
        self.free_closids.remove(closid)
        try:
            self.schemata.init_group(group)
        except OSError:
            self.free_closids.add(closid)
            self._free_rmid(group)
            raise
        self.groups.insert(0, group)
        return group

    def mkdir_mon(self, parent: Group, name: str) -> Group:
        """rdtgroup_mkdir_mon(): below a mon_groups directory, and not called mon_groups itself (EPERM)."""
        self.status.clear()
        if name == "mon_groups":
            raise OSError(errno.EPERM, name)
        if parent.locking:
            raise self.status.fail(errno.EINVAL, "Pseudo-locking in progress\n")
        group = Group(name, parent.closid, self._new_rmid(), parent)
        parent.children.append(group)
        return group

    def mkdir_elsewhere(self, in_group: bool) -> OSError:
        """Below info there is no group to ask (ENODEV); elsewhere in a group none may be made (EPERM)."""
        if not in_group:
            return OSError(errno.ENODEV, "mkdir")
        self.status.clear()
        return OSError(errno.EPERM, "mkdir")

    def rmdir(self, group: Group) -> None:
        """rdtgroup_rmdir(): tasks go to the default group, or a MON group's to its parent. No status is set."""
        if group is self.default:
            raise OSError(errno.EPERM, "rmdir")
        if group.parent is not None:
            self._move_tasks(group, group.parent)
            group.parent.children.remove(group)
            group.deleted = True
            self._free_rmid(group)
            return
        if group.locking:
            self._forget_lock(group)
        else:
            self._move_tasks(group, self.default)
            self.default.cpus |= group.cpus
            self._free_rmid(group)
            self.free_closids.add(group.closid)
        for child in group.children:
            child.deleted = True
            self._free_rmid(child)
        self.groups.remove(group)
        group.deleted = True

    def rename(self, group: Group | None, why_not: str, target: Group | None, name: str, exists: bool) -> None:
        """rdtgroup_rename(): a MON group moves to another mon_groups directory, its counters and tasks with it.

        `target` owns that directory; `why_not`: the status of a source or destination that is of another kind.
        """
        if not self.shape.era.rename:
            raise OSError(errno.EPERM, "rename")
        if group is None or target is None:
            raise OSError(errno.ENOENT, "rename")
        self.status.clear()
        if why_not:
            raise self.status.fail(errno.EPERM, why_not)
        assert group.parent is not None
        if group.cpus and target is not group.parent:
            raise self.status.fail(errno.EPERM, "Cannot move a MON group that monitors CPUs\n")
        if exists:
            raise OSError(errno.EEXIST, name)
        group.name = name
        if target is not group.parent:
            members = self.members(group)
            group.parent.children.remove(group)
            target.children.append(group)
            group.parent, group.closid = target, target.closid
            for tid in members:
                self.tasks.move(tid, group.closid, group.rmid)

    def _new_rmid(self) -> int:
        if self.monitor is None:
            return 0
        try:
            return self.monitor.alloc()
        except OSError:
            self.status.say("Out of RMIDs\n")
            raise

    def _free_rmid(self, group: Group) -> None:
        if self.monitor is not None and group.rmid:
            self.monitor.release(group.rmid)

    def _move_tasks(self, source: Group, to: Group) -> None:
        for tid in self.members(source):
            self.tasks.move(tid, to.closid, to.rmid)

    # tasks

    def members(self, group: Group) -> list[int]:
        """rdtgroup_tasks_show(): a CTRL_MON group shows the tasks of its MON groups too."""

        def member(ids: tuple[int, int]) -> bool:
            return ids[1] == group.rmid if group.is_mon else ids[0] == group.closid and self.can_alloc

        return [tid for tid in self.tasks.all() if member(self.tasks.ids(tid))]

    def tasks_write(self, group: Group, text: str, caller: Caller) -> None:
        """rdtgroup_tasks_write(): ids in order until the first failure; those before it stay moved."""
        if not self.shape.era.many_tasks:
            # Until v6.7: one id, and a bad number fails before the status is reset.
            tid = self._tid(kernel.strim(text))
            self._check_not_locking(group)
            self._move_task(group, tid, caller)
            return
        self._check_not_locking(group)
        rest = text
        while rest and rest[0] != "\n":
            part, _, rest = rest.partition(",")
            part = kernel.strim(part)
            try:
                tid = kernel.number(part, 0, 32, signed=True)
            except ValueError:
                raise self.status.fail(errno.EINVAL, f"Task list parsing error pid {part}\n") from None
            if tid < 0:
                raise self.status.fail(errno.EINVAL, f"Invalid pid {tid}\n")
            try:
                self._move_task(group, tid, caller)
            except OSError:
                self.status.say(f"Error while processing task {tid}\n")
                raise

    def _tid(self, text: str) -> int:
        try:
            tid = kernel.number(text, 0, 32, signed=True)
        except ValueError:
            tid = -1
        if tid < 0:
            raise OSError(errno.EINVAL, text)
        return tid

    def _move_task(self, group: Group, tid: int, caller: Caller) -> None:
        target = tid or caller.tid  # 0 is the writer itself
        if self.tasks.start(target) is None:
            raise self.status.fail(errno.ESRCH, f"No task {tid}\n")
        if not self.tasks.may_move(target, caller):
            raise self.status.fail(errno.EPERM, f"No permission to move task {target}\n")
        if group.is_mon and self.tasks.ids(target)[0] != group.closid:
            raise self.status.fail(errno.EINVAL, "Can't move task to different control group\n")
        self.tasks.move(target, group.closid, group.rmid)

    def _check_not_locking(self, group: Group) -> None:
        self.status.clear()
        if group.locking:
            raise self.status.fail(errno.EINVAL, "Pseudo-locking in progress\n")

    # cpus

    def cpus_write(self, group: Group, text: str, parse: Callable[[str, int], set[int]]) -> None:
        """rdtgroup_cpus_write(), with cpu_mask or cpu_list of `text` as parser."""
        self._check_not_locking(group)
        try:
            new = parse(text, self.shape.cpus)
        except OSError:
            self.status.say("Bad CPU list/mask\n")
            raise
        if group.parent is not None:
            if new - group.parent.cpus:
                text = "Can only add CPUs to mongroup that belong to parent\n"
                raise self.status.fail(errno.EINVAL, text)
            for sibling in group.parent.children:
                sibling.cpus -= new
        else:
            if group is self.default and group.cpus - new:
                raise self.status.fail(errno.EINVAL, "Can't drop CPUs from default group\n")
            self.default.cpus |= group.cpus - new
            added = new - group.cpus
            for other in self.groups:
                if other is not group and other.cpus & added:
                    other.cpus -= added
                    for child in other.children:
                        child.cpus &= other.cpus
            for child in group.children:
                child.cpus.clear()
        group.cpus = new

    # mode

    def mode_write(self, group: Group, text: str) -> None:
        """rdtgroup_mode_write()."""
        if not text.endswith("\n"):
            raise OSError(errno.EINVAL, "no newline")
        mode = text[:-1]
        self.status.clear()
        if mode == group.mode:
            return
        if group.mode == "pseudo-locked":
            raise self.status.fail(errno.EINVAL, "Cannot change pseudo-locked group\n")
        if mode not in ("shareable", "exclusive", "pseudo-locksetup"):
            raise self.status.fail(errno.EINVAL, "Unknown or unsupported mode\n")
        if mode == "exclusive":
            self.schemata.check_exclusive(group)
        if mode == "pseudo-locksetup":
            self._check_lockable(group)
            self._free_rmid(group)
            group.rmid = 0
        elif group.mode == "pseudo-locksetup":
            group.rmid = self._new_rmid()
        group.mode = mode

    def _check_lockable(self, group: Group) -> None:
        """rdtgroup_locksetup_enter() in fs/resctrl/pseudo_lock.c."""
        for bad, text in (
            (group is self.default, "Cannot pseudo-lock default group\n"),
            (any(o.startswith("cdp") for o in self.shape.options), "CDP enabled\n"),
            (not self.shape.pseudo_lock, "Pseudo-locking not supported\n"),
            (bool(group.children), "Monitoring in progress\n"),
            (bool(self.members(group)), "Tasks assigned to resource group\n"),
            (bool(group.cpus), "CPUs assigned to resource group\n"),
        ):
            if bad:
                raise self.status.fail(errno.EINVAL, text)

    def locked(self, group: Group) -> None:
        """The region is loaded: its class is free again (rdtgroup_pseudo_lock_create())."""
        group.mode = "pseudo-locked"
        self.free_closids.add(group.closid)

    def _forget_lock(self, group: Group) -> None:
        self.schemata.regions = {k: r for k, r in self.schemata.regions.items() if r.group is not group}
        if group.mode == "pseudo-locksetup":
            self.free_closids.add(group.closid)
