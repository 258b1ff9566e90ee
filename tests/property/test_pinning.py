"""The allocator over random lives of random machines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.decide.pinning.allocate import NodeRules, Wish, allocate
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
from tests.unit.decide.pinning.machines import topology

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
