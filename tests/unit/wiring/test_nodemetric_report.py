"""What a NodeMetric asks for and this node cannot give is said once, and stands as a note meanwhile."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from koordlet.config.flags import parse
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.nvml import Nvml
from koordlet.kube.objects import Metadata, MetricObject
from koordlet.model.device import Device
from koordlet.store.rings import RingStore
from koordlet.wiring.nodemetric import NodeMetricReport
from tests.hosts.nvml import FakeNvml, gpu_tree
from tests.hosts.tree import HostTree

GATE = "-feature-gates=ColdPageCollector=true"


def report(tree: HostTree, memory: str, *words: str) -> NodeMetricReport:
    flags = parse([*words, f"-prediction-checkpoint-filepath={tree.root}/peaks"], {"NODE_NAME": "node-a"})
    metric = MetricObject(Metadata("node-a"), {"metricCollectPolicy": {"nodeMemoryCollectPolicy": memory}})
    return NodeMetricReport(flags, tree.host, RingStore(), lambda: metric)


def test_hot_page_cache_where_the_kernel_does_not_know_it(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V1)
    for words, reason in (((), "gate ColdPageCollector is off"), ((GATE,), "this kernel has no kidled")):
        made = report(tree, "usageWithHotPageCache", *words)
        with capture_logs() as logs:
            for _ in range(3):
                (note,) = made.notes()
        assert reason in note
        assert "reported without cache" in note
        assert [line["event"] for line in logs] == ["nodemetric.no_cold_pages"]
        assert not made.hot_cache()


def test_hot_page_cache_where_it_is_known_or_not_asked_for(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V1)
    tree.put("sys/kernel/mm/kidled", {"scan_period_in_seconds": "0\n", "use_hierarchy": "0\n"})
    asked, other = report(tree, "usageWithHotPageCache", GATE), report(tree, "usageWithPageCache", GATE)
    assert (asked.hot_cache(), asked.notes()) == (True, ())
    assert (other.hot_cache(), other.notes(), other.page_cache()) == (False, (), True)


def test_gpus_with_what_is_known_of_their_health(tmp_path: Path) -> None:
    tree = gpu_tree(tmp_path)
    fake = FakeNvml("Tesla T4", "Tesla T4")
    flags = parse([f"-prediction-checkpoint-filepath={tmp_path}/peaks"], {"NODE_NAME": "node-a"})
    sick = Device("gpu", "GPU-1", 1, (), ports=False)
    made = NodeMetricReport(
        flags, tree.host, RingStore(), lambda: None, Nvml(tree.host, lambda: fake), lambda: {1: sick}
    )
    assert made.gpus() == ()
    assert made.gpu is not None
    made.gpu.step((), 100.0, 1e9)
    assert [(gpu.id, gpu.healthy) for gpu in made.gpus()] == [("GPU-0", True), ("GPU-1", False)]
