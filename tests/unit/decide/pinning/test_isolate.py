"""Options beyond the CPU list: memory, partitions, interrupts; all off by default."""

from __future__ import annotations

from dataclasses import replace

from koordlet.decide.pinning.isolate import ISOLATION
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pinning import MemsMode, Partition, PinOptions
from koordlet.model.pod import PodSet, Tree
from koordlet.model.qos import Qos
from koordlet.model.topology import NumaNode
from koordlet.model.view import NodeInfo, NodeView, Policy
from tests.unit.decide.pinning.machines import H16
from tests.unit.decide.pinning.test_assign import workload

LSE = replace(workload("lse", 2, qos=Qos.LSE), cpuset=CpuSet.parse("0,8"), cgroup="lse.slice")
LSR = replace(workload("lsr", 2), cpuset=CpuSet.parse("4,12"), cgroup="app.slice/lsr")
NODE = NodeInfo(topology=H16)


def ask(options: PinOptions, *pods, node=NODE, state=None, revision=1):
    view = NodeView(now_s=1.0, node=node, pods=PodSet(pods, revision, 1.0))
    return ISOLATION.decide(view, Policy(pinning=options), state or ISOLATION.initial(), 1.0)


def shown(outcome):
    return [(d.target, d.knob, str(d.value)) for d in outcome.decisions]


def test_nothing_by_default():
    assert shown(ask(PinOptions(), LSE, LSR)) == []


def test_memory_is_bound_to_the_nodes_of_the_cpus():
    assert shown(ask(PinOptions(mems=MemsMode.BIND), LSE, LSR)) == [
        ("lse.slice", Knob.CPUSET_MEMS, "0"),
        ("app.slice/lsr", Knob.CPUSET_MEMS, "1"),
    ]
    assert shown(ask(PinOptions(mems=MemsMode.MIGRATE), LSR)) == [
        ("app.slice/lsr", Knob.CPUSET_MIGRATE, "1"),
        ("app.slice/lsr", Knob.CPUSET_MEMS, "1"),
    ]


def test_cpus_without_memory_bind_nothing():
    bare = replace(H16, nodes=(H16.nodes[0], NumaNode(1, H16.nodes[1].cpus, 0)))
    options = PinOptions(mems=MemsMode.BIND, balancing_off=True)
    assert shown(ask(options, LSR, node=NodeInfo(topology=bare))) == []


def test_balancing_is_off_only_while_memory_is_bound():
    options = PinOptions(mems=MemsMode.BIND, balancing_off=True)
    bound = ask(options, LSR)
    assert shown(bound)[-1] == ("system", Knob.NUMA_BALANCING, "0")
    assert shown(ask(options, state=bound.state, revision=2)) == []
    assert shown(ask(PinOptions(balancing_off=True), LSR)) == []


def test_only_a_declared_top_level_lse_group_becomes_a_partition():
    found = ask(PinOptions(partition=Partition.ISOLATED), LSE, LSR, replace(LSE, name="deep", cgroup="a/b"))
    assert shown(found) == [("lse.slice", Knob.CPUSET_PARTITION, "2")]
    assert found.notes == ("local/deep: no cpuset partition: a/b is not a declared top-level cgroup",)
    assert shown(ask(PinOptions(partition=Partition.ROOT), replace(LSE, tree=Tree.KUBELET))) == []


def irqs(*lists: str) -> NodeInfo:
    return replace(NODE, irqs=tuple((24 + i, CpuSet.parse(text)) for i, text in enumerate(lists)))


def test_interrupts_leave_the_cpus_of_lse_work():
    options = PinOptions(irq=True)
    first = ask(options, LSE, LSR, node=irqs("0-15", "0", "1"))
    assert shown(first) == [
        ("24", Knob.IRQ_AFFINITY, "1-7,9-15"),
        ("25", Knob.IRQ_AFFINITY, "1-7,9-15"),
    ]
    moved = ask(options, LSE, LSR, node=irqs("1-7,9-15", "1-7,9-15", "1"), state=first.state)
    assert shown(moved) == shown(first)  # what we wrote is not its own list
    balanced = ask(options, LSE, node=irqs("1-7,9-15", "3", "8"), state=moved.state)
    assert shown(balanced) == [
        ("24", Knob.IRQ_AFFINITY, "1-7,9-15"),
        ("26", Knob.IRQ_AFFINITY, "1-7,9-15"),
    ]
    assert shown(ask(options, LSR, node=irqs("1-7,9-15", "3", "8"), state=balanced.state, revision=2)) == []


def test_a_steady_tick_hands_back_the_same_tuple():
    first = ask(PinOptions(irq=True), LSE, node=irqs("0-15"))
    again = ask(PinOptions(irq=True), LSE, node=irqs("0-15"), state=first.state)
    assert again.decisions is first.decisions
