"""The sampler in virtual time on a tree of ordinary files: totals, and absent values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from koordlet.kernel.host import CgroupVersion
from koordlet.model.pod import Container, HostApp, PodSet
from koordlet.model.pod import Tree as PodTree
from koordlet.model.qos import Qos
from koordlet.model.view import Reading
from koordlet.sense.sampler import Sampler
from tests.native.trees import Tree
from tests.unit.sense.sampled import MIB, Node, pod, value

CASES = Path(__file__).parents[2] / "cases"


def test_one_workload_is_found_without_the_others(node: Node) -> None:
    for cgroup in ("web", "web/app"):
        node.tree.make(cgroup)
    node.sync(pod("web", "app"))
    for _ in range(2):
        node.second(1000, web=400, web__app=400)
    found = node.sampler.find("web/app")
    assert found is not None
    assert (found.name, found.container, value(found.cpu_mcpu)) == ("ns/web", "app", 400)
    assert node.sampler.find("elsewhere") is None
    node.sync()
    assert node.sampler.find("web/app") is None


def test_throttled_containers_are_named_on_request(tmp_path: Path) -> None:
    tree = Tree(tmp_path, CgroupVersion.V1)
    for cgroup in ("web", "web/app", "web/side"):
        tree.make(cgroup)
        tree.quota(cgroup, 50_000)
    wanted = [False]
    sampler = Sampler(tree.host, nominal_time=True, throttling=lambda: wanted[0])
    sampler.sync(PodSet((pod("web", "app", "side"),), 1, 0.0), (), ())
    seen = []
    for second in range(1, 13):
        wanted[0] = second > 10
        tree.throttled("web/app", 10 * second, 4 * second)
        seen.append(sampler.sample(100.0 + second).throttled_containers)
    assert seen == [None] * 10 + [("web/app",)] * 2


def test_a_declared_workload_counts_as_its_own_throttled_container(tmp_path: Path) -> None:
    tree = Tree(tmp_path, CgroupVersion.V1)
    tree.make("web.slice")
    tree.quota("web.slice", 50_000)
    declared = replace(pod("web"), cgroup="web.slice", tree=PodTree.OURS, containers=(Container("web", running=True),))
    sampler = Sampler(tree.host, nominal_time=True, throttling=lambda: True)
    sampler.sync(PodSet((declared,), 1, 0.0), (), ())
    seen = []
    for second in range(1, 13):
        tree.throttled("web.slice", 10 * second, 4 * second)
        usage = sampler.sample(100.0 + second)
        seen.append(usage.throttled_containers)
    assert seen[-1] == ("web.slice",)
    assert len(list(sampler.workloads())) == 1


def test_system_is_what_neither_pods_nor_hosts_used(node: Node) -> None:
    """W-22: node 10.5, pods 6.25, host 1.25 cores -> 3.0."""
    for cgroup in ("web", "job", "redis"):
        node.tree.make(cgroup)
    node.sync(pod("web"), pod("job", qos=Qos.BE), apps=(HostApp("redis", "redis"),))
    first = node.second(0)
    assert (first.node_mcpu, first.pods_mcpu, first.system_mcpu) == (None, None, None)
    usage = node.second(10_500, web=6_000, job=250, redis=1_250)
    assert value(usage.node_mcpu) == 10_500
    assert value(usage.pods_mcpu) == 6_250
    assert value(usage.nonbe_pods_mcpu) == 6_000
    assert value(usage.hosts_mcpu) == value(usage.nonbe_hosts_mcpu) == 1_250
    assert usage.system_mcpu == Reading(3_000, node.now_s)


def test_system_is_never_negative(node: Node) -> None:
    scenario = json.loads((CASES / "system-usage-negative" / "scenario.json").read_text())
    pods = [pod(f"p{i}", qos=Qos(p["qos"]) if "qos" in p else None) for i, p in enumerate(scenario["pods"])]
    for each in pods:
        node.tree.make(each.cgroup)
    node.sync(*pods)
    node.second(0)
    used = {each.cgroup: int(p["used"] * 1000) for each, p in zip(pods, scenario["pods"], strict=True)}
    usage = node.second(int(scenario["node_used"] * 1000), **used)
    assert value(usage.pods_mcpu) == 8_000
    assert value(usage.nonbe_pods_mcpu) == 6_000
    assert value(usage.system_mcpu) == 0


def test_a_pod_in_its_first_tick_is_inside_system(node: Node) -> None:
    """W-44, except that containers need no tick more than their pod."""
    node.tree.make("old")
    node.sync(pod("old"))
    node.second(0)
    node.tree.make("new")
    node.tree.make("new/c")
    node.sync(pod("old"), pod("new", "c"))
    usage = node.second(1_000, old=300, new=500)
    assert (value(usage.pods_mcpu), value(usage.system_mcpu)) == (300, 700)
    usage = node.second(1_000, old=300, new=500, new__c=500)
    assert (value(usage.pods_mcpu), value(usage.system_mcpu)) == (800, 200)


def test_nobody_here_is_zero_and_not_knowing_is_none(node: Node) -> None:
    node.sync(at_s=None)
    node.second(0)
    usage = node.second(700)
    assert (usage.pods_mcpu, usage.nonbe_pods_mcpu, usage.system_mcpu) == (None, None, None)
    node.sync(at_s=1.0)
    usage = node.second(700)
    assert (value(usage.pods_mcpu), value(usage.system_mcpu)) == (0, 700)
    assert usage.be_mcpu is None


def test_be_is_the_sum_of_the_roots_own_counters(node: Node) -> None:
    for cgroup in ("be", "be/job", "batch"):
        node.tree.make(cgroup)
    node.tree.memory("be", 30 * MIB)
    node.tree.memory("batch", 4 * MIB)
    node.sync(roots=("be", "batch", "not-there"))
    assert node.second(0).be_mcpu is None
    usage = node.second(900, be=500, batch=40, be__job=100)
    assert value(usage.be_mcpu) == 540
    assert value(usage.be_memory_bytes) == 34 * MIB
