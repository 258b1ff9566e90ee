"""Placing the declared workloads anew, nearer together, when somebody asks for it. Pure; nobody is moved here.

Everybody who holds CPUs is placed once more as if the machine were empty, the largest first, by the same allocator and
the same rules. What comes out is a plan only where it is better than what is (`Fragmentation`), and then as few as
possible move: whoever can stay without spoiling it stays. Who holds CPUs never ends up with fewer than it asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordlet.decide.pinning.allocate import NodeRules, Wish, allocate
from koordlet.decide.pinning.assign import rules_of, wish_of
from koordlet.decide.pinning.machine import Machine, machine
from koordlet.decide.pinning.take import NotEnoughError
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Allocation, BindPolicy
from koordlet.model.pod import Pod
from koordlet.model.view import NodeInfo

STAYS: Final = 64
"""So many workloads at most are asked whether they could stay: each question places all the others once more."""


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """missing_cpus: asked for and not held, or held and offline. spanned_nodes: NUMA nodes touched, summed over the
    workloads. split_cores: cores of which a workload that wants whole ones has a part. free_cores: whole free cores of
    the NUMA node that has most of them."""

    missing_cpus: int = 0
    spanned_nodes: int = 0
    split_cores: int = 0
    free_cores: int = 0

    @property
    def rank(self) -> tuple[int, ...]:
        """The smaller, the better; the first difference decides."""
        return (self.missing_cpus, self.spanned_nodes, self.split_cores, -self.free_cores)


@dataclass(frozen=True, slots=True)
class Move:
    """One workload's CPUs before and after; None is "none of its own"."""

    uid: str
    name: str
    before: CpuSet | None
    after: CpuSet | None


@dataclass(frozen=True, slots=True)
class Plan:
    """moves: () when nothing is gained. held: everybody's CPUs afterwards, by uid. basis: what it was made from; with
    another one the plan is void."""

    moves: tuple[Move, ...] = ()
    held: Mapping[str, Allocation] = field(default_factory=dict)
    before: Fragmentation = field(default_factory=Fragmentation)
    after: Fragmentation = field(default_factory=Fragmentation)
    basis: object = None

    @property
    def id(self) -> str:
        """The same for the same moves."""
        text = ";".join(f"{move.uid} {move.before} {move.after}" for move in self.moves)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def basis_of(pods: Iterable[Pod], held: Mapping[str, Allocation], node: NodeInfo, others: Iterable[Pod]) -> object:
    """All that a plan depends on."""
    if node.topology is None:
        return None
    return (tuple(pods), dict(held), node.topology, rules_of(node, machine(node.topology), others))


def make_plan(
    pods: Iterable[Pod],
    held: Mapping[str, Allocation],
    node: NodeInfo,
    others: Iterable[Pod] = (),
    *,
    fixed: frozenset[str] = frozenset(),
) -> Plan:
    """Better places for the declared workloads among `pods`. fixed: uids that must not be moved."""
    pods = tuple(pods)
    basis = basis_of(pods, held, node, others)
    if node.topology is None:
        return Plan(basis=basis)
    known = machine(node.topology)
    rules = rules_of(node, known, others)
    live = {pod.uid: pod for pod in pods if pod.active}
    wishes = {pod.uid: wish_of(pod, pod.pin) for pod in live.values() if pod.pin is not None}
    work = _Work(
        {uid: pin for uid, pin in held.items() if uid in live},
        {uid: wish for uid, wish in wishes.items() if _can_be(wish, rules, known)},
        rules,
        known,
    )
    before = work.measure(work.now)
    found = work.best(live, fixed)
    if found is None or work.measure(found).rank >= before.rank:
        return Plan((), work.now, before, before, basis)
    moves = tuple(
        Move(uid, pod.key, _cpus(work.now.get(uid)), _cpus(found.get(uid)))
        for uid, pod in sorted(live.items(), key=lambda item: _by_name(item[1]))
        if _cpus(work.now.get(uid)) != _cpus(found.get(uid))
    )
    return Plan(moves, found, before, work.measure(found), basis)


@dataclass(frozen=True, slots=True)
class _Work:
    """now: who holds what. wishes: of all who want CPUs of their own, as far as this machine has them at all."""

    now: Mapping[str, Allocation]
    wishes: Mapping[str, Wish]
    rules: NodeRules
    known: Machine

    def best(self, live: Mapping[str, Pod], fixed: frozenset[str]) -> dict[str, Allocation] | None:
        """The best way to place everybody anew, of equal ones that with the fewest moves; None when there is none."""
        staying = {uid: pin for uid, pin in self.now.items() if uid in fixed or uid not in self.wishes}
        names = sorted((uid for uid in self.wishes if uid not in staying), key=lambda uid: _by_name(live[uid]))
        largest = sorted(names, key=lambda uid: -self.wishes[uid].cpu_mcpu)
        # Where a newcomer would take the room of somebody who holds CPUs, it comes after him.
        holders = [sorted(order, key=lambda uid: uid not in self.now) for order in (largest, names)]
        found = [(held, order) for order in (largest, *holders) if (held := self._anew(staying, order)) is not None]
        if not found:
            return None
        held, order = min(found, key=lambda row: (self.measure(row[0]).rank, self._moves(row[0])))
        return self._calmed(held, staying, order)

    def _anew(self, staying: Mapping[str, Allocation], order: Sequence[str]) -> dict[str, Allocation] | None:
        """None when somebody who holds CPUs would end up without."""
        held = dict(staying)
        for uid in order:
            if uid in held:
                continue
            try:
                made = allocate(self.wishes[uid], held, self.rules, self.known)
            except NotEnoughError:
                if uid in self.now:
                    return None
                continue
            if made is not None:
                held[uid] = made
        return held

    def _calmed(
        self, held: dict[str, Allocation], staying: dict[str, Allocation], order: Sequence[str]
    ) -> dict[str, Allocation]:
        """No worse than `held`, with fewer moves."""
        rank = self.measure(held).rank
        for uid in [uid for uid in order if uid in self.now and held.get(uid) != self.now[uid]][:STAYS]:
            if held.get(uid) == self.now[uid]:
                continue  # stays already, for another's sake
            tried = self._anew({**staying, uid: self.now[uid]}, order)
            if tried is not None and self.measure(tried).rank <= rank and self._moves(tried) < self._moves(held):
                held, staying = tried, {**staying, uid: self.now[uid]}
                rank = self.measure(held).rank
        return held

    def _moves(self, held: Mapping[str, Allocation]) -> int:
        return sum(_cpus(held.get(uid)) != pin.cpus for uid, pin in self.now.items())

    def measure(self, held: Mapping[str, Allocation]) -> Fragmentation:
        known, online = self.known, self.known.cpus
        missing = spanned = split = 0
        free = online - self.rules.reserved
        for uid, wish in self.wishes.items():
            have = len(held[uid].cpus & online) if uid in held else 0
            missing += max(0, wish.cpu_mcpu // 1000 - have)
        for pin in held.values():
            mine = pin.cpus & online
            free -= mine
            spanned += sum(bool(mine & cpus) for cpus in known.nodes.values())
            if pin.bind is BindPolicy.FULL_PCPUS:
                cores = {known.core_of[cpu] for cpu in mine}
                split += sum(not known.cores[core] <= mine for core in cores)
        whole: dict[int, int] = {}
        for threads in known.cores.values():
            if threads <= free:
                node = known.node_of[next(iter(threads))]
                whole[node] = whole.get(node, 0) + 1
        return Fragmentation(missing, spanned, split, max(whole.values(), default=0))


def _can_be(wish: Wish, rules: NodeRules, known: Machine) -> bool:
    """False for a workload that shares, and for one that asks for what no machine like this could give: it keeps what
    it has, if anything."""
    try:
        return allocate(wish, {}, rules, known) is not None
    except NotEnoughError:
        return False


def _cpus(pin: Allocation | None) -> CpuSet | None:
    return pin.cpus if pin is not None else None


def _by_name(pod: Pod) -> tuple[str, str, str]:
    return (pod.namespace, pod.name, pod.uid)
