"""The allocator over random lives of random machines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.decide.pinning.allocate import NodeRules, Wish, allocate
from koordlet.decide.pinning.assign import assign
from koordlet.decide.pinning.defragment import make_plan
from koordlet.decide.pinning.machine import machine
from koordlet.decide.pinning.take import NotEnoughError
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import (
    BindPolicy,
    ExclusivePolicy,
    NodePinning,
    NumaPolicy,
    NumaStrategy,
    PinRequest,
)
from koordlet.model.qos import PriorityClass, Qos
from koordlet.model.view import NodeInfo
from tests.unit.decide.pinning.machines import topology
from tests.unit.decide.pinning.test_assign import workload

MACHINES = st.builds(topology, st.integers(1, 2), st.integers(1, 4), st.integers(1, 8), st.integers(1, 2))
PINS = st.builds(
    PinRequest,
    st.sampled_from([BindPolicy.DEFAULT, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD]),
    st.booleans(),
    st.sampled_from(ExclusivePolicy),
    st.sampled_from(NumaPolicy),
)
WISHES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8), PINS, st.integers(0, 9)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(MACHINES, WISHES, st.sampled_from(NumaStrategy), st.booleans(), st.sets(st.integers(0, 15), max_size=3))
def test_a_life_of_allocations(shape, wishes, strategy, compat, reserved):
    """No CPU has two owners or is reserved; counts, required policies and single nodes hold; equal answers twice;
    a released set can be taken again by the same request."""
    known = machine(shape)
    totals = {node: {"cpu": 1000 * len(cpus), "memory": 16 << 30} for node, cpus in known.nodes.items()}
    rules = NodeRules(
        NodePinning(strategy=strategy), reserved=CpuSet(reserved) & known.cpus, numa_totals=totals, compat=compat
    )
    held = {}
    for number, (count, memory, pin, leave) in enumerate(wishes):
        wish = Wish(Qos.LSR, PriorityClass.PROD, 1000 * count, memory << 30, pin)
        try:
            made = allocate(wish, held, rules, known)
        except NotEnoughError:
            continue
        assert made == allocate(wish, dict(reversed(held.items())), rules, known)
        taken = CpuSet(cpu for other in held.values() for cpu in other.cpus)
        assert len(made.cpus) == count
        assert not made.cpus & taken
        assert not made.cpus & rules.reserved
        assert made.cpus <= known.cpus
        if pin.required and made.bind is BindPolicy.FULL_PCPUS:
            assert all(threads <= made.cpus for threads in known.cores.values() if threads & made.cpus)
        if pin.required and made.bind is BindPolicy.SPREAD:
            assert all(len(threads & made.cpus) <= 1 for threads in known.cores.values())
        if pin.numa is NumaPolicy.SINGLE:
            assert len({known.node_of[cpu] for cpu in made.cpus}) == 1
        for share in made.shares:
            assert 1000 * len(made.cpus & known.nodes[share.node]) == share.cpu_mcpu
        held[str(number)] = made
        if leave == 0:
            released = held.pop(str(number))
            assert allocate(wish, held, rules, known) == released


HOLDERS = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.sampled_from([BindPolicy.FULL_PCPUS, BindPolicy.SPREAD]),
        st.sampled_from(ExclusivePolicy),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=150, deadline=None)
@given(MACHINES, HOLDERS, st.sampled_from([NumaStrategy.LEAST_ALLOCATED, NumaStrategy.MOST_ALLOCATED]), st.booleans())
def test_an_exclusive_level_is_kept_where_there_is_room_and_never_a_reason_to_refuse(shape, holders, strategy, compat):
    """Where a NUMA node has room clear of those who keep to themselves at the same level, nothing of theirs is touched;
    where none has, whoever comes gets CPUs all the same."""
    known = machine(shape)
    rules = NodeRules(NodePinning(strategy=strategy), compat=compat)
    held = {}
    for number, (count, bind, level) in enumerate(holders):
        free = known.cpus - CpuSet(cpu for other in held.values() for cpu in other.cpus)
        wish = Wish(Qos.LSR, PriorityClass.PROD, 1000 * count, 0, PinRequest(bind, exclusive=level))
        try:
            made = allocate(wish, held, rules, known)
        except NotEnoughError:
            assert count > len(free)
            continue
        alike = CpuSet(cpu for other in held.values() if other.exclusive is level for cpu in other.cpus)
        theirs = {cpu for unit in units(known, level) if unit & alike for cpu in unit}
        cores = [free & core for core in known.cores.values()]
        if bind is BindPolicy.FULL_PCPUS:
            usable = [core for core in cores if core in known.cores.values()]
        else:
            usable = [CpuSet(list(core)[:1]) for core in cores]
        if bind is BindPolicy.SPREAD or level is ExclusivePolicy.NUMA_NODE:
            clear = CpuSet(cpu for core in usable for cpu in core if cpu not in theirs)
            if any(len(clear & node) >= count for node in known.nodes.values()):
                assert not set(made.cpus) & theirs
        held[str(number)] = made


def units(known, level):
    return {ExclusivePolicy.PCPU: known.cores, ExclusivePolicy.NUMA_NODE: known.nodes}.get(level, {}).values()


LIVES = st.lists(st.tuples(st.integers(1, 8), PINS, st.booleans(), st.booleans()), min_size=1, max_size=10)


@settings(max_examples=100, deadline=None)
@given(MACHINES, LIVES, st.sampled_from(NumaStrategy), st.sets(st.integers(0, 15), max_size=2))
def test_a_defragmentation_after_a_life(shape, life, strategy, reserved):
    """No CPU has two owners or is reserved, nobody who holds CPUs gets fewer than it asks for, fixed workloads stay,
    it is never worse than before and strictly better when somebody moves; the same plan twice."""
    known = machine(shape)
    node = NodeInfo(topology=shape, pinning=NodePinning(strategy=strategy), reserved_cpus=CpuSet(reserved))
    everybody = [workload(f"w{n}", count, pin=pin) for n, (count, pin, _, _) in enumerate(life)]
    held = assign(everybody, {}, node).held
    pods = [pod for pod, (_, _, stays, _) in zip(everybody, life, strict=True) if stays]
    fixed = frozenset(pod.uid for pod, (_, _, _, is_fixed) in zip(everybody, life, strict=True) if is_fixed)
    before = assign(pods, held, node)
    plan = make_plan(pods, before.held, node, fixed=fixed)
    taken = [cpu for pin in plan.held.values() for cpu in pin.cpus]
    assert len(taken) == len(set(taken))
    assert CpuSet(taken) <= known.cpus - CpuSet(reserved)
    for pod in pods:
        if pod.uid in before.held:
            assert len(plan.held[pod.uid].cpus) == len(before.held[pod.uid].cpus)
            if pod.uid in fixed:
                assert plan.held[pod.uid] == before.held[pod.uid]
    assert plan.after.rank < plan.before.rank if plan.moves else plan.after == plan.before
    assert {m.uid for m in plan.moves} == {
        uid for uid in plan.held if uid not in before.held or plan.held[uid].cpus != before.held[uid].cpus
    }
    again = make_plan(list(reversed(pods)), dict(reversed(before.held.items())), node, fixed=fixed)
    assert again.moves == plan.moves
    then = assign(pods, plan.held, node)
    assert then.held == plan.held or not plan.moves  # nobody is moved a second time by the next round
