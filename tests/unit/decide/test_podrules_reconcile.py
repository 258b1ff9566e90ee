"""The reconciler: one answer per pod and container, the same tuple while nothing changes, near eyes on what is new."""

from __future__ import annotations

from dataclasses import replace

from koordlet.decide.podrules.reconcile import RECONCILER, YOUNG_S, State
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pod import Container, HostApp, Pod, PodSet, Resources, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy
from tests.unit.decide.build import P8

POLICY = Policy(gates=frozenset({"BatchResource", "CPUSetAllocator"}))
LENT = Resources(batch_cpu_mcpu=1000, batch_memory_bytes=1 << 28)
NODE = NodeInfo(topology=P8)


def be_pod(name: str, *ids: str, running: bool = True) -> Pod:
    cgroup = f"kubepods/besteffort/pod{name}"
    containers = tuple(
        Container(f"c{n}", id=i, cgroup=f"{cgroup}/{i}" if i else "", running=running, requests=LENT, limits=LENT)
        for n, i in enumerate(ids)
    )
    return Pod(name, "default", name, cgroup, KubeQos.BESTEFFORT, qos=Qos.BE, containers=containers)


def lsr_pod(name: str, cpus: str, tree: Tree = Tree.KUBELET) -> Pod:
    cgroup = f"kubepods/pod{name}" if tree is Tree.KUBELET else f"{name}.slice"
    container = Container("c", id=name, cgroup=f"{cgroup}/c" if tree is Tree.KUBELET else "", running=True)
    cpuset = CpuSet.parse(cpus)
    return Pod(
        name, "default", name, cgroup, KubeQos.GUARANTEED, tree, qos=Qos.LSR, containers=(container,), cpuset=cpuset
    )


def view(*pods: Pod, revision: int = 1, **parts: object) -> NodeView:
    return replace(NodeView(now_s=0.0, node=NODE, pods=PodSet(pods, revision, 0.0)), **parts)  # type: ignore[arg-type]


def decide(seen: NodeView, state: State | None = None, now_s: float = 0.0, policy: Policy = POLICY) -> Outcome[State]:
    return RECONCILER.decide(seen, policy, state or RECONCILER.initial(), now_s)


def wanted(outcome: Outcome[State], target: str) -> dict[Knob, object]:
    return {decision.knob: decision.value for decision in outcome.decisions if decision.target == target}


def test_pod_and_containers_get_their_values() -> None:
    outcome = decide(view(be_pod("b", "x", "y")))
    assert wanted(outcome, "kubepods/besteffort/podb") == {
        Knob.CPU_SHARES: 2048,
        Knob.CPU_QUOTA: 200_000,
        Knob.MEMORY_LIMIT: 1 << 29,
    }
    assert wanted(outcome, "kubepods/besteffort/podb/x")[Knob.CPU_QUOTA] == 100_000


def test_a_steady_tick_hands_back_the_same_tuple() -> None:
    seen = view(be_pod("b", "x"))
    first = decide(seen)
    for now_s in range(1, 100):
        again = decide(replace(seen, now_s=float(now_s)), first.state, float(now_s))
        assert again.decisions is first.decisions
        assert again.effects is first.effects
        assert again.state is first.state


def test_a_new_revision_with_the_same_wishes_keeps_the_tuple() -> None:
    first = decide(view(be_pod("b", "x")))
    again = decide(view(be_pod("b", "x"), revision=2), first.state, 1.0)
    assert again.decisions is first.decisions


def test_values_of_a_new_pod_are_watched_closely_for_a_while() -> None:
    first = decide(view(be_pod("old", "x")))
    assert not any(decision.hot for decision in first.decisions), "what was there before us is not new"
    both = view(be_pod("old", "x"), be_pod("new", "y"), revision=2)
    second = decide(both, first.state, 10.0)
    assert {d.target.split("/")[2] for d in second.decisions if d.hot} == {"podnew"}
    same = decide(both, second.state, 10.0 + YOUNG_S - 1)
    assert same.decisions is second.decisions
    later = decide(both, same.state, 10.0 + YOUNG_S)
    assert not any(decision.hot for decision in later.decisions)
    assert [(d.key, d.value) for d in later.decisions] == [(d.key, d.value) for d in second.decisions]


def test_pods_that_run_when_the_agent_learns_of_any_are_not_new() -> None:
    unknown = replace(view(), pods=PodSet())
    started = decide(unknown)
    later = decide(view(be_pod("old", "x"), revision=2), started.state, 1.0)
    assert later.decisions
    assert not any(decision.hot for decision in later.decisions)


def test_a_restarted_container_is_new() -> None:
    first = decide(view(be_pod("b", "x")))
    again = decide(view(be_pod("b", "z"), revision=2), first.state, 5.0)
    assert all(decision.hot for decision in again.decisions)


def test_finished_pods_and_stopped_containers_want_nothing() -> None:
    done = replace(be_pod("b", "x"), phase="Succeeded")
    assert decide(view(done)).decisions == ()
    stopped = decide(view(be_pod("b", "x", running=False)))
    assert {decision.target for decision in stopped.decisions} == {"kubepods/besteffort/podb"}


def test_a_pinned_pod_makes_the_others_move() -> None:
    ls = Pod(
        "l", "default", "l", "kubepods/burstable/podl", KubeQos.BURSTABLE, qos=Qos.LS,
        containers=(Container("c", id="c", cgroup="kubepods/burstable/podl/c", running=True),),
    )  # fmt: skip
    outcome = decide(view(ls, lsr_pod("r", "0-1")))
    assert wanted(outcome, "kubepods/burstable/podl/c") == {Knob.CPUSET: CpuSet(range(2, 8))}
    assert wanted(outcome, "kubepods/podr/c") == {Knob.CPUSET: CpuSet((0, 1)), Knob.CPU_QUOTA: -1}
    assert wanted(outcome, "kubepods/podr") == {Knob.CPU_QUOTA: -1}


def test_sandboxes_are_placed_as_their_pods_are_and_get_nothing_else() -> None:
    ls = Pod("l", "default", "l", "kubepods/burstable/podl", KubeQos.BURSTABLE, qos=Qos.LS, sandbox_cgroup="ls/pause")
    lsr = replace(lsr_pod("r", "0-1"), sandbox_cgroup="lsr/pause")
    be = replace(be_pod("b", "x"), sandbox_cgroup="be/pause")
    broken = replace(lsr_pod("m", "0"), cpuset=None, cpuset_error="malformed", sandbox_cgroup="broken/pause")
    outcome = decide(view(ls, lsr, be, broken))
    assert wanted(outcome, "ls/pause") == {Knob.CPUSET: CpuSet(range(2, 8))}
    assert wanted(outcome, "lsr/pause") == {Knob.CPUSET: CpuSet((0, 1))}
    assert wanted(outcome, "be/pause") == {}
    assert wanted(outcome, "broken/pause") == {}
    assert wanted(decide(view(lsr), policy=Policy()), "lsr/pause") == {}


def test_a_declared_workload_is_its_own_container_and_keeps_its_quota() -> None:
    outcome = decide(view(lsr_pod("db", "0-1", Tree.OURS)))
    assert wanted(outcome, "db.slice") == {Knob.CPUSET: CpuSet((0, 1))}


def test_a_declared_workload_moves_only_when_there_is_somebody_to_make_room_for() -> None:
    free = replace(lsr_pod("web", "0", Tree.OURS), qos=Qos.LS, kube_qos=KubeQos.BURSTABLE, cpuset=None)
    assert decide(view(free)).decisions == ()
    pinned = decide(view(free, lsr_pod("db", "0-1", Tree.OURS)))
    assert wanted(pinned, "web.slice") == {Knob.CPUSET: CpuSet(range(2, 8))}


def test_the_root_of_a_best_effort_subtree_belongs_to_the_loops() -> None:
    pod = be_pod("b", "x")
    outcome = decide(view(pod, be_roots=(BeRoot(pod.cgroup, Tree.KUBELET),)))
    assert wanted(outcome, pod.cgroup) == {Knob.MEMORY_LIMIT: 1 << 28}


def test_an_ls_host_application_gets_the_pool() -> None:
    apps = (HostApp("edge", "edge", Qos.LS), HostApp("x", "x", Qos.SYSTEM))
    outcome = decide(view(lsr_pod("r", "0-1"), host_apps=apps))
    assert wanted(outcome, "edge") == {Knob.CPUSET: CpuSet(range(2, 8))}
    assert wanted(outcome, "x") == {}


def test_without_gates_nothing_is_wanted() -> None:
    assert decide(view(be_pod("b", "x"), lsr_pod("r", "0-1")), policy=Policy()).decisions == ()


def test_only_what_changed_is_answered_again() -> None:
    """On a full node one pod's change must not cost a round over all."""
    first = decide(view(be_pod("a", "x"), be_pod("b", "y")))
    second = decide(view(be_pod("a", "x"), be_pod("b", "z"), revision=2), first.state, 1.0)
    same, other = first.state.made, second.state.made
    assert same["a"] is other["a"]
    assert same["b"] is not other["b"]
    moved = decide(view(be_pod("a", "x"), lsr_pod("r", "0-1"), revision=3), second.state, 2.0)
    assert moved.state.made["a"] is not other["a"], "the pools have changed, and with them every answer"
