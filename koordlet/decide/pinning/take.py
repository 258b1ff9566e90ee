"""Which free CPUs a workload gets (spec/ledger 3.2, `take`): whole cores or one thread per core, near each other. Pure.

Every order ends in an id, so equal inputs give equal answers. Exclusion is a preference between workloads of the same
exclusive policy: each search runs once with it and once without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from koordlet.decide.pinning.machine import Machine
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Allocation, BindPolicy, ExclusivePolicy, NumaStrategy


class NotEnoughError(Exception):
    """The request cannot be met; the text is for people."""


@dataclass(frozen=True, slots=True)
class Ask:
    """need: CPUs. compat: as koord-scheduler, which splits a whole core for an odd request although an orphan is free
    (fault F12) and knows no even distribution."""

    need: int
    bind: BindPolicy
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    strategy: NumaStrategy = NumaStrategy.LEAST_ALLOCATED
    compat: bool = False


def take(ask: Ask, free: CpuSet, held: Iterable[Allocation], machine: Machine) -> CpuSet:
    """`ask.need` of the free CPUs. Raises NotEnoughError when fewer are free."""
    if ask.need > len(free):
        raise NotEnoughError(f"{ask.need} CPUs asked for, {len(free)} free")
    search = _Search(ask, free, machine)
    search.exclude(held)
    if ask.need <= 0:
        return CpuSet()
    full = ask.bind is BindPolicy.FULL_PCPUS
    done = (full or machine.threads_per_core == 1) and search.whole_cores()
    if not done and not full:
        done = search.spread()
    if not done:
        search.rest()
    return CpuSet(search.taken)


@dataclass(slots=True)
class _Search:
    ask: Ask
    free: CpuSet
    machine: Machine
    taken: list[int] = field(default_factory=list)
    excluded_cores: set[int] = field(default_factory=set)
    excluded_nodes: set[int] = field(default_factory=set)

    def exclude(self, held: Iterable[Allocation]) -> None:
        for allocation in held:
            if allocation.exclusive is self.ask.exclusive:
                self._mark(allocation.cpus)

    def _mark(self, cpus: Iterable[int]) -> None:
        if self.ask.exclusive is ExclusivePolicy.PCPU:
            self.excluded_cores.update(self.machine.core_of[cpu] for cpu in cpus if cpu in self.machine.core_of)
        elif self.ask.exclusive is ExclusivePolicy.NUMA_NODE:
            self.excluded_nodes.update(self.machine.node_of[cpu] for cpu in cpus if cpu in self.machine.node_of)

    @property
    def need(self) -> int:
        return self.ask.need - len(self.taken)

    def _take(self, cpus: Iterable[int]) -> None:
        cpus = list(cpus)
        self.taken += cpus
        self.free -= CpuSet(cpus)
        self._mark(cpus)

    def _first(self, count: int) -> int:
        """Sort key of a free count: the fullest first under MostAllocated, else the emptiest."""
        return count if self.ask.strategy is NumaStrategy.MOST_ALLOCATED else -count

    # whole cores

    def whole_cores(self) -> bool:
        """Cores with every thread free: in one node, else in one socket, else socket by socket."""
        if self.need <= self.machine.largest_node:
            for avoid in (True, False):
                for cpus in self._nodes_by_cores(avoid):
                    if len(cpus) >= self.need:
                        self._take(self._even_out(cpus))
                        return True
        sockets = self._sockets_by_cores()
        if self.need <= self.machine.largest_socket:
            for cpus in sockets:
                if len(cpus) >= self.need:
                    self._take(self._even_out(cpus))
                    return True
        left = []
        for cpus in sorted(sockets, key=len, reverse=True):
            if len(cpus) <= self.need:
                self._take(cpus)
            else:
                left.append(cpus)
        for cpus in sorted(left, key=len):
            for core in self._cores(cpus):
                if len(core) <= self.need:
                    self._take(core)
        return self.need == 0

    def _even_out(self, cpus: list[int]) -> list[int]:
        """The first `need` of a unit's whole cores; the odd one rather from a core that is broken already."""
        chosen = cpus[: self.need]
        core_of = self.machine.core_of
        last = [cpu for cpu in chosen if core_of[cpu] == core_of[chosen[-1]]]
        if self.ask.compat or len(last) == len(self.machine.cores[core_of[chosen[-1]]]):
            return chosen
        node = self.machine.nodes[self.machine.node_of[chosen[0]]]
        orphans = [
            cpu
            for cpu in self.free & node
            if not self.machine.cores[core_of[cpu]] <= self.free and core_of[cpu] not in self.excluded_cores
        ]
        return chosen[: -len(last)] + orphans[: len(last)] if len(orphans) >= len(last) else chosen

    def _nodes_by_cores(self, avoid: bool) -> list[list[int]]:
        free = self._but_nodes(avoid)
        socket_free = Counter(self.machine.socket_of[cpu] for cpu in free)
        found = []
        for node, cpus in self.machine.nodes.items():
            whole = self._whole(free & cpus)
            if whole:
                socket = self.machine.socket_of[whole[0]]
                found.append((self._first(len(whole)), self._first(socket_free[socket]), node, whole))
        return [whole for *_, whole in sorted(found, key=lambda row: row[:3])]

    def _sockets_by_cores(self) -> list[list[int]]:
        found = []
        for socket, cpus in self.machine.sockets.items():
            whole = self._whole(self.free & cpus)
            if whole:
                found.append((self._first(len(whole)), socket, whole))
        return [whole for *_, whole in sorted(found, key=lambda row: row[:2])]

    def _whole(self, free: CpuSet) -> list[int]:
        """CPUs of the cores that are wholly among `free`, core by core; larger cores first on hybrid machines."""
        cores = [
            (-len(self.machine.cores[core]), core)
            for core in {self.machine.core_of[cpu] for cpu in free}
            if self.machine.cores[core] <= free
        ]
        return [cpu for _, core in sorted(cores) for cpu in self.machine.cores[core]]

    def _cores(self, cpus: list[int]) -> list[list[int]]:
        cores: dict[int, list[int]] = {}
        for cpu in cpus:
            cores.setdefault(self.machine.core_of[cpu], []).append(cpu)
        return list(cores.values())

    # one thread per core

    def spread(self) -> bool:
        """One node, else one socket, that has enough; its CPUs one per core as far as they go."""
        if self.need <= self.machine.largest_node:
            for avoid in (True, False):
                if self._spread_in(self._units_by_cpus(self.machine.nodes, self._but_both(avoid), avoid, True)):
                    return True
        if self.need <= self.machine.largest_socket:
            for avoid in (True, False):
                if self._spread_in(self._units_by_cpus(self.machine.sockets, self._but_cores(avoid), avoid, False)):
                    return True
        return False

    def _spread_in(self, units: list[list[int]]) -> bool:
        for cpus in units:
            if len(cpus) >= self.need:
                self._take(self._round_robin(cpus)[: self.need])
                return True
        return False

    def _units_by_cpus(
        self, units: dict[int, CpuSet], free: CpuSet, one_per_core: bool, by_free: bool
    ) -> list[list[int]]:
        """by_free: nodes are ordered by what is free in them, sockets by what is left after one per core."""
        socket_free = Counter(self.machine.socket_of[cpu] for cpu in free)
        found = []
        for unit, members in units.items():
            cpus = list(free & members)
            if not cpus:
                continue
            socket = self.machine.socket_of[cpus[0]]
            count = len(cpus)
            if one_per_core:
                cpus = [core[0] for core in self._cores(cpus)]
            key = (
                (self._first(count), self._first(socket_free[socket]), unit)
                if by_free
                else (self._first(len(cpus)), 0, unit)
            )
            found.append((key, cpus))
        return [cpus for _, cpus in sorted(found)]

    def _round_robin(self, cpus: list[int]) -> list[int]:
        """One CPU of each core, then the next of each."""
        cores = self._cores(cpus)
        return [core[at] for at in range(max(map(len, cores), default=0)) for core in cores if at < len(core)]

    # what is left over

    def rest(self) -> None:
        """Anywhere: near what was taken, then where the strategy says, broken cores first."""
        for avoid in (True, False):
            for cpu in self._round_robin(self._near(self._but_both(avoid))):
                if self.need == 0:
                    return
                self._take((cpu,))

    def _near(self, free: CpuSet) -> list[int]:
        taken = Counter(self.machine.socket_of[cpu] for cpu in self.taken)
        socket_free = Counter(self.machine.socket_of[cpu] for cpu in free)
        node_free = Counter(self.machine.node_of[cpu] for cpu in free)

        def key(core: list[int]) -> tuple[int, ...]:
            cpu = core[0]
            socket, node = self.machine.socket_of[cpu], self.machine.node_of[cpu]
            return (
                -taken[socket],
                self._first(socket_free[socket]),
                self._first(node_free[node]),
                len(core),
                socket,
                self.machine.core_of[cpu],
            )

        return [cpu for core in sorted(self._cores(list(free)), key=key) for cpu in core]

    def _but_nodes(self, avoid: bool) -> CpuSet:
        return self._without(self.machine.nodes, self.excluded_nodes) if avoid else self.free

    def _but_cores(self, avoid: bool) -> CpuSet:
        return self._without(self.machine.cores, self.excluded_cores) if avoid else self.free

    def _but_both(self, avoid: bool) -> CpuSet:
        return self._but_nodes(avoid) & self._but_cores(avoid)

    def _without(self, units: dict[int, CpuSet], excluded: set[int]) -> CpuSet:
        return self.free - CpuSet(cpu for unit in excluded for cpu in units[unit])
