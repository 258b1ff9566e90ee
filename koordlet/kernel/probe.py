"""What this machine can do: every knob and signal -> native, emulated or unsupported, with reason and advice.

Repeatable (cgroups appear later, controllers get enabled), a few milliseconds, changes nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from koordlet.kernel import coresched
from koordlet.kernel.errors import KernelFileError, is_gone
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.knobs import KNOBS, Base, knob_path
from koordlet.kernel.psi import cgroup_psi_path, node_psi_path, parse_psi
from koordlet.model.knob import SYSTEM, Knob
from koordlet.model.support import Capability, Level, Support

_CHILDREN: Final = 8
"""First-level cgroups looked at when no best-effort directory is known; siblings have the same files."""

_TRIGGERS: Final = ((b"some 50000 500000\0", Level.NATIVE), (b"some 50000 2000000\0", Level.EMULATED))
"""50 ms in 500 ms, and in 2 s: the shortest that the kernel grants without CAP_SYS_RESOURCE. The kernel drops
the last byte of the text, hence the NUL."""


def probe(host: Host, be_dir: str | None) -> Support:
    """Capability table. be_dir: a cgroup of the kind that will be written; None or absent: any first-level one.

    Raises OSError only for faults that are neither "gone" nor "no permission".
    """
    places = _Places(host, be_dir)
    rows = [_knob(places, knob) for knob in Knob]
    rows += [
        _cpu_usage(places),
        _cpu_throttle(places),
        _memory_stat(places),
        _memory_reclaim(places),
        _psi_node(host),
        _psi_cgroup(places),
        _psi_trigger(host),
        _resctrl(host),
        _perf(host),
        _core_sched(),
    ]
    return Support({row.name: row for row in rows})


@dataclass(frozen=True, slots=True)
class _Places:
    """Where to look for a cgroup file, best place first."""

    host: Host
    be_dir: str | None

    def targets(self, subsystem: str) -> Iterator[str]:
        """be_dir alone where it exists; else first-level cgroups, and on v1 the root, which has most files."""
        if self.be_dir and self.host.dir(subsystem, self.be_dir).is_dir():
            yield self.be_dir
            return
        yield from islice(_directories(self.host.dir(subsystem, "")), _CHILDREN)
        if self.host.version is CgroupVersion.V1:
            yield ""

    def psi_targets(self) -> list[str]:
        """As `targets`, but a hybrid host has pressure files in its `unified/` hierarchy."""
        unified = self.host.unified_dir("")
        bases = [self.host.dir("cpuacct", ""), *([unified] if unified else [])]
        if self.be_dir and any((base / self.be_dir).is_dir() for base in bases):
            return [self.be_dir]
        return [target for base in bases for target in islice(_directories(base), _CHILDREN)]

    def find(self, subsystem: str, name: str, *, root: bool = False) -> Path | None:
        """root: in the root cgroup only."""
        targets = iter(("",)) if root else self.targets(subsystem)
        files = (self.host.dir(subsystem, target) / name for target in targets)
        return next((path for path in files if path.is_file()), None)

    def where(self, subsystem: str) -> str:
        if self.be_dir and self.host.dir(subsystem, self.be_dir).is_dir():
            return str(self.host.dir(subsystem, self.be_dir))
        return f"the cgroups of {self.host.dir(subsystem, '')}"


def _knob(places: _Places, knob: Knob) -> Capability:
    row = KNOBS[knob]
    if row.base is not Base.CGROUP:
        return _system_knob(places.host, knob)
    name = row.v1_file if places.host.version is CgroupVersion.V1 else row.v2_file
    found = places.find(row.subsystem, name, root=row.root) if name else None
    if found is None:
        reason = f"{name}: file absent in {places.where(row.subsystem)}"
        if not name:
            reason = f"cgroup {places.host.version} has no such file"
        reason += f", needs {row.needs}" if row.needs else ""
        return Capability(knob, Level.UNSUPPORTED, reason, _controller_advice(places.host, row.subsystem))
    advice = "" if os.access(found, os.W_OK) else "this process may not write it: run as root with cgroups mounted rw"
    return Capability(knob, Level.NATIVE, f"{found}", advice)


def _system_knob(host: Host, knob: Knob) -> Capability:
    path, needs = knob_path(host, SYSTEM, knob), KNOBS[knob].needs
    if path is None or not path.is_file():
        return Capability(knob, Level.UNSUPPORTED, f"{path}: file absent" + (f", needs {needs}" if needs else ""))
    advice = "" if os.access(path, os.W_OK) else "this process may not write it: run as root with it mounted rw"
    return Capability(knob, Level.NATIVE, str(path), advice)


def _cpu_usage(places: _Places) -> Capability:
    v1 = places.host.version is CgroupVersion.V1
    name = "cpuacct.usage" if v1 else "cpu.stat"
    found = places.find("cpuacct", name) or places.host.dir("cpuacct", "") / name
    if found.is_file():
        return Capability("cpu.usage", Level.NATIVE, str(found))
    advice = "mount the cpuacct controller" if v1 else "mount cgroup2, or name its directory by --cgroup-root-dir"
    return Capability("cpu.usage", Level.UNSUPPORTED, f"{name}: file absent in {found.parent}", advice)


def _cpu_throttle(places: _Places) -> Capability:
    found = places.find("cpu", "cpu.stat")
    if found is not None and "nr_periods" in _text(found):
        return Capability("cpu.throttle", Level.NATIVE, str(found))
    reason = f"no nr_periods in cpu.stat of {places.where('cpu')}"
    return Capability("cpu.throttle", Level.UNSUPPORTED, reason, _controller_advice(places.host, "cpu"))


def _memory_stat(places: _Places) -> Capability:
    found = places.find("memory", "memory.stat")
    if found is not None:
        return Capability("memory.stat", Level.NATIVE, str(found))
    reason = f"memory.stat: file absent in {places.where('memory')}"
    return Capability("memory.stat", Level.UNSUPPORTED, reason, _controller_advice(places.host, "memory"))


def _memory_reclaim(places: _Places) -> Capability:
    found = places.find("memory", "memory.reclaim") if places.host.version is CgroupVersion.V2 else None
    if found is not None:
        return Capability("memory.reclaim", Level.NATIVE, str(found))
    reason = f"memory.reclaim: file absent in {places.where('memory')}, needs cgroup v2 and kernel >= 5.19"
    return Capability("memory.reclaim", Level.UNSUPPORTED, reason)


def _psi_node(host: Host) -> Capability:
    path = node_psi_path(host, "cpu")
    fault = _psi_fault(path)
    if fault is None:
        return Capability("psi.node", Level.NATIVE, str(path))
    return Capability("psi.node", Level.UNSUPPORTED, f"{path}: {fault}", _PSI_ADVICE)


def _psi_cgroup(places: _Places) -> Capability:
    host = places.host
    fault = f"no pressure files in {places.where('cpuacct')}"
    for target in places.psi_targets():
        path = cgroup_psi_path(host, target, "cpu")
        if path is not None:
            found = _psi_fault(path)
            if found is None:
                return Capability("psi.cgroup", Level.NATIVE, str(path))
            fault = f"{path}: {found}"
    advice = "use cgroup v2: v1 has only the node's pressure" if host.version is CgroupVersion.V1 else _PSI_ADVICE
    return Capability("psi.cgroup", Level.UNSUPPORTED, fault, advice)


def _psi_trigger(host: Host) -> Capability:
    path = node_psi_path(host, "cpu")
    fault = ""
    for trigger, level in _TRIGGERS:
        fault = _try_trigger(path, trigger)
        if not fault and level is Level.NATIVE:
            return Capability("psi.trigger", level, "windows of 500 ms")
        if not fault:
            return Capability("psi.trigger", level, "windows of 2 s only", "grant CAP_SYS_RESOURCE for faster wake-ups")
    return Capability("psi.trigger", Level.UNSUPPORTED, f"{path}: {fault}", _PSI_ADVICE)


def _resctrl(host: Host) -> Capability:
    root = host.sys_fs_root / "resctrl"
    if (root / "schemata").is_file():
        return Capability("resctrl", Level.NATIVE, str(root))
    if "resctrl" in _text(host.proc_root / "filesystems").split():
        advice = f"mount -t resctrl resctrl {root}"
        return Capability("resctrl", Level.UNSUPPORTED, f"{root}: not mounted", advice)
    reason = "the kernel has no resctrl file system for this CPU"
    return Capability(
        "resctrl", Level.UNSUPPORTED, reason, "needs RDT or QoS extensions of the CPU, hidden in most VMs"
    )


def _perf(host: Host) -> Capability:
    base = host.sys_root / "bus/event_source/devices"
    names = [name for name in _directories(base) if name == "cpu" or name.startswith(_CORE_PMUS)]
    if names:
        return Capability("perf.hw", Level.NATIVE, str(base / names[0]))
    reason = f"no CPU event source in {base}"
    return Capability("perf.hw", Level.UNSUPPORTED, reason, "in a VM: pass the performance counters (vPMU) through")


def _core_sched() -> Capability:
    fault = coresched.unsupported()
    if not fault:
        return Capability("core_sched", Level.NATIVE, "prctl(PR_SCHED_CORE)")
    return Capability("core_sched", Level.UNSUPPORTED, fault, "needs kernel >= 5.14 with CONFIG_SCHED_CORE and SMT on")


def _controller_advice(host: Host, subsystem: str) -> str:
    """How to get a controller's files, "" where the controller is there."""
    if subsystem == "freezer":  # built into v2, with or without controllers
        return "" if host.version is CgroupVersion.V2 or host.dir(subsystem, "").is_dir() else _V1_ADVICE
    if host.version is CgroupVersion.V1:
        return "" if host.dir(subsystem, "").is_dir() else _V1_ADVICE
    name = "cpu" if subsystem == "cpuacct" else subsystem
    if name in _text(host.cgroup_root / "cgroup.subtree_control").split():
        return ""
    return f"enable the controller: echo +{name} > {host.cgroup_root}/cgroup.subtree_control, on every level below too"


def _psi_fault(path: Path) -> str | None:
    """Why the file gives no pressure, None when it does."""
    try:
        parse_psi(path.read_text("ascii", "replace"))
    except KernelFileError as error:
        return error.reason
    except OSError as error:
        return _errno_text(error)
    return None


def _errno_text(error: OSError) -> str:
    return f"{errno.errorcode.get(error.errno or 0, error.errno)} ({error.strerror})"


def _try_trigger(path: Path, trigger: bytes) -> str:
    """Registers a trigger and lets go of it by closing; "" or why it was refused."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _errno_text(error)
    try:
        # Kernel files have no size: a plain file of a copied tree would be overwritten.
        if os.fstat(fd).st_size:
            return "not a kernel file, not tried"
        os.write(fd, trigger)
    except OSError as error:
        return _errno_text(error)
    finally:
        os.close(fd)
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        if is_gone(error) or error.errno in _DENIED:
            return ""
        raise


def _directories(path: Path) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield entry.name
    except OSError as error:
        if not is_gone(error) and error.errno not in _DENIED:
            raise


_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)
_CORE_PMUS: Final = ("cpu_core", "armv8_pmuv3", "armv9", "cpum_cf")
_PSI_ADVICE: Final = "needs kernel >= 4.20 with CONFIG_PSI; boot with psi=1 where it is off by default"
_V1_ADVICE: Final = "mount this cgroup v1 controller, or boot with cgroup v2"
