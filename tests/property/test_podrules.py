"""Whichever door asks, a pod gets the same values; and the answer is a fixed point."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.decide.podrules import PodContext, answer
from koordlet.decide.pools import Pool
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pod import Container, Pod, Resources
from koordlet.model.podevent import Hook, LinuxResources, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import NodeSlo, SuppressPolicy, Threshold
from koordlet.model.units import QUOTA_MIN_US, mcpu_to_quota_us
from koordlet.model.view import NodeInfo, Policy
from koordlet.sources.settings import read_settings
from tests.unit.decide.build import P8

GATES = ("BatchResource", "CPUSetAllocator", "GroupIdentity", "CPUNormalization", "BECPUManager", "BECPUSuppress")
POOLS = (Pool(0, 0, CpuSet(range(1, 4))), Pool(1, 1, CpuSet(range(4, 8))))
amounts = st.none() | st.integers(0, 10_000)
limits = st.none() | st.sampled_from([100, 500, 1000, 2000, 4500])


@st.composite
def contexts(draw: st.DrawFn) -> PodContext:
    threshold = Threshold(enable=draw(st.booleans()), cpu_suppress_policy=draw(st.sampled_from(list(SuppressPolicy))))
    node = NodeInfo(
        kubelet_policy=draw(st.sampled_from(["none", "static", None])),
        topology=P8,
        system_cpuset=CpuSet(draw(st.sets(st.integers(0, 7), max_size=2))),
        cpu_normalization_ratio=draw(st.none() | st.sampled_from([0.8, 1.0, 1.2, 1.5])),
        cgroup_v2=draw(st.booleans()),
    )
    policy = Policy(
        slo=NodeSlo(threshold=threshold),
        gates=frozenset(draw(st.sets(st.sampled_from(GATES)))),
        unset_cpu_quota=draw(st.booleans()),
        hooked=draw(st.booleans()),
    )
    return PodContext(policy, node, ls_pools=POOLS, be_pools=POOLS)


@st.composite
def pods(draw: st.DrawFn) -> tuple[Pod, Pod]:
    """The same pod as a pod list tells it and as a runtime's labels and annotations do."""
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    qos = draw(st.none() | st.sampled_from(list(Qos)))
    kube = draw(st.sampled_from(list(KubeQos)))
    status: dict[str, Any] = {}
    if draw(st.booleans()):
        status["cpuset"] = draw(st.sampled_from(["2-3", "0", "6-9"]))
    if draw(st.booleans()):
        status["numaNodeResources"] = [{"node": draw(st.integers(0, 2)), "resources": {"cpu": "1"}}]
    rows: dict[str, Any] = {}
    told, bare = [], []
    for name in names:
        lent = {
            "batch_cpu_mcpu": draw(amounts),
            "batch_memory_bytes": draw(st.none() | st.integers(0, 1 << 30)),
        }
        limit = draw(limits)
        known = Resources(**lent)
        keys = {"batch_cpu_mcpu": "kubernetes.io/batch-cpu", "batch_memory_bytes": "kubernetes.io/batch-memory"}
        texts = {keys[key]: str(value) for key, value in lent.items() if value is not None}
        if texts:
            rows[name] = {"requests": texts, "limits": texts}
        told.append(Container(name, name, f"p/{name}", True, known, replace(known, cpu_mcpu=limit)))
        bare.append(Container(name))
    annotations = {"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": rows})}
    if status:
        annotations["scheduling.koordinator.sh/resource-status"] = json.dumps(status)
    found = read_settings({}, annotations)
    whole = Pod("u", "n", "p", "kubepods/podu", kube, qos=qos, containers=tuple(told), settings=found)
    if found.resource_status is not None:
        whole = replace(whole, cpuset=found.resource_status.cpuset)
    return whole, replace(whole, containers=tuple(bare))


def merged(asked: LinuxResources, told: LinuxResources) -> dict[Knob, Any]:
    """What the runtime sets up: its own values, ours laid over."""
    found = {
        Knob.CPU_SHARES: told.cpu_shares if told.cpu_shares is not None else asked.cpu_shares,
        Knob.CPU_QUOTA: told.cpu_quota_us if told.cpu_quota_us is not None else asked.cpu_quota_us,
        Knob.MEMORY_LIMIT: (
            told.memory_limit_bytes if told.memory_limit_bytes is not None else asked.memory_limit_bytes
        ),
        Knob.CPUSET: told.cpuset if told.cpuset is not None else asked.cpuset,
    }
    return {knob: value for knob, value in found.items() if value is not None and value != CpuSet()}


@settings(max_examples=300)
@given(pods(), contexts())
def test_every_door_gives_the_same_values(pod: tuple[Pod, Pod], context: PodContext) -> None:
    whole, bare = pod
    for known, unknown in zip(whole.containers, bare.containers, strict=True):
        written = answer(PodEvent(Hook.RECONCILE, whole, known, cgroup=known.cgroup), context)
        wanted = {decision.knob: decision.value for decision in written.decisions}
        limit = known.limits.cpu_mcpu
        asked = LinuxResources(cpu_quota_us=mcpu_to_quota_us(limit) if limit else None)
        for about, container in ((whole, known), (bare, unknown)):
            for hook in (Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER):
                reply = answer(PodEvent(hook, about, container, asked=asked), context)
                assert reply.decisions == ()
                after = merged(asked, reply.resources)
                assert {knob: after.get(knob) for knob in wanted} == wanted
                own = set(after) - set(wanted)
                assert own <= {Knob.CPU_QUOTA}, "what we have no opinion on stays as the runtime asked"
                assert all(after[knob] == asked.cpu_quota_us for knob in own)


@settings(max_examples=200)
@given(pods(), contexts())
def test_the_pod_level_does_not_depend_on_who_tells(pod: tuple[Pod, Pod], context: PodContext) -> None:
    whole, bare = pod
    found = [
        {d.knob: d.value for d in answer(PodEvent(hook, about), context).decisions}
        for about in (whole, bare)
        for hook in (Hook.RECONCILE, Hook.PRE_RUN_POD_SANDBOX)
    ]
    # A normalized pod quota needs the limits of all containers, which only the pod's spec tells.
    for values in found[2:]:
        values.setdefault(Knob.CPU_QUOTA, found[0].get(Knob.CPU_QUOTA, -1))
        found[0].setdefault(Knob.CPU_QUOTA, -1)
        found[1].setdefault(Knob.CPU_QUOTA, -1)
    assert all(values == found[0] for values in found)


@settings(max_examples=200)
@given(pods(), contexts())
def test_no_answer_harms(pod: tuple[Pod, Pod], context: PodContext) -> None:
    """No limit of 0, no child above its parent, no empty CPU set, no idle on a container."""
    whole, _ = pod
    levels = [None, *whole.containers]
    found = [answer(PodEvent(Hook.RECONCILE, whole, one, cgroup="p"), context) for one in levels]
    assert all(not one.faults for one in found)
    quotas = []
    for one in found:
        values = {decision.knob: decision.value for decision in one.decisions}
        assert values.get(Knob.MEMORY_LIMIT) != 0
        assert values.get(Knob.CPUSET, CpuSet((0,)))
        quota = values.get(Knob.CPU_QUOTA, -1)
        assert quota == -1 or quota >= QUOTA_MIN_US
        quotas.append(quota)
    if quotas[0] > 0 and whole.qos is Qos.BE:
        assert max(quotas[1:]) <= quotas[0]
