"""Which CPUs best-effort work gets: spread over NUMA nodes, stacked on whole cores, sticky. Pure. (spec 3.3)"""

from __future__ import annotations

from koordlet.model.cpuset import CpuSet
from koordlet.model.topology import Cpu, Topology


def choose(count: int, lsr: CpuSet, ls: CpuSet, held: CpuSet, topology: Topology) -> CpuSet:
    """`count` CPUs of the two disjoint pools, the LSR pool with its proportional share (rounded down).

    CPUs of `held` that are still in a pool are kept. Never more than the pools hold and never empty while
    they are not: the reference answers an insufficient pool with nothing (F-04) and two empty ones with a
    division by zero (F-03).
    """
    there = len(lsr) + len(ls)
    count = min(count, there)
    if count <= 0:
        return CpuSet()
    from_lsr = count * len(lsr) // there
    return _resize(from_lsr, lsr, held, topology) | _resize(count - from_lsr, ls, held, topology)


def _resize(need: int, pool: CpuSet, held: CpuSet, topology: Topology) -> CpuSet:
    """`need` CPUs of the pool, as many of them as possible already held, cores completed before new ones."""
    keep = held & pool
    if len(keep) == need:
        return keep
    if len(keep) > need:
        return CpuSet(pick(need, keep, topology))
    begun = CpuSet(cpu for threads in topology.siblings().values() if threads & keep for cpu in threads & (pool - keep))
    keep |= CpuSet(pick(need - len(keep), begun, topology))
    return keep | CpuSet(pick(need - len(keep), pool - keep, topology))


def pick(need: int, pool: CpuSet, topology: Topology) -> tuple[int, ...]:
    """Up to `need` CPUs of the pool in the order taken.

    Round-robin over (NUMA node, socket) buckets, the fullest first: thread pairs while two or more are
    needed, then single CPUs, continuing with the bucket whose turn it is.
    """
    buckets = _buckets(pool, topology)
    alone = {min(threads) for threads in topology.siblings().values() if len(threads) == 1}
    taken: list[int] = []
    turn = idle = 0
    while need - len(taken) > 1 and idle < len(buckets):
        pair = _take_pair(buckets[turn])
        taken += pair
        idle = 0 if pair else idle + 1
        turn = (turn + 1) % len(buckets)
    idle = 0
    while len(taken) < need and idle < len(buckets):
        single = _take_single(buckets[turn], alone)
        taken += single
        idle = 0 if single else idle + 1
        turn = (turn + 1) % len(buckets)
    return tuple(taken)


def _buckets(pool: CpuSet, topology: Topology) -> list[list[Cpu]]:
    """The pool's CPUs per (node, socket), each sorted by (core, id); larger buckets first, then by first id.

    The reference's bucket key, (node + pool size) x (socket + 1), can merge two nodes; ours cannot.
    """
    found: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in topology.cpus:
        if cpu.id in pool:
            found.setdefault((cpu.node, cpu.socket), []).append(cpu)
    for bucket in found.values():
        bucket.sort(key=lambda cpu: (cpu.core, cpu.id))
    return sorted(found.values(), key=lambda bucket: (-len(bucket), bucket[0].id))


def _take_pair(bucket: list[Cpu]) -> list[int]:
    for at in range(len(bucket) - 1):
        if bucket[at].core == bucket[at + 1].core:
            return [bucket.pop(at).id, bucket.pop(at).id]
    return []


def _take_single(bucket: list[Cpu], alone: set[int]) -> list[int]:
    """The first CPU; on hybrid machines rather one whose core has a single thread than half of a pair."""
    if not bucket:
        return []
    at = next((i for i, cpu in enumerate(bucket) if cpu.id in alone), 0)
    return [bucket.pop(at).id]
