"""resctrl and counters: what the loop's view says about them, and the applier of groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from koordlet.act.journal import read_boot_id
from koordlet.act.resctrl import ResctrlApplier
from koordlet.act.resctrl_state import STATE_FILE, State, StateError
from koordlet.act.resctrl_tree import Refused, ResctrlTree
from koordlet.act.resctrl_undo import undo_resctrl
from koordlet.config.flags import Flags
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import Host
from koordlet.kernel.resctrl import read_resctrl, resctrl_root
from koordlet.model.audit import AuditSink
from koordlet.model.hardware import Hardware
from koordlet.model.pod import PodSet
from koordlet.model.resctrl import Resctrl

log = structlog.get_logger(__name__)

INFO_EVERY_S: Final = 60.0


class HardwareInput:
    """`poll` is cheap: it looks at the machine once a minute and hands back the same object while nothing changed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._info: Resctrl | None = None
        self._due_s = float("-inf")
        self._fault = ""
        self._hardware = Hardware()

    def poll(self, pods: PodSet, now_s: float) -> Hardware:
        if now_s >= self._due_s:
            self._due_s = now_s + INFO_EVERY_S
            info = self._read()
            if info != self._info:
                self._info = info
                self._hardware = Hardware(resctrl=info)
        return self._hardware

    def _read(self) -> Resctrl | None:
        """A fault is said once; what was known before stays."""
        try:
            info = read_resctrl(self._host)
        except (OSError, KernelFileError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.warning("resctrl.unreadable", error=self._fault)
            return self._info
        self._fault = ""
        return info


def make_resctrl(flags: Flags, host: Host, audit: AuditSink, writer: Callable[[Path, bytes], None]) -> ResctrlApplier:
    """Mounts resctrl when told to, takes back what a crashed predecessor left, and makes the applier."""
    state = State(None if flags.observe else flags.state_dir / STATE_FILE, read_boot_id(host))
    tree = ResctrlTree(resctrl_root(host), writer)
    if not flags.observe:
        record = state.record
        if record.made or record.adopted:
            done, errors = undo_resctrl(tree, state)
            log.info("resctrl.recovered", groups=done, errors=errors)
        if flags.resctrl_mount and not tree.mounted():
            _mount(tree, state)
    return ResctrlApplier(host, state, audit, tree, observe=flags.observe)


def _mount(tree: ResctrlTree, state: State) -> None:
    state.record.mounted = True
    try:
        state.save()
        tree.mount()
        log.info("resctrl.mounted", path=str(tree.root))
    except (StateError, Refused) as error:
        state.record.mounted = False
        log.warning("resctrl.mount_failed", error=str(error))
