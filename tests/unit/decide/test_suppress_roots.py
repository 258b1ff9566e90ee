"""The suppress strategy with several roots, and which CPUs of a set it lends."""

from __future__ import annotations

import dataclasses

import pytest

from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Exclusive
from koordlet.model.pod import Pod, Tree
from koordlet.model.qos import KubeQos, Qos
from tests.unit.decide.build import (
    CPUSET,
    P8,
    ROOT,
    T16,
    cpus,
    decide,
    flat,
    follow,
    pinned,
    policy,
    quota,
    root,
    usage,
    view,
)

# Several roots


def test_several_roots_share_by_request_and_stay_within_the_total() -> None:
    a = root(path="batch-a", tree=Tree.OURS, request_mcpu=3000)
    b = root(path="batch-b", tree=Tree.OURS, request_mcpu=1000)
    c = root(path="batch-c", tree=Tree.OURS)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4), (a, b)), policy())
    assert (quota(outcome, "batch-a"), quota(outcome, "batch-b")) == (480_000, 160_000)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4), (a, b, c)), policy())
    assert [quota(outcome, path) for path in ("batch-a", "batch-b", "batch-c")] == [384_000, 128_000, 128_000]


def test_several_roots_without_requests_share_equally_down_to_the_kernels_minimum() -> None:
    roots = tuple(root(path=f"batch-{name}", tree=Tree.OURS) for name in "abc")
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=16), roots), policy())
    assert [quota(outcome, one.path) for one in roots] == [1_000, 1_000, 1_000]


def test_several_roots_reach_a_fixed_point() -> None:
    roots = tuple(root(path=f"batch-{name}", tree=Tree.OURS) for name in "abc")
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=4.001), roots), policy())
    again = follow(view(1.0, 16, usage(1.0, nonbe=4.001), roots), outcome, policy())
    assert again.decisions is outcome.decisions


def test_several_roots_get_the_same_cpus() -> None:
    roots = tuple(root(path=f"batch-{name}", tree=Tree.OURS, cpuset="0-15") for name in "ab")
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=6.4), roots, topology=T16), policy(CPUSET))
    assert [cpus(outcome, "batch-a"), cpus(outcome, "batch-b")] == ["0,4,8,12"] * 2


def test_a_quota_in_another_period_allows_the_same_share() -> None:
    seen = view(0.0, 16, usage(0.0, nonbe=4), (root(-1, period_us=10_000),))
    assert quota(decide(seen, policy())) == 64_000


# Cpuset: owners, placement, stickiness


def test_static_policy_concerns_the_kubelets_tree_only() -> None:
    theirs = root(cpuset="0-15", levels=((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",)))
    ours = root(path="batch", tree=Tree.OURS, cpuset="0-15", levels=(("batch",), ("batch/job",), ()))
    seen = view(0.0, 16, usage(0.0, nonbe=6.4), (theirs, ours), topology=T16, kubelet_policy="static")
    outcome = decide(seen, policy(CPUSET))
    assert {d.target: str(d.value) for d in outcome.decisions} == {
        ROOT: "0-15",
        f"{ROOT}/pod": "0-15",
        f"{ROOT}/pod/c": "0,4,8,12",
        "batch": "0,4,8,12",
        "batch/job": "0,4,8,12",
    }


def test_containers_keep_off_what_the_kubelet_gave_to_a_pod_the_moment_it_does() -> None:
    """Its groups stay wide: it writes its whole shared pool below them before we hear of it."""
    levels = ((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",))
    own = Pod(uid="own", namespace="default", name="own", cgroup="kubepods/podown", kube_qos=KubeQos.GUARANTEED)
    state = None
    for second, given in enumerate(("0,8", "4-5,12-13", "", "1-7,9-15")):
        exclusive = Exclusive({"own": CpuSet.parse(given)} if given else {}, CpuSet())
        node = {"topology": T16, "kubelet_policy": "static", "exclusive": exclusive}
        seen = view(
            float(second), 16, usage(float(second), nonbe=2), (root(cpuset="0-15", levels=levels),), [own], **node
        )
        outcome = decide(seen, policy(CPUSET), state)
        state = outcome.state
        sets = {d.target: d.value for d in outcome.decisions}
        assert not CpuSet.parse(str(sets[f"{ROOT}/pod/c"])) & CpuSet.parse(given)
        assert str(sets[ROOT]) == str(sets[f"{ROOT}/pod"]) == "0-15"


@pytest.mark.parametrize(("v2", "parents"), [(False, "0-15"), (True, "1-7,10-15")])
def test_static_policy_keeps_parents_wide_on_v1(v2: bool, parents: str) -> None:
    """The kubelet's shared CPUs hold LSE and reserved ones; v1 refuses them to a container whose parent has less. What
    the kubelet gave away itself is in no container's set."""
    levels = ((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",))
    node = {"topology": T16, "kubelet_policy": "static", "reserved_cpus": CpuSet([0]), "cgroup_v2": v2}
    pods = [pinned(Qos.LSE, "8-9")]
    rule = policy(CPUSET, percent=100)
    seen = view(0.0, 16, usage(0.0), (root(cpuset="0-15", levels=levels),), pods, **node)
    found = {d.target: str(d.value) for d in decide(seen, rule).decisions}
    assert found == {ROOT: parents, f"{ROOT}/pod": parents, f"{ROOT}/pod/c": "1-7,10-15"}
    node["exclusive"] = Exclusive({"somebody": CpuSet([1, 2])}, CpuSet([3]))
    seen = view(0.0, 16, usage(0.0), (root(cpuset="0-15", levels=levels),), pods, **node)
    assert cpus(decide(seen, rule), f"{ROOT}/pod/c") == "4-7,10-15"


def test_static_policy_limits_growth_against_its_own_last_set_f05() -> None:
    """The root holds the full set there, so the reference's limit never bites."""
    levels = ((ROOT,), (f"{ROOT}/pod",), (f"{ROOT}/pod/c",))
    rule = policy(CPUSET, percent=100)
    node = {"topology": T16, "kubelet_policy": "static"}
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=14), (root(cpuset="0-15", levels=levels),), **node), rule)
    sizes = []
    for second in range(1, 4):
        seen = view(second, 16, usage(second, nonbe=2), (root(cpuset="0-15", levels=levels),), **node)
        outcome = follow(seen, outcome, rule)
        sizes.append(len(outcome.state.cpus or ()))
    assert sizes == [4, 6, 8]


def test_a_finished_lse_pod_releases_its_cpus() -> None:
    running, done = pinned(Qos.LSE, "0-7"), pinned(Qos.LSE, "0-7", phase="Succeeded")
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0), (root(cpuset="0-15"),), [running], topology=T16), rule)
    assert outcome.state.cpus == CpuSet.parse("8-15")
    outcome = follow(view(1.0, 16, usage(1.0), (root(),), [done], revision=2, topology=T16), outcome, rule)
    assert len(outcome.state.cpus or ()) == 10


def test_a_pod_whose_allocation_became_unreadable_stays_pinned_for_its_neighbours() -> None:
    good = pinned(Qos.LSE, "0-7")
    bad = dataclasses.replace(good, cpuset=None, cpuset_error="truncated JSON")
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0), (root(cpuset="0-15"),), [good], topology=T16), rule)
    outcome = follow(view(1.0, 16, usage(1.0), (root(),), [bad], revision=2, topology=T16), outcome, rule)
    assert outcome.state.cpus == CpuSet.parse("8-15")


def test_an_lse_pod_that_arrives_displaces_only_the_cpus_it_took() -> None:
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=6.4), (root(cpuset="0-15"),), topology=T16), rule)
    assert cpus(outcome) == "0,4,8,12"
    pods = [pinned(Qos.LSE, "0,8")]
    outcome = follow(view(1.0, 16, usage(1.0, nonbe=6.4), (root(),), pods, revision=2, topology=T16), outcome, rule)
    assert CpuSet.parse("4,12") <= CpuSet.parse(cpus(outcome) or "")
    assert len(CpuSet.parse(cpus(outcome) or "")) == 4
    assert not CpuSet.parse(cpus(outcome) or "") & CpuSet.parse("0,8")


def test_reserved_and_exclusive_system_cpus_are_not_lent() -> None:
    node = {"topology": P8, "reserved_cpus": CpuSet.parse("0-1"), "system_qos_cpus": CpuSet.parse("6-7")}
    outcome = decide(view(0.0, 8, usage(0.0), (root(cpuset="0-7"),), **node), policy(CPUSET, percent=100))
    assert cpus(outcome) == "2-5"


def test_a_be_pod_keeps_its_own_allocation_inside_the_set() -> None:
    """seen 12: the reference's recovery overwrites it with all CPUs."""
    pods: list[Pod] = [
        pinned(Qos.BE, "0-1", "inside", cgroup=f"{ROOT}/podinside", kube_qos=KubeQos.BESTEFFORT),
        pinned(Qos.BE, "6", "outside", cgroup=f"{ROOT}/podoutside", kube_qos=KubeQos.BESTEFFORT),
    ]
    directories = tuple(f"{ROOT}/pod{name}" for name in ("inside", "outside", "free"))
    levels = ((ROOT,), directories, tuple(f"{d}/c" for d in directories))
    seen = view(0.0, 16, usage(0.0, nonbe=6.4), (root(cpuset="0-15", levels=levels),), pods, topology=T16)
    outcome = decide(seen, policy(CPUSET))
    assert [cpus(outcome, f"{d}/c") for d in directories] == ["0", "0,4,8,12", "0,4,8,12"]
    assert [cpus(outcome, d) for d in directories] == ["0,4,8,12"] * 3


def test_jitter_of_one_cpu_changes_the_set_once_f01() -> None:
    rule = policy(CPUSET)
    outcome = decide(view(0.0, 16, usage(0.0, nonbe=3.9), (root(cpuset="0-15"),), topology=flat(16)), rule)
    seen = {cpus(outcome)}
    for second in range(1, 60):
        nonbe = 3.3 if second % 2 else 3.5
        outcome = follow(view(second, 16, usage(second, nonbe=nonbe), (root(),), topology=flat(16)), outcome, rule)
        seen.add(cpus(outcome))
    assert len(seen) <= 2
