"""CPUs, cores, caches and NUMA nodes from sysfs, numbered as lscpu numbers them; and lscpu's own table.

Sources: Documentation/admin-guide/cputopology.rst, ABI/stable/sysfs-devices-node, spec/collect 1.6.
"""

from __future__ import annotations

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
    sockets: dict[int, int] = {}
    cores: dict[object, int] = {}
    caches: dict[str, int] = {}
    cpus = []
    for cpu in online:
        topology = base / f"cpu{cpu}" / "topology"
        # -1 stands for "unknown" and is one socket: never a socket per CPU.
        package = max(_number(topology / "physical_package_id") or 0, 0)
        socket = sockets.setdefault(package, len(sockets))
        core = cores.setdefault(_core_key(topology, cpu, package), len(cores))
        l1l2, l3 = _caches(base / f"cpu{cpu}" / "cache", caches)
        cpus.append(Cpu(cpu, core, socket, node_of.get(cpu, 0), l3, l1l2))
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


def _core_key(topology: Path, cpu: int, package: int) -> object:
    """What threads of one core share: their sibling list, else (package, core_id), else nothing but themselves."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        siblings = _cpu_list(topology / name)
        if siblings and cpu in siblings:
            return siblings
    core = _number(topology / "core_id")
    return (package, core) if core is not None and core >= 0 else cpu


def _caches(base: Path, seen: dict[str, int]) -> tuple[str, int]:
    """(L1 id as lscpu's first cache column, L3 id). Without ids in sysfs an L3 is numbered by first appearance."""
    l1l2, l3 = "0", 0
    for name in sorted(name for name in _names(base) if name.startswith("index")):
        level, number = _number(base / name / "level"), _number(base / name / "id")
        if level == 1 and number is not None and _text(base / name / "type") != "Instruction":
            l1l2 = str(number)
        elif level == 3:
            shared = _text(base / name / "shared_cpu_list") or ""
            l3 = number if number is not None and number >= 0 else seen.setdefault(shared, len(seen))
    return l1l2, l3


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


def _cpu_list(path: Path) -> CpuSet | None:
    text = _text(path)
    if text is None:
        return None
    try:
        return CpuSet.parse(text)
    except ValueError as error:
        raise KernelFileError(path, str(error), text) from None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError as error:
        if is_gone(error):
            return None
        raise


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except OSError as error:
        if is_gone(error):
            return []
        raise


def _order(cpu: Cpu) -> tuple[int, int, int, int]:
    return (cpu.node, cpu.socket, cpu.core, cpu.id)


_CPU_DIR: Final = re.compile(r"cpu[0-9]{1,4}")
_NODE_DIR: Final = re.compile(r"node[0-9]{1,4}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_PLAIN: Final = re.compile(r"[0-9]{1,9}")
_LSCPU_COLUMNS: Final = ("CPU", "NODE", "SOCKET", "CORE", "CACHE", "ONLINE")
