"""The sampler while cgroups come and go, and while descriptors run out."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from koordlet.model.pod import Container, HostApp, Pod
from koordlet.model.qos import KubeQos, Qos
from tests.unit.sense.sampled import Node, pod, value

CASES = Path(__file__).parents[2] / "cases"


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
