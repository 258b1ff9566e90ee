"""The sampler in virtual time on a tree of ordinary files: totals, absent values, cgroups that come and go."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.kernel.host import CgroupVersion
from koordlet.model.pod import Container, HostApp, Pod, PodSet
from koordlet.model.pod import Tree as PodTree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.view import Reading
from koordlet.sense.sampler import Sampler
from koordlet.store.rings import RingStore
from tests.native.trees import Tree

CASES = Path(__file__).parents[2] / "cases"
MIB = 1 << 20
TICKS_PER_S = 100


class Node:
    """A tree and its sampler. CPU is given in milli-CPU used in each second that passes."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.rings = RingStore()
        self.sampler = Sampler(tree.host, self.rings, nominal_time=True)
        self.now_s = 100.0
        self.revision = 0
        self._used: dict[str, int] = {}

    def sync(
        self, *pods: Pod, apps: tuple[HostApp, ...] = (), roots: tuple[str, ...] = (), at_s: float | None = 0.0
    ) -> None:
        self.revision += 1
        self.sampler.sync(PodSet(pods, self.revision, at_s), apps, roots)

    def second(self, node_mcpu: int | None = None, **used_mcpu: int) -> Any:
        """One second in which the cgroups named (a__b is a/b) used so much, then one sample."""
        for name, mcpu in used_mcpu.items():
            cgroup = name.replace("__", "/")
            self._used[cgroup] = self._used.get(cgroup, 0) + mcpu
            self.tree.usage(cgroup, self._used[cgroup] * 10**6)
        if node_mcpu is not None:
            self._used[""] = self._used.get("", 0) + node_mcpu
            self.tree.node(self._used[""] * TICKS_PER_S // 1000, used_kib=4 << 20)
        self.now_s += 1
        return self.sampler.sample(self.now_s)


@pytest.fixture(params=list(CgroupVersion), ids=str)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(Tree(tmp_path, request.param))


def pod(name: str, *containers: str, qos: Qos | None = None, phase: str = "Running") -> Pod:
    return Pod(
        uid=f"uid-{name}",
        namespace="ns",
        name=name,
        cgroup=name,
        kube_qos=KubeQos.BESTEFFORT if qos is Qos.BE else KubeQos.BURSTABLE,
        phase=phase,
        qos=qos,
        containers=tuple(Container(c, f"containerd://{name}-{c}", f"{name}/{c}", running=True) for c in containers),
    )


def value(reading: Reading | None) -> float | None:
    return None if reading is None else round(reading.value, 6)


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


def test_memory_leaves_page_cache_out(node: Node) -> None:
    for cgroup in ("web", "redis"):
        node.tree.make(cgroup)
    node.tree.memory("web", 300 * MIB, file=500 * MIB)
    node.tree.memory("redis", 20 * MIB, file=1 * MIB)
    node.sync(pod("web"), apps=(HostApp("redis", "redis"),))
    usage = node.second(0)
    assert value(usage.node_memory_bytes) == 4096 * MIB
    assert value(usage.pods_memory_bytes) == 300 * MIB
    assert value(usage.system_memory_bytes) == (4096 - 320) * MIB
    web = next(row for row in node.sampler.workloads() if row.name == "ns/web")
    assert (value(web.memory_bytes), value(web.memory_raw_bytes)) == (300 * MIB, 800 * MIB)


def test_node_readings_outlive_a_lost_file_by_ten_seconds(node: Node) -> None:
    node.sync()
    node.second(0)
    node.second(500)
    (node.tree.host.proc_root / "stat").write_text("garbage\n")
    usage = node.second()
    assert usage.node_mcpu == Reading(500, node.now_s - 1)
    assert usage.system_mcpu == Reading(500, node.now_s - 1)
    for _ in range(9):
        usage = node.second()
    assert usage.node_mcpu is not None
    assert usage.system_mcpu is None
    # What was used over the gap says nothing about now, and would be held against the pods' present use.
    assert node.second(550 * 11).node_mcpu == Reading(500, 102.0)
    assert value(node.second(300).node_mcpu) == 300


def test_two_failed_reads_are_averaged_over(node: Node) -> None:
    node.sync()
    node.second(0)
    node.second(500)
    stat = node.tree.host.proc_root / "stat"
    stat.write_text("garbage\n")
    node.second()
    node.second()
    assert value(node.second(550 * 3).node_mcpu) == 550


def test_a_node_counter_that_went_back_gives_no_sample(node: Node) -> None:
    """W-17."""
    node.sync()
    node.tree.node(123_256, 1)
    node.second()
    node.tree.node(123_456, 1)
    good = node.second()
    assert good.node_mcpu == Reading(2_000, node.now_s)
    node.tree.node(499, 1)
    assert node.second().node_mcpu == good.node_mcpu


def test_only_active_pods_are_read(node: Node) -> None:
    case = CASES / "psi-of-finished-pods"
    summary = json.loads((case / "pods_summary.json").read_text())
    scenario = json.loads((case / "scenario.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    running = [pod(f"r{i}") for i in range(summary["running"])]
    finished = [pod(f"s{i}", phase="Succeeded") for i in range(summary["succeeded"])]
    finished += [pod(f"f{i}", phase="Failed") for i in range(summary["failed"])]
    for each in running:
        node.tree.make(each.cgroup)
    reads, series = [], []
    for number in range(scenario["rounds"]):
        if number == scenario["finish_one_after_round"]:
            finished.append(pod(running.pop().name, phase="Succeeded"))
        node.sync(*running, *finished)
        node.second()
        counts = node.sampler.counts()
        reads.append(counts.counters)
        known = [node.rings.latest("pod", each.uid, "memory") for each in running + finished]
        series.append(len(known) - known.count(None))
        assert (counts.missing, counts.errors) == (0, 0)
    assert reads == expected["reads_per_round"]
    assert series == expected["series_pods"]


def test_a_cgroup_that_appears_later_is_found(node: Node) -> None:
    node.sync(pod("late", "c"), *(pod(f"never{i}") for i in range(20)))
    node.second()
    assert node.sampler.counts().rows == 0
    node.tree.make("late")
    node.tree.make("late/c")
    for _ in range(4):  # a few are looked for per tick
        node.second()
    assert node.sampler.counts().rows == 2
    node.second(late=100)
    assert value(node.second(late=100).pods_mcpu) == 100


def test_what_is_no_longer_wanted_is_closed(node: Node) -> None:
    for cgroup in ("a", "a/c", "b"):
        node.tree.make(cgroup)
    node.sync(pod("a", "c"), pod("b"))
    node.second()
    before = node.sampler.counts().descriptors
    node.sync(pod("b"))
    assert node.rings.latest("pod", "uid-a", "cpu") is None
    counts = node.sampler.counts()
    assert counts.rows == 1
    assert counts.descriptors < before
    node.sampler.close()
    assert node.sampler.counts().descriptors == 0


def test_a_pod_may_change_its_class(node: Node) -> None:
    node.tree.make("p")
    node.sync(pod("p"))
    node.second()
    assert value(node.second(p=100).nonbe_pods_mcpu) == 100
    node.sync(pod("p", qos=Qos.BE))
    usage = node.second(p=100)
    assert (value(usage.pods_mcpu), value(usage.nonbe_pods_mcpu)) == (100, 0)


def test_workloads_name_pods_containers_and_host_applications(node: Node) -> None:
    for cgroup in ("web", "web/c", "redis", "be"):
        node.tree.make(cgroup)
    node.sync(pod("web", "c"), pod("absent"), apps=(HostApp("redis", "redis"),), roots=("be",))
    node.second(web=0)
    node.second(web=250, web__c=200, redis=5)
    rows = {(row.name, row.container): row for row in node.sampler.workloads()}
    assert {key: value(row.cpu_mcpu) for key, row in rows.items()} == {
        ("redis", ""): 5,
        ("ns/web", ""): 250,
        ("ns/web", "c"): 200,
        ("ns/absent", ""): None,
    }
    assert rows[("redis", "")].pod is None
    assert rows[("ns/web", "c")].cgroup == "web/c"


def test_samples_are_kept_by_uid_container_id_and_name(node: Node) -> None:
    for cgroup in ("web", "web/c", "redis"):
        node.tree.make(cgroup)
    node.sync(pod("web", "c"), apps=(HostApp("redis", "redis"),))
    for _ in range(4):
        node.second(1_000, web=250, web__c=200, redis=5)
    for name, mean in {
        ("pod", "uid-web"): 250,
        ("container", "containerd://web-c"): 200,
        ("host", "redis"): 5,
        ("node", ""): 1_000,
        ("system", ""): 745,
    }.items():
        found = node.rings.window(*name, "cpu", 60.0, node.now_s)
        assert found is not None
        assert found.avg == pytest.approx(mean)
        assert found.latest_s == node.now_s


def test_an_empty_cgroup_path_is_not_the_root(node: Node) -> None:
    lost = Pod("u", "ns", "lost", "", KubeQos.BURSTABLE, containers=(Container("c", "containerd://x", ""),))
    node.sync(lost, apps=(HostApp("h", ""),), roots=("",))
    node.second()
    assert (node.sampler.counts().rows, node.sampler.counts().missing) == (0, 0)


def test_too_few_descriptors_is_said_once_and_leaves_the_rest_working(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"p{i}" for i in range(20)]
    for name in names:
        node.tree.make(name)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A quarter stays free, so that 15 are left.
    resource.setrlimit(resource.RLIMIT_NOFILE, ((len(os.listdir("/proc/self/fd")) + 15) * 4 // 3, hard))
    try:
        node.sync(*(pod(name) for name in names))
        node.second()
        found = node.sampler.counts()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 0 < found.rows < 20
    assert capsys.readouterr().out.count("cgroup_unreadable") == 1
    for _ in range(4):
        node.second()
    assert node.sampler.counts().rows == 20


def test_some_descriptors_stay_free_for_whoever_asks_what_is_wrong(node: Node) -> None:
    for index in range(40):
        node.tree.make(f"p{index}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = (len(os.listdir("/proc/self/fd")) + 40) * 4 // 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    opened: list[int] = []
    try:
        node.sync(*(pod(f"p{index}") for index in range(40)))
        assert 0 < node.sampler.counts().rows < 40
        assert "EMFILE" in node.sampler.lack
        opened += [os.open("/", os.O_PATH) for _ in range(min(64, limit // 4))]
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle_page_stats(**cold_bytes: int) -> str:
    """As kidled prints it; columns from [60,120) scans on are cold."""
    heads = ["# version: 1.0", "# page_scans: 92", "# slab_scans: 92", "# scan_period_in_seconds: 5",
             "# use_hierarchy: 1", "# buckets: 1,2,5,15,30,60,120,240", *["#"] * 8]  # fmt: skip
    kinds = [f"{dirty}{swap}{fixed}{active}" for active in "ia" for fixed in "eu" for swap in "sf" for dirty in "cd"]
    rows = [f"  {name} 4096 4096 4096 4096 4096 {cold_bytes.get(name, 0)} 0 0" for name in (*kinds, "slab")]
    return "\n".join([*heads, *rows]) + "\n"


def test_the_cold_part_of_the_page_cache_is_left_out_where_the_kernel_tells_it(tmp_path: Path) -> None:
    node = Node(Tree(tmp_path, CgroupVersion.V1))
    node.sampler = Sampler(node.tree.host, node.rings, nominal_time=True, hot_cache=lambda: True)
    for cgroup in ("web", "redis"):
        node.tree.make(cgroup)
        node.tree.memory(cgroup, 100 * MIB, 50 * MIB)
    node.sync(pod("web"), apps=(HostApp("redis", "redis"),))

    def seconds(count: int) -> None:
        for _ in range(count):
            node.second(node_mcpu=100, web=10, redis=10)

    def found(kind: str, name: str, metric: str = "memory_hot") -> float | None:
        aggregate = node.rings.latest(kind, name, metric)
        return None if aggregate is None else aggregate.latest

    seconds(12)  # a kernel without kidled
    assert found("node", "", "memory_cached") is not None
    assert found("node", "") is None

    def cold(cgroup: str, text: str) -> None:
        (node.tree.host.dir("memory", cgroup) / "memory.idle_page_stats").write_text(text)

    cold("", idle_page_stats(cfei=70 * MIB))
    cold("web", idle_page_stats(cfei=30 * MIB, dfei=5 * MIB, cfea=9 * MIB, slab=9 * MIB))
    seconds(10)  # not yet known of one of them: nor is the rest, the system's
    assert (found("pod", "uid-web"), found("host", "redis"), found("node", "")) == (115 * MIB, None, None)
    cold("redis", idle_page_stats(cfui=10 * MIB))
    seconds(10)
    used = ((1 << 24) - 1) * 1024
    assert (found("pod", "uid-web"), found("host", "redis")) == (115 * MIB, 140 * MIB)
    assert found("node", "") == used - 70 * MIB
    assert found("system", "") == used - 70 * MIB - 255 * MIB
    cold("redis", "garbage")
    node.rings.close("host", "redis")
    seconds(10)
    assert found("host", "redis") is None


def test_memory_with_page_cache_is_sampled_while_it_is_wanted(node: Node) -> None:
    """Pods: anonymous memory and file pages; host applications: all that is charged; system: the node's rest."""
    wanted = False
    node.sampler = Sampler(node.tree.host, node.rings, nominal_time=True, page_cache=lambda: wanted)
    for cgroup, anon, file in (("web", 100, 50), ("redis", 10, 5)):
        node.tree.make(cgroup)
        node.tree.memory(cgroup, anon * MIB, file * MIB)
    node.sync(pod("web"), apps=(HostApp("redis", "redis"),))
    for _ in range(12):
        node.second(node_mcpu=100)
    assert node.rings.latest("node", "", "memory_cached") is None
    wanted = True
    for _ in range(21):
        node.second(node_mcpu=100, web=10, redis=10)

    def found(kind: str, name: str) -> tuple[int, float]:
        aggregate = node.rings.latest(kind, name, "memory_cached")
        assert aggregate is not None
        return aggregate.count, aggregate.latest

    used = ((1 << 24) - 1) * 1024  # all but what is free
    assert found("pod", "uid-web") == (3, 150 * MIB)
    assert found("host", "redis") == (3, 15 * MIB)
    assert found("node", "") == (3, used)
    assert found("system", "") == (3, used - 165 * MIB)
    node.sync(apps=(HostApp("redis", "redis"),))
    assert node.rings.latest("pod", "uid-web", "memory_cached") is None


def test_an_outdated_node_gives_no_system_usage(node: Node) -> None:
    node.sampler = Sampler(node.tree.host, node.rings, nominal_time=True, outdated_s=3.0)
    node.sync()
    node.second(node_mcpu=100)
    assert value(node.second(node_mcpu=100).system_mcpu) == 100
    (node.tree.host.proc_root / "stat").write_text("")
    assert [value(node.second().system_mcpu) for _ in range(3)] == [100, 100, None]


def test_the_system_has_a_memory_sample_at_each_of_the_nodes(node: Node) -> None:
    """Pods' memory comes round slowly; averages of node and system are of the same moments all the same."""
    for number in range(30):
        node.tree.make(f"p{number}")
        node.tree.memory(f"p{number}", MIB)
    node.sync(*(pod(f"p{number}") for number in range(30)))
    for _ in range(25):
        node.second(node_mcpu=100)
    whole, system = (node.rings.latest(kind, "", "memory") for kind in ("node", "system"))
    assert whole is not None
    assert system is not None
    assert (system.count, system.latest_s) == (whole.count, whole.latest_s)
    assert system.avg == whole.avg - 30 * MIB


def test_a_lack_of_descriptors_is_told_until_it_is_over(node: Node) -> None:
    for cgroup in ("a", "b"):
        node.tree.make(cgroup)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        node.sync(pod("a"), pod("b"))
        assert "EMFILE" in node.sampler.lack
        assert node.sampler.lack.startswith("2 cgroups are not measured")
        assert "the limit of open files is 3: raise it" in node.sampler.lack
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    node.second(0)
    assert node.sampler.lack == ""
