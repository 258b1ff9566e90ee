"""resctrl and counters: what the loop's view says about them, and the applier of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
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
from koordlet.model.cpuset import CpuSet
from koordlet.model.hardware import Hardware
from koordlet.model.pod import PodSet
from koordlet.model.resctrl import Resctrl
from koordlet.model.view import WorkloadUsage
from koordlet.sense.cache import CacheMeter
from koordlet.sense.counts import CountsMeter
from koordlet.store.interference import Interference
from koordlet.wiring.interference import Readings

log = structlog.get_logger(__name__)

INFO_EVERY_S: Final = 60.0
CONTROL_S: Final = 5.0
"""Longest window of a signal that a controller follows."""


class HardwareInput:
    """`poll` is cheap: it looks at the machine once a minute, reads counters when they are due, and hands back the same
    object while nothing changed. Meters exist only where a gate or flag asks for them."""

    def __init__(self, flags: Flags, host: Host, workloads: Callable[[], Iterable[WorkloadUsage]]) -> None:
        gates = flags.gates.effective
        self._host = host
        self._info: Resctrl | None = None
        self._due_s = float("-inf")
        self._fault = ""
        self._hardware = Hardware()
        self._monitor = flags.enable_resctrl_collector and "ResctrlCollector" in gates
        self._cache = CacheMeter(resctrl_root(host), flags.resctrl_collector_interval_s)
        self.counts: CountsMeter | None = None
        self._interference: Interference | None = None
        self._readings = Readings(host, workloads)
        self._sampled_s = float("-inf")
        window_s = flags.collect_cpi_timewindow_s
        self._interval_s = max(window_s, flags.cpi_collector_interval_s)
        if flags.resctrl_dynamic:  # a controller cannot wait a minute for its signal
            self._interval_s = window_s = min(window_s, CONTROL_S)
        if "CPICollector" in gates or flags.resctrl_dynamic:
            self.counts = CountsMeter(host, interval_s=self._interval_s, window_s=window_s)
            self._interference = Interference()

    def poll(self, pods: PodSet, online: CpuSet, now_s: float) -> Hardware:
        """online: CPUs of the node."""
        if now_s >= self._due_s:
            self._due_s = now_s + INFO_EVERY_S
            self._info = self._read()
        known = self._hardware
        info = known.resctrl if self._info == known.resctrl else self._info
        cache = self._cache.collect(now_s) if self._monitor and info is not None and info.monitoring else None
        counts = known.counts
        if self.counts is not None:
            running = ((pod, c) for pod in pods.pods if pod.active for c in pod.containers if c.running)
            cgroups = (cgroup for pod, c in running if (cgroup := pod.directory(c)))
            counts = self.counts.collect(now_s, cgroups, online)
        # With counters at each of their rounds, without them (or when they stopped) at the same pace.
        due = counts is not known.counts or now_s - self._sampled_s >= self._interval_s * 1.5
        if self._interference is not None and due:
            self._sampled_s = now_s
            samples, batch = self._readings.round(now_s, pods, counts, cache)
            found, pairs = self._interference.add(now_s, samples, batch)
            self._hardware = Hardware(info, cache, counts, found, pairs)
        elif info is not known.resctrl or cache is not known.cache or counts is not known.counts:
            self._hardware = replace(known, resctrl=info, cache=cache, counts=counts)
        return self._hardware

    def close(self) -> None:
        if self.counts is not None:
            self.counts.close()

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
        if state.record.changes():
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
