"""The sampler's memory samples, and the node's own readings while files are lost."""

from __future__ import annotations

from pathlib import Path

from koordlet.kernel.host import CgroupVersion
from koordlet.model.pod import HostApp
from koordlet.model.view import Reading
from koordlet.sense.sampler import Sampler
from tests.native.trees import Tree
from tests.unit.sense.sampled import MIB, Node, pod, value


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
