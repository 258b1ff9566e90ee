"""CPUs, cores, caches and NUMA nodes from sysfs, numbered as lscpu numbers them; and lscpu's own table.

Sources: Documentation/admin-guide/cputopology.rst, ABI/stable/sysfs-devices-node, spec/collect 1.6.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordlet.kernel.errors import KernelFileError, is_gone
from koordlet.kernel.host import Host
from koordlet.kernel.proc import parse_meminfo
from koordlet.model.cpuset import CpuSet
from koordlet.model.topology import Cpu, NumaNode, Topology


def read_topology(host: Host) -> Topology:
    """Online CPUs only. Raises OSError, or KernelFileError when there is no CPU list or a list is garbage.

    Sockets and cores are numbered by first appearance in CPU order. A machine without NUMA directory is one
    node 0; gaps in node ids and nodes without CPUs are kept. What a machine does not tell becomes 0.
    """
    base = host.sys_root / "devices/system/cpu"
    online = _cpu_list(base / "online")
    if online is None:
        online = CpuSet(int(name[3:]) for name in _names(base) if _CPU_DIR.fullmatch(name))
    if not online:
        raise KernelFileError(base / "online", "no online CPU")
    nodes = _read_nodes(host, online)
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    found = _Cpus(os.fspath(base))
    cpus = [Cpu(cpu, core, socket, node_of.get(cpu, 0), l3, l1l2) for cpu, core, socket, l3, l1l2 in map(found, online)]
    present = _cpu_list(base / "present") or online
    return Topology(tuple(sorted(cpus, key=_order)), nodes, present - online)


def parse_lscpu(text: str) -> Topology:
    """Table of `lscpu -e=CPU,NODE,SOCKET,CORE,CACHE,ONLINE`. Raises KernelFileError when no CPU is online in it.

    Columns are found by the header, or taken in that order without one. Rows of offline CPUs and rows whose CPU,
    SOCKET or CORE is no number are left out; a missing NODE is node 0, a missing cache is l1l2 "0" and L3 0.
    """
    columns = list(_LSCPU_COLUMNS)
    rows = []
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["CPU"]:
            columns = ["CACHE" if name not in _LSCPU_COLUMNS and name.startswith("L1") else name for name in fields]
            continue
        row = dict(zip(columns, fields, strict=False))
        numbers = [row.get(name, "") for name in ("CPU", "SOCKET", "CORE")]
        if all(_PLAIN.fullmatch(number) for number in numbers) and row.get("ONLINE", "yes") == "yes":
            cpu, socket, core = map(int, numbers)
            node = row.get("NODE", "")
            ids = row.get("CACHE", "-").split(":")
            l3 = ids[3] if len(ids) > 3 else ""
            rows.append(
                Cpu(
                    cpu,
                    core,
                    socket,
                    int(node) if _PLAIN.fullmatch(node) else 0,
                    int(l3) if _PLAIN.fullmatch(l3) else 0,
                    ids[0] if _PLAIN.fullmatch(ids[0]) else "0",
                )
            )
    if not rows:
        raise KernelFileError("lscpu", "no online CPU", text)
    by_node: dict[int, list[int]] = {}
    for row_cpu in rows:
        by_node.setdefault(row_cpu.node, []).append(row_cpu.id)
    nodes = tuple(NumaNode(node, CpuSet(ids)) for node, ids in sorted(by_node.items()))
    return Topology(tuple(sorted(_unique_cores(rows), key=_order)), nodes)


@dataclass(frozen=True, slots=True)
class CpuBasicInfo:
    """model/vendor: "" where /proc/cpuinfo has none (ARM)."""

    model: str
    vendor: str
    smt_active: bool
    turbo: bool


def cpu_basic_info(host: Host) -> CpuBasicInfo:
    """First CPU's `model name` and `vendor_id`; simultaneous threads and turbo in use. Raises OSError."""
    info: dict[str, str] = {}
    with (host.proc_root / "cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                break
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    base = host.sys_root / "devices/system/cpu"
    smt = _number(base / "smt/active")
    if smt is None:
        smt = int(any(len(threads) > 1 for threads in read_topology(host).siblings().values()))
    no_turbo = _number(base / "intel_pstate/no_turbo")
    turbo = no_turbo == 0 if no_turbo is not None else _number(base / "cpufreq/boost") == 1
    return CpuBasicInfo(info.get("model name", ""), info.get("vendor_id", ""), smt == 1, turbo)


def _read_nodes(host: Host, online: CpuSet) -> tuple[NumaNode, ...]:
    """NUMA nodes sorted by id. Nodes that only start memory traffic (has_generic_initiator) are left out."""
    listed = host.sys_root / "devices/system/node"
    for base in (listed, host.sys_root / "bus/node/devices"):
        ids = sorted(int(name[4:]) for name in _names(base) if _NODE_DIR.fullmatch(name))
        if ids:
            break
    else:
        memory = _memory_bytes(host.proc_root / "meminfo")
        return (NumaNode(0, online, memory),)
    initiators = _cpu_list(listed / "has_generic_initiator") or CpuSet()
    nodes = []
    for node in ids:
        cpus = (_cpu_list(base / f"node{node}" / "cpulist") or CpuSet()) & online
        if cpus or node not in initiators:
            nodes.append(NumaNode(node, cpus, _memory_bytes(base / f"node{node}" / "meminfo")))
    return tuple(nodes)


class _Cpus:
    """Core, socket and caches of one CPU after the other, in CPU order.

    What a CPU's files say of all CPUs of its core, or of its L3, is not read again for those: 512 CPUs would be seven
    thousand files.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._sockets: dict[int, int] = {}
        self._cores: dict[object, int] = {}
        self._by_sibling: dict[int, tuple[int, int, str]] = {}  # CPU -> core, socket, L1
        self._by_cache: dict[int, int] = {}  # CPU -> L3
        self._caches: dict[str, int] = {}

    def __call__(self, cpu: int) -> tuple[int, int, int, int, str]:
        """(CPU, core, socket, L3 id, L1 id as lscpu's first cache column)."""
        known = self._by_sibling.get(cpu)
        if known is None:
            topology = f"{self._base}/cpu{cpu}/topology"
            # -1 stands for "unknown" and is one socket: never a socket per CPU.
            package = max(_number(f"{topology}/physical_package_id") or 0, 0)
            siblings = _siblings(topology, cpu)
            socket = self._sockets.setdefault(package, len(self._sockets))
            core = self._cores.setdefault(siblings or _core_key(topology, cpu, package), len(self._cores))
            known = (core, socket, self._read_caches(cpu))
            self._by_sibling.update(dict.fromkeys(siblings or (), known))
        elif cpu not in self._by_cache:
            self._read_caches(cpu)
        core, socket, l1l2 = known
        return cpu, core, socket, self._by_cache.get(cpu, 0), l1l2

    def _read_caches(self, cpu: int) -> str:
        """The L1's id. Without ids in sysfs an L3 is numbered by first appearance."""
        l1l2 = "0"
        for index in range(_MAX_CACHES):
            cache = f"{self._base}/cpu{cpu}/cache/index{index}"
            level = _number(f"{cache}/level")
            if level is None:
                break
            if level == 1 and _text(f"{cache}/type") != "Instruction":
                number = _number(f"{cache}/id")
                l1l2 = l1l2 if number is None else str(number)
                if cpu in self._by_cache:
                    break  # all that is left is known
            elif level == 3:
                shared = _text(f"{cache}/shared_cpu_list") or ""
                number = _number(f"{cache}/id")
                l3 = (
                    number if number is not None and number >= 0 else self._caches.setdefault(shared, len(self._caches))
                )
                self._by_cache.update(dict.fromkeys((*_sharing(shared), cpu), l3))
        self._by_cache.setdefault(cpu, 0)
        return l1l2


def _siblings(topology: str, cpu: int) -> CpuSet | None:
    """Threads of one core by their own list; None where there is none that names this CPU."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        siblings = _cpu_list(f"{topology}/{name}")
        if siblings and cpu in siblings:
            return siblings
    return None


def _sharing(text: str) -> CpuSet:
    """CPUs of one cache. Garbage is nobody's: then each CPU is asked itself."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def _core_key(topology: str, cpu: int, package: int) -> object:
    """What threads of one core share where there is no list: (package, core_id), else nothing but themselves."""
    core = _number(f"{topology}/core_id")
    return (package, core) if core is not None and core >= 0 else cpu


def _unique_cores(cpus: list[Cpu]) -> list[Cpu]:
    """Some lscpu versions count cores per socket; then they are numbered anew by first appearance."""
    sockets: dict[int, set[int]] = {}
    for cpu in cpus:
        sockets.setdefault(cpu.core, set()).add(cpu.socket)
    if all(len(found) == 1 for found in sockets.values()):
        return cpus
    seen: dict[tuple[int, int], int] = {}
    return [
        Cpu(cpu.id, seen.setdefault((cpu.socket, cpu.core), len(seen)), cpu.socket, cpu.node, cpu.l3, cpu.l1l2)
        for cpu in sorted(cpus, key=lambda cpu: cpu.id)
    ]


def _memory_bytes(path: Path) -> int | None:
    text = _text(path)
    return None if text is None else parse_meminfo(text).get("MemTotal")


def _cpu_list(path: Path | str) -> CpuSet | None:
    text = _text(path)
    if text is None:
        return None
    try:
        return CpuSet.parse(text)
    except ValueError as error:
        raise KernelFileError(path, str(error), text) from None


def _number(path: Path | str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _text(path: Path | str) -> str | None:
    """By plain system calls: this is asked for thousands of files on a large machine."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = b""
            while more := os.read(fd, _READ_BYTES):  # a long CPU list comes by the page
                data += more
        finally:
            os.close(fd)
    except OSError as error:
        if is_gone(error):
            return None
        raise
    return data.decode("ascii", "replace").strip()


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except OSError as error:
        if is_gone(error):
            return []
        raise


def _order(cpu: Cpu) -> tuple[int, int, int, int]:
    return (cpu.node, cpu.socket, cpu.core, cpu.id)


_MAX_CACHES: Final = 16
_READ_BYTES: Final = 16_384
_CPU_DIR: Final = re.compile(r"cpu[0-9]{1,4}")
_NODE_DIR: Final = re.compile(r"node[0-9]{1,4}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_PLAIN: Final = re.compile(r"[0-9]{1,9}")
_LSCPU_COLUMNS: Final = ("CPU", "NODE", "SOCKET", "CORE", "CACHE", "ONLINE")
