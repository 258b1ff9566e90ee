"""Invariants of the CPU picks, the quota and the strategies, for any topology, pods and sequence of demands."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.decide import suppress_quota
from koordlet.decide.pick import choose, pick
from koordlet.decide.slew import Ramp
from koordlet.decide.strategies import STRATEGIES
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import Qos
from koordlet.model.slo import SuppressPolicy
from koordlet.model.support import Capability, Level, Support
from koordlet.model.topology import Topology
from koordlet.model.view import NodeView, Policy, Reading
from tests.unit.decide.build import decide, pinned, policy, root, topology, usage, view, with_kernel

CPUSET = SuppressPolicy.CPUSET


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """1-2 sockets, 1-4 cores each, 1-2 threads (hybrid: per core), ids in either of the usual orders."""
    sockets, cores = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    threads = [draw(st.integers(1, 2)) for _ in range(sockets * cores)]
    slots = [(core, thread) for core in range(sockets * cores) for thread in range(threads[core])]
    if draw(st.booleans()):
        slots.sort(key=lambda slot: (slot[1], slot[0]))
    return topology((cpu, core, core // cores, core // cores) for cpu, (core, _) in enumerate(slots))


def subset(draw: st.DrawFn, among: CpuSet) -> CpuSet:
    mask = draw(st.integers(0, (1 << 16) - 1))
    return CpuSet(cpu for cpu in among if mask >> cpu & 1)


def halves(chosen: CpuSet, of: Topology) -> int:
    return sum(0 < len(threads & chosen) < len(threads) for threads in of.siblings().values())


@given(st.data(), topologies(), st.integers(0, 20))
def test_pick_takes_what_is_asked_or_all_there_is(data: st.DataObject, of: Topology, need: int) -> None:
    pool = data.draw(st.composite(subset)(of.online))
    taken = pick(need, pool, of)
    assert len(taken) == len(set(taken)) == min(need, len(pool))
    assert CpuSet(taken) <= pool


@given(topologies(), st.integers(0, 20))
def test_pick_splits_at_most_one_core_of_a_whole_machine(of: Topology, need: int) -> None:
    assert halves(CpuSet(pick(need, of.online, of)), of) <= 1


@given(topologies(), st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_choose_is_sticky_and_keeps_whole_cores(of: Topology, counts: list[int]) -> None:
    """Growing keeps everything held, shrinking adds nothing, at most one core is split at any time."""
    held = CpuSet()
    for count in counts:
        chosen = choose(count, CpuSet(), of.online, held, of)
        assert len(chosen) == min(count, len(of.cpus))
        assert held <= chosen or chosen <= held
        assert halves(chosen, of) <= 1
        held = chosen


@given(st.data(), topologies(), st.integers(1, 20))
def test_choose_stays_in_the_pools_with_the_proportional_share(data: st.DataObject, of: Topology, count: int) -> None:
    draw_subset = st.composite(subset)
    lsr = data.draw(draw_subset(of.online))
    ls = data.draw(draw_subset(of.online - lsr))
    held = data.draw(draw_subset(of.online))
    chosen = choose(count, lsr, ls, held, of)
    there = len(lsr) + len(ls)
    assert chosen <= lsr | ls
    assert len(chosen) == min(count, there)
    assert len(chosen & lsr) == (min(count, there) * len(lsr) // there if there else 0)


@given(
    st.integers(-5_000, 40_000),
    st.one_of(st.none(), st.integers(1_000, 4_000_000)),
    st.integers(1, 64),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_quota_stays_between_floor_and_what_is_wanted_or_held(
    target_mcpu: int, old: int | None, cores: int, roots: int, may_grow: bool, falling: bool
) -> None:
    total, _, _ = suppress_quota.step(target_mcpu, old, cores * 1000, roots, Ramp(falling=falling), may_grow, 0.0)
    least = suppress_quota.floor_us(roots)
    assert total >= least
    assert total <= max(target_mcpu * 100, least, 0 if old is None else old)
    if old is not None and total > max(old, least):
        assert may_grow
        assert total - old <= cores * 10_000 or total == least
    if target_mcpu * 100 <= least:
        assert total == least


@given(st.integers(4_000, 4_000_000), st.lists(st.integers(0, 9_000), min_size=1, max_size=4))
def test_shares_of_the_roots_never_exceed_the_total(total: int, requests: list[int]) -> None:
    roots = [root(path=f"b{i}", request_mcpu=mcpu) for i, mcpu in enumerate(requests)]
    shares = suppress_quota.split(total, roots)
    assert min(shares) >= 1_000
    assert total - len(roots) < sum(shares) <= total


@st.composite
def worlds(draw: st.DrawFn) -> tuple[NodeView, Policy]:
    """A node with pods of all classes, perhaps two BE roots, stale or missing readings, either policy."""
    of = draw(topologies())
    capacity = len(of.cpus)
    names = draw(st.lists(st.sampled_from([Qos.LSE, Qos.LSR, Qos.LS, Qos.BE]), max_size=4))
    pods: list[Pod] = []
    for index, qos in enumerate(names):
        kept = str(subset(draw, of.online))
        pods.append(pinned(qos, kept, f"p{index}", cgroup=f"kubepods/besteffort/podp{index}"))
    base = "kubepods/besteffort"
    containers = tuple(f"{pod.cgroup}/c" for pod in pods)
    levels = ((base,), tuple(pod.cgroup for pod in pods), containers)
    quota_us = draw(st.sampled_from([-1, None, 1_000, 50_000, 400_000]))
    roots = [root(quota_us, str(of.online), levels=levels)]
    if draw(st.booleans()):
        roots.append(root(quota_us, str(of.online), path="batch", tree=Tree.OURS, request_mcpu=1000))
    used = usage(
        10.0 - draw(st.sampled_from([0, 0, 0, 4, 30])),
        nonbe=draw(st.floats(0, capacity)),
        system=draw(st.floats(0, 1)),
        be=draw(st.one_of(st.none(), st.floats(0, capacity))),
        surge=draw(st.one_of(st.none(), st.floats(0, capacity))),
        pressure=draw(st.one_of(st.none(), st.floats(0, 10_000))),
    )
    seen = view(
        10.0,
        draw(st.sampled_from([capacity, capacity, capacity, None])),
        used,
        tuple(roots),
        pods,
        topology=draw(st.sampled_from([of, of, of, None])),
        kubelet_policy=draw(st.sampled_from(["none", "static", None])),
        reserved_cpus=subset(draw, of.online) if draw(st.booleans()) else CpuSet(),
    )
    names_supported = draw(st.sets(st.sampled_from(["cpu.idle", "cpu.bvt_warp_ns"])))
    seen = replace(seen, support=Support({name: Capability(name, Level.NATIVE, "") for name in names_supported}))
    kind = draw(st.sampled_from(list(SuppressPolicy)))
    minimum = draw(st.sampled_from([None, 0, 20]))
    return seen, policy(kind, minimum=minimum, idle_on_be_pods=draw(st.booleans()))


def later(seen: NodeView, seconds: float) -> NodeView:
    """The same usage, read so much later."""
    names = seen.usage.__dataclass_fields__
    moved: dict[str, Any] = {}
    for name in names:
        reading = getattr(seen.usage, name)
        moved[name] = None if reading is None else Reading(reading.value, reading.at_s + seconds)
    return replace(seen, now_s=seen.now_s + seconds, usage=replace(seen.usage, **moved))


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_strategies_are_pure_and_name_each_knob_once(world: tuple[NodeView, Policy]) -> None:
    seen, rule = world
    before = copy.deepcopy(seen)
    for strategy in STRATEGIES:
        state = strategy.initial()
        for step in range(3):
            moment = later(seen, step)
            first = strategy.decide(moment, rule, state, moment.now_s)
            assert strategy.decide(copy.deepcopy(moment), rule, copy.deepcopy(state), moment.now_s) == first
            keys = [decision.key for decision in first.decisions]
            assert len(keys) == len(set(keys))
            assert all(target and not target.startswith("/") for target, _ in keys)
            state = first.state
    assert seen == before


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_cpusets_are_never_empty_and_never_touch_what_is_not_lent(world: tuple[NodeView, Policy]) -> None:
    seen, rule = world
    outcome = decide(seen, rule)
    wide = set[str]()  # under a static kubelet on v1, where containers alone are narrowed
    for one in seen.be_roots:
        if seen.node.kubelet_policy == "static" and one.tree is Tree.KUBELET and not seen.node.cgroup_v2:
            wide.update((one.path,), *one.levels[:2])
    wanted = [d.value for d in outcome.decisions if isinstance(d.value, CpuSet) and d.target not in wide]
    lse = CpuSet()
    for pod in seen.pods.pods:
        if pod.qos is Qos.LSE and pod.cpuset is not None:
            lse |= pod.cpuset
    for value in wanted:
        assert value
        assert not value & (lse | seen.node.reserved_cpus)


@settings(max_examples=100, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_pods_does_not_matter(world: tuple[NodeView, Policy], rng: Any) -> None:
    seen, rule = world
    pods = list(seen.pods.pods)
    rng.shuffle(pods)
    shuffled = replace(seen, pods=replace(seen.pods, pods=tuple(pods)), be_roots=tuple(reversed(seen.be_roots)))
    assert set(decide(seen, rule).decisions) == set(decide(shuffled, rule).decisions)


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_constant_input_reaches_a_fixed_point(world: tuple[NodeView, Policy]) -> None:
    """At most ten steps of growth and some ticks for the short average; then nothing moves any more."""
    seen, rule = world
    seen = replace(seen, usage=replace(seen.usage, surge_mcpu=None, ls_pressure_permyriad=None))
    outcome = decide(seen, rule)
    for second in range(1, 16):
        outcome = decide(with_kernel(later(seen, second), outcome), rule, outcome.state)
    settled = outcome.decisions
    for second in range(16, 20):
        outcome = decide(with_kernel(later(seen, second), outcome), rule, outcome.state)
        assert outcome.decisions == settled
