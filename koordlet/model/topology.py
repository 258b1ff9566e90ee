"""CPUs and NUMA nodes of the machine as one immutable value. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class Cpu:
    """One online logical CPU.

    core is unique on the whole machine (numbered by first appearance in CPU order, as lscpu does);
    l1l2 names the L1/L2 group and is never used as an SMT hint; l3 is 0 where the machine tells none.
    """

    id: int
    core: int
    socket: int
    node: int
    l3: int = 0
    l1l2: str = ""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node; cpus is empty for memory-only nodes, memory_bytes None when unreadable."""

    id: int
    cpus: CpuSet
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """cpus: online CPUs sorted by (node, socket, core, id). nodes: sorted by id, gaps allowed. offline: CPUs that are
    there but switched off. online: the ids of cpus."""

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...] = ()
    offline: CpuSet = field(default_factory=CpuSet)
    online: CpuSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "online", CpuSet(cpu.id for cpu in self.cpus))

    def siblings(self) -> dict[int, CpuSet]:
        """core id -> its online threads."""
        cores: dict[int, list[int]] = {}
        for cpu in self.cpus:
            cores.setdefault(cpu.core, []).append(cpu.id)
        return {core: CpuSet(ids) for core, ids in cores.items()}
