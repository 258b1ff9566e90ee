"""Which files and directories there are, with their modes.

Source: fs/resctrl/rdtgroup.c, res_common_files and mkdir_mondata_all().

A node is looked up anew on each call, so it always shows the present state. Open files keep their node: when its group
is gone, reads and writes fail with ENODEV as in kernfs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.labs.resctrl import text as kernel
from tests.labs.resctrl.model import Group, Machine
from tests.labs.resctrl.schemata import Schema
from tests.labs.resctrl.shapes import Cache
from tests.labs.resctrl.tasks import Caller


@dataclass(frozen=True)
class File:
    """`show` makes the whole text, `write` takes one write call. Without `write` nobody may open it for writing."""

    show: Callable[[], str]
    write: Callable[[str, Caller], None] | None = None
    group: Group | None = None
    mode: int = 0o444

    def alive(self) -> bool:
        return self.group is None or not self.group.deleted


@dataclass(frozen=True)
class Dir:
    """`kind`: group, mon_groups, info, or other (mon_data and below)."""

    kind: str
    entries: dict[str, File | Dir] = field(default_factory=dict)
    group: Group | None = None


class Tree:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.info = self._info()

    def look_up(self, path: str) -> File | Dir:
        """OSError ENOENT when there is no such name, ENOTDIR below a file."""
        node: File | Dir = self.group_dir(self.machine.default)
        for name in [p for p in path.split("/") if p]:
            if isinstance(node, File):
                raise OSError(errno.ENOTDIR, path)
            if name not in node.entries:
                raise OSError(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def mkdir(self, path: str) -> None:
        """rdtgroup_mkdir()."""
        parent_path, _, name = path.rpartition("/")
        parent = self.look_up(parent_path)
        if "\n" in name:
            raise OSError(errno.EINVAL, name)
        assert isinstance(parent, Dir)
        machine = self.machine
        if parent.group is machine.default and parent.kind == "group" and machine.can_alloc:
            machine.mkdir_ctrl(name)
        elif machine.monitor is None:
            raise OSError(errno.EPERM, path)
        elif parent.kind == "mon_groups":
            assert parent.group is not None
            machine.mkdir_mon(parent.group, name)
        else:
            raise machine.mkdir_elsewhere(in_group=parent.group is not None)

    def rmdir(self, path: str) -> None:
        node = self.look_up(path)
        if isinstance(node, File):
            raise OSError(errno.ENOTDIR, path)
        if node.kind != "group" or node.group is None:
            raise OSError(errno.EPERM, path)
        self.machine.rmdir(node.group)

    def rename(self, old: str, new: str) -> None:
        source, (parent_path, _, name) = self.look_up(old), new.rpartition("/")
        parent = self.look_up(parent_path)
        assert isinstance(parent, Dir)
        why_not = ""
        if isinstance(source, File):
            why_not = "Source and destination must be directories"
        elif source.kind != "group" or source.group is None or not source.group.is_mon:
            why_not = "Source must be a MON group\n"
        elif parent.kind != "mon_groups" or name == "mon_groups":
            why_not = "Destination must be a mon_groups subdirectory\n"
        self.machine.rename(source.group, why_not, parent.group, name, name in parent.entries)

    # groups

    def group_dir(self, group: Group) -> Dir:
        machine, entries = self.machine, self._group_files(group)
        if machine.monitor is not None:
            entries["mon_data"] = self._mon_data(group)
            if not group.is_mon:
                children: dict[str, File | Dir] = {c.name: self.group_dir(c) for c in group.children}
                entries["mon_groups"] = Dir("mon_groups", children, group)
        if group is machine.default:
            entries["info"] = self.info
            entries.update({g.name: self.group_dir(g) for g in machine.groups if g is not group})
        return Dir("group", entries, group)

    def _group_files(self, group: Group) -> dict[str, File | Dir]:
        machine, schemata, cpus = self.machine, self.machine.schemata, self.machine.shape.cpus
        # Locked down while a pseudo-locked region is set up (rdtgroup_locksetup_user_restrict).
        mode = 0o000 if group.locking else 0o644

        def file(show: Callable[[], str], write: Callable[[str, Caller], None] | None, mode: int = 0o644) -> File:
            return File(show, write, group, mode)

        entries: dict[str, File | Dir] = {
            "cpus": file(
                lambda: kernel.show_mask(group.cpus, cpus) + "\n",
                lambda text, _: machine.cpus_write(group, text, kernel.cpu_mask),
                mode,
            ),
            "cpus_list": file(
                lambda: kernel.show_list(group.cpus) + "\n",
                lambda text, _: machine.cpus_write(group, text, kernel.cpu_list),
                mode,
            ),
            "tasks": file(
                lambda: "".join(f"{tid}\n" for tid in machine.members(group)),
                lambda text, caller: machine.tasks_write(group, text, caller),
                mode,
            ),
        }
        debug = "debug" in machine.shape.options
        if debug and machine.monitor is not None:
            entries["mon_hw_id"] = file(lambda: f"{group.rmid}\n", None, 0o444)
        if group.is_mon:
            return entries
        entries["schemata"] = file(lambda: schemata.show(group), lambda text, _: schemata.write(group, text))
        entries["mode"] = file(lambda: f"{group.mode}\n", lambda text, _: machine.mode_write(group, text))
        entries["size"] = file(lambda: schemata.show_size(group), None, 0o444)
        if debug:
            entries["ctrl_hw_id"] = file(lambda: f"{group.closid}\n", None, 0o444)
        if "mba_MBps" in machine.shape.options and machine.shape.era.mbps_event_file:
            entries["mba_MBps_event"] = file(
                lambda: f"{group.mbps_event}\n", lambda text, _: self._mbps_event_write(group, text)
            )
        return entries

    def _mbps_event_write(self, group: Group, text: str) -> None:
        machine = self.machine
        if not text.endswith("\n"):
            raise OSError(errno.EINVAL, "no newline")
        machine.status.clear()
        event = text[:-1]
        assert machine.monitor is not None
        if not event.startswith("mbm_") or event not in machine.monitor.has.events:
            raise machine.status.fail(errno.EINVAL, f"Unsupported event id '{event}'\n")
        group.mbps_event = event

    def _mon_data(self, group: Group) -> Dir:
        """mon_L3_XX per cache; with SNC mon_sub_L3_YY per node in it."""
        monitor = self.machine.monitor
        assert monitor is not None
        rmids = self.machine.rmids

        def of_domain(event: str, domain: int) -> File:
            return File(lambda: monitor.show(rmids(group), event, domain=domain), None, group)

        def of_cache(event: str, cache: int) -> File:
            return File(lambda: monitor.show(rmids(group), event, cache=cache), None, group)

        domains: dict[str, File | Dir] = {}
        for cache, nodes in monitor.has.nodes.items():
            files: dict[str, File | Dir] = {}
            for event in monitor.has.events:
                files[event] = of_cache(event, cache) if monitor.has.snc else of_domain(event, cache)
            for node in nodes if monitor.has.snc else ():
                inner: dict[str, File | Dir] = {e: of_domain(e, node) for e in monitor.has.events}
                files[f"mon_sub_L3_{node:02d}"] = Dir("other", inner, group)
            domains[f"mon_L3_{cache:02d}"] = Dir("other", files, group)
        return Dir("other", domains, group)

    # info

    def _info(self) -> Dir:
        machine = self.machine
        entries: dict[str, File | Dir] = {"last_cmd_status": File(machine.status.show)}
        for schema in machine.schemata.lines:
            entries[schema.name] = Dir("info", self._info_of(schema))
        if machine.monitor is not None:
            entries["L3_MON"] = Dir("info", self._info_of_monitoring())
        return Dir("info", entries)

    def _info_of(self, schema: Schema) -> dict[str, File | Dir]:
        resource = schema.resource

        def fixed(value: object) -> File:
            return File(lambda: f"{value}\n")

        files: dict[str, File | Dir] = {"num_closids": fixed(schema.num_closids)}
        if isinstance(resource, Cache):
            files["cbm_mask"] = fixed(f"{resource.full:x}")
            files["min_cbm_bits"] = fixed(resource.min_cbm_bits)
            files["shareable_bits"] = fixed(f"{resource.shareable_bits:x}")
            files["bit_usage"] = File(lambda: self.machine.schemata.show_bit_usage(schema))
            if self.machine.shape.era.sparse_file:
                files["sparse_masks"] = fixed(int(resource.sparse))
        else:
            files["min_bandwidth"] = fixed(resource.min_bw)
            files["bandwidth_gran"] = fixed(resource.gran)
            files["delay_linear"] = fixed(int(resource.linear))
            if resource.throttle_mode is not None:
                files["thread_throttle_mode"] = fixed(resource.throttle_mode)
        return files

    def _info_of_monitoring(self) -> dict[str, File | Dir]:
        monitor, status = self.machine.monitor, self.machine.status
        assert monitor is not None
        files: dict[str, File | Dir] = {
            "mon_features": File(monitor.features),
            "num_rmids": File(lambda: f"{monitor.has.num_rmids}\n"),
            "max_threshold_occupancy": File(
                lambda: f"{monitor.threshold_bytes}\n", lambda text, _: monitor.threshold_write(text), mode=0o644
            ),
        }

        def config(event: str) -> File:
            def write(text: str, _: Caller) -> None:
                if not text.endswith("\n"):
                    raise OSError(errno.EINVAL, "no newline")
                status.clear()
                monitor.config_write(event, text[:-1], status.say)

            return File(lambda: monitor.config_show(event), write, mode=0o644)

        if monitor.has.configurable:
            for event in ("mbm_total_bytes", "mbm_local_bytes"):
                files[f"{event}_config"] = config(event)
        return files
