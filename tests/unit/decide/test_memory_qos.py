"""Memory QoS: whose files are touched at all, precedence, sums of the parents, what stands in for vendor knobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.decide.memory_qos import MAX_RECLAIM_BYTES, MEMORY_QOS, State
from koordlet.model.knob import Knob
from koordlet.model.memory_qos import MemoryClass, MemoryClasses, MemoryPolicy, MemoryQos, MemorySettings
from koordlet.model.pod import Container, Pod, PodSet, Resources, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.reclaim import Reclaim
from koordlet.model.settings import PodSettings
from koordlet.model.slo import NodeSlo
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import NodeInfo, NodeView, Outcome, Policy, Reading, WorkloadUsage

MIB, GIB = 1 << 20, 1 << 30
DIRS = {KubeQos.GUARANTEED: "kubepods", KubeQos.BURSTABLE: "kubepods/burstable", KubeQos.BESTEFFORT: "kubepods/be"}
MAINLINE = Support(
    {
        **{k: Capability(k, Level.NATIVE, "t") for k in (Knob.MEMORY_MIN, Knob.MEMORY_LOW, Knob.MEMORY_HIGH,
                                                         Knob.MEMORY_OOM_GROUP, "memory.reclaim")},
        **{k: Capability(k, Level.UNSUPPORTED, "t") for k in (Knob.MEMORY_WMARK_RATIO, Knob.MEMORY_WMARK_SCALE,
                                                              Knob.MEMORY_WMARK_MIN_ADJ, Knob.MEMORY_PRIORITY,
                                                              Knob.MEMORY_USE_PRIORITY_OOM, Knob.PAGECACHE_SIZE,
                                                              Knob.PAGECACHE_ENABLE, Knob.PAGECACHE_SYNC)},
    }
)  # fmt: skip


def pod(
    name: str,
    request: int = 100 * MIB,
    limit: int | None = 200 * MIB,
    *,
    qos: Qos | None = Qos.LS,
    kube: KubeQos = KubeQos.BURSTABLE,
    wish: MemorySettings | None = None,
    containers: int = 1,
    **more: Any,
) -> Pod:
    cgroup = f"{DIRS[kube]}/pod{name}"
    be = qos is Qos.BE
    requests, limits = (Resources(batch_memory_bytes=n) if be else Resources(memory_bytes=n) for n in (request, limit))
    return Pod(
        uid=name,
        namespace="default",
        name=name,
        cgroup=cgroup,
        kube_qos=kube,
        qos=qos,
        containers=tuple(
            Container(f"c{i}", f"containerd://{name}{i}", f"{cgroup}/c{i}", True, requests, limits)
            for i in range(containers)
        ),
        settings=PodSettings(memory_qos=wish),
        **more,
    )


def classes(**enabled: MemoryQos) -> MemoryClasses:
    return MemoryClasses(**{name: MemoryClass(True, qos) for name, qos in enabled.items()})


def decide(
    *pods: Pod,
    rule: MemoryClasses | None = None,
    state: State | None = None,
    support: Support | None = None,
    rows: dict[str, WorkloadUsage] | None = None,
    revision: int = 1,
    now_s: float = 0.0,
    gate: bool = True,
) -> Outcome[State]:
    view = NodeView(
        now_s,
        node=NodeInfo(capacity_bytes=8 * GIB),
        pods=PodSet(pods, revision, now_s),
        support=support or EMPTY,
        workloads=rows or {},
    )
    policy = Policy(slo=NodeSlo(memory=rule or MemoryClasses()), gates=frozenset({"CgroupReconcile"} if gate else ()))
    return MEMORY_QOS.decide(view, policy, state or MEMORY_QOS.initial(), now_s)


EMPTY = Support()
PROTECT = MemoryQos(min_percent=50, low_percent=80)


def values(outcome: Outcome[State], knob: Knob) -> dict[str, Any]:
    return {d.target: d.value for d in outcome.decisions if d.knob is knob}


def test_off_names_nothing() -> None:
    """F-20: the reference forces min=0, low=0, high=max and oom.group=0 on everybody, over the kubelet's own."""
    assert decide(pod("a"), gate=False).decisions == ()
    assert decide(pod("a")).decisions == ()
    assert decide(pod("a", qos=Qos.BE), rule=classes(ls=PROTECT)).decisions == ()
    assert decide(pod("a", wish=MemorySettings(MemoryPolicy.NONE)), rule=classes(ls=PROTECT)).decisions == ()


def test_switched_off_what_was_named_is_not_named_any_more() -> None:
    on = decide(pod("a"), rule=classes(ls=PROTECT))
    assert on.decisions
    assert decide(pod("a"), state=on.state).decisions == ()


def test_steady_rounds_hand_back_the_same_tuple() -> None:
    first = decide(pod("a"), rule=classes(ls=PROTECT))
    assert decide(pod("a"), rule=classes(ls=PROTECT), state=first.state).decisions is first.decisions
    assert decide(pod("a"), rule=classes(ls=PROTECT), state=first.state, revision=2).decisions == first.decisions


def test_parents_hold_the_sum_of_what_is_protected_below() -> None:
    pods = (
        pod("a", containers=2),
        pod("b", 300 * MIB),
        pod("g", 400 * MIB, 400 * MIB, qos=Qos.LSR, kube=KubeQos.GUARANTEED),
        pod("x", 900 * MIB, qos=Qos.BE, kube=KubeQos.BESTEFFORT),
        pod("done", 900 * MIB, phase="Succeeded"),
    )
    outcome = decide(*pods, rule=classes(ls=PROTECT, lsr=PROTECT))
    assert values(outcome, Knob.MEMORY_MIN) == {
        "kubepods": 450 * MIB,
        "kubepods/burstable": 250 * MIB,
        "kubepods/burstable/poda": 100 * MIB,
        "kubepods/burstable/poda/c0": 50 * MIB,
        "kubepods/burstable/poda/c1": 50 * MIB,
        "kubepods/burstable/podb": 150 * MIB,
        "kubepods/burstable/podb/c0": 150 * MIB,
        "kubepods/podg": 200 * MIB,
        "kubepods/podg/c0": 200 * MIB,
    }
    low = values(outcome, Knob.MEMORY_LOW)
    assert low["kubepods"] == low["kubepods/burstable"] + low["kubepods/podg"] == 720 * MIB


def test_a_tree_of_our_own_has_no_kubelet_directories() -> None:
    outcome = decide(replace(pod("a"), cgroup="web.slice", tree=Tree.OURS), rule=classes(ls=PROTECT))
    assert set(values(outcome, Knob.MEMORY_MIN)) == {"web.slice", "kubepods/burstable/poda/c0"}


PRECEDENCE = [
    pytest.param(None, 50, id="class"),
    pytest.param(MemorySettings(), 50, id="empty-annotation"),
    pytest.param(MemorySettings(qos=MemoryQos(min_percent=10)), 10, id="pod-field"),
    pytest.param(MemorySettings(MemoryPolicy.AUTO), 0, id="template"),
    pytest.param(MemorySettings(MemoryPolicy.AUTO, MemoryQos(min_percent=10)), 10, id="pod-field-over-template"),
]


@pytest.mark.parametrize(("wish", "percent"), PRECEDENCE)
def test_precedence(wish: MemorySettings | None, percent: int) -> None:
    outcome = decide(pod("a", wish=wish), rule=classes(ls=PROTECT))
    assert values(outcome, Knob.MEMORY_MIN)["kubepods/burstable/poda"] == percent * MIB


def test_auto_does_not_need_the_class() -> None:
    outcome = decide(pod("a", wish=MemorySettings(MemoryPolicy.AUTO)))
    assert values(outcome, Knob.MEMORY_WMARK_RATIO) == {
        "kubepods/burstable/poda": 95,
        "kubepods/burstable/poda/c0": 95,
    }


def test_an_oom_group_is_only_ever_switched_on_and_never_for_all_pods() -> None:
    one = decide(pod("a"), rule=classes(ls=MemoryQos(oom_kill_group=1)))
    assert set(values(one, Knob.MEMORY_OOM_GROUP)) == {"kubepods/burstable/poda", "kubepods/burstable/poda/c0"}
    none = decide(pod("a"), rule=classes(ls=MemoryQos(oom_kill_group=0, min_percent=1)))
    assert values(none, Knob.MEMORY_OOM_GROUP) == {}


def test_priorities_stand_on_the_qos_directories_too() -> None:
    rule = classes(ls=MemoryQos(priority_enable=1, priority=5), be=MemoryQos(priority_enable=1, priority=0))
    outcome = decide(pod("a"), pod("b", qos=Qos.BE, kube=KubeQos.BESTEFFORT), rule=rule)
    found = values(outcome, Knob.MEMORY_PRIORITY)
    assert (found["kubepods/burstable"], found["kubepods/be"]) == (5, 0)
    assert "kubepods" not in found


def test_a_knob_that_this_kernel_lacks_is_named_once() -> None:
    """The executor tells it once; a slot for each pod would only cost memory (case unsupported-memory-high)."""
    lacking = Support({k: Capability(k, Level.UNSUPPORTED, "t") for k in (Knob.MEMORY_MIN, Knob.MEMORY_HIGH)})
    rule = classes(ls=MemoryQos(min_percent=50, low_percent=50, throttling_percent=80))
    outcome = decide(*(pod(f"p{i}") for i in range(20)), rule=rule, support=lacking)
    assert len(values(outcome, Knob.MEMORY_MIN)) == len(values(outcome, Knob.MEMORY_HIGH)) == 1
    assert len(values(outcome, Knob.MEMORY_LOW)) == 42


def row(cgroup: str, used: float, file: float = 0.0, at_s: float = 0.0) -> dict[str, WorkloadUsage]:
    usage = WorkloadUsage("p", cgroup, memory_raw_bytes=Reading(used, at_s), file_bytes=Reading(file, at_s))
    return {cgroup: usage}


MARKS = classes(be=MemoryQos(wmark_ratio=95, wmark_scale_permill=20))
BE_POD = pod("b", GIB, 1000 * MIB, qos=Qos.BE, kube=KubeQos.BESTEFFORT)


def reclaims(outcome: Outcome[State]) -> list[tuple[str, int, bool]]:
    return [(e.target, e.bytes, e.file_only) for e in outcome.effects if isinstance(e, Reclaim)]


@pytest.mark.parametrize(
    ("used", "at_s", "expected"),
    [
        (949 * MIB, 0.0, None),
        (951 * MIB, 0.0, 21 * MIB),
        (951 * MIB, -16.0, None),
        (4000 * MIB, 0.0, MAX_RECLAIM_BYTES),
    ],
)
def test_reclaim_stands_in_for_watermarks(used: int, at_s: float, expected: int | None) -> None:
    outcome = decide(BE_POD, rule=MARKS, support=MAINLINE, rows=row(BE_POD.cgroup, used, at_s=at_s))
    assert reclaims(outcome) == ([] if expected is None else [(BE_POD.cgroup, expected, False)])


def test_one_reading_is_acted_on_once() -> None:
    """The kernel may have done it meanwhile: the next request needs a newer reading."""
    first = decide(BE_POD, rule=MARKS, support=MAINLINE, rows=row(BE_POD.cgroup, 960 * MIB, at_s=5.0), now_s=5.0)
    assert len(reclaims(first)) == 1
    more = {"rule": MARKS, "support": MAINLINE}
    same = decide(BE_POD, state=first.state, rows=row(BE_POD.cgroup, 960 * MIB, at_s=5.0), now_s=6.0, **more)
    assert reclaims(same) == []
    newer = decide(BE_POD, state=same.state, rows=row(BE_POD.cgroup, 960 * MIB, at_s=7.0), now_s=7.0, **more)
    assert len(reclaims(newer)) == 1


def test_no_reclaim_where_the_kernel_has_watermarks_or_no_reclaim() -> None:
    used = row(BE_POD.cgroup, 990 * MIB)
    for name in (Knob.MEMORY_WMARK_RATIO, "memory.reclaim"):
        table = {n: c for n, c in MAINLINE.table.items() if n != name}
        assert reclaims(decide(BE_POD, rule=MARKS, support=Support(table), rows=used)) == []


def test_page_cache_above_its_limit_is_reclaimed() -> None:
    rule = classes(be=MemoryQos(pagecache_percent=10))
    outcome = decide(BE_POD, rule=rule, support=MAINLINE, rows=row(BE_POD.cgroup, 500 * MIB, 150 * MIB))
    assert reclaims(outcome) == [(BE_POD.cgroup, 50 * MIB, True)]
    below = decide(BE_POD, rule=rule, support=MAINLINE, rows=row(BE_POD.cgroup, 500 * MIB, 90 * MIB))
    assert reclaims(below) == []


def test_one_unlimited_container_makes_the_pod_unlimited() -> None:
    """beyond: the reference sums up the others', so the page cache limit comes out too small."""
    made = pod("a", containers=2, wish=MemorySettings(qos=MemoryQos(pagecache_percent=50)))
    free = replace(made, containers=(made.containers[0], replace(made.containers[1], limits=Resources())))
    assert values(decide(made), Knob.PAGECACHE_SIZE) == {"kubepods/burstable/poda": 200 * MIB}
    assert values(decide(free), Knob.PAGECACHE_SIZE) == {}
