"""Vectors of spec/api that no other file names: each in its own test, from the wire's own text where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordlet.config.nodefile import check_node, node_facts
from koordlet.config.nodeslo import load_spec
from koordlet.config.schema import At
from koordlet.decide.base_quota import base_quota_us
from koordlet.decide.burst_plan import wanted_burst_us
from koordlet.decide.cachemask import bandwidth_of, mask_of
from koordlet.decide.memory_values import page_cache, protected, resolve, throttle_at
from koordlet.decide.podrules import terway
from koordlet.decide.podrules.cpuset import host_app_cpus
from koordlet.decide.podrules.quota import scale
from koordlet.decide.pools import Pool
from koordlet.decide.system import MIN_FREE_KIB, min_free_kib
from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.burst import BurstPolicy, CpuBurst
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.memory_qos import RECOMMENDED, MemoryClasses, MemoryQos
from koordlet.model.pod import Container, HostApp, PodSet, Resources
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.resctrl import Range
from koordlet.report.metrics import Metrics, Which
from koordlet.sources.podlist import decode_pods
from koordlet.sources.settings import read_settings
from koordlet.store.rings import RingStore
from tests.unit.decide.evict_build import GIB, Node, names, policy
from tests.unit.decide.evict_build import pod as victim
from tests.unit.report.samples import SNAPSHOT
from tests.worked.test_podrules_network import OWN
from tests.worked.test_podrules_network import context as network_context
from tests.worked.test_podrules_worked import BVT, CLASSES, CPU_QOS, STATUS, asked, context, pod, replied
from tests.worked.test_resctrl_worked import AMD, INTEL, line

EXAMPLES = list(
    yaml.safe_load_all((Path(__file__).parents[1] / "labs/cluster/examples.yaml").read_text(encoding="utf-8"))
)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(10, (5.5, 5, 9, 9, 9)), (1, (1, 1, 1, 1, 1)), (20, (10.5, 10, 18, 19, 19))],
    ids=["V-05", "V-06-one", "V-06-twenty"],
)
def test_percentiles(count: int, expected: tuple[float, ...]) -> None:
    rings = RingStore()
    series = rings.open("node", "", "cpu")
    for number in range(1, count + 1):
        rings.push(series, float(number), number)
    found = rings.latest("node", "", "cpu")
    assert found is not None
    assert (found.avg, found.p50, found.p90, found.p95, found.p99) == expected


def test_v11_memory_high_min_and_low() -> None:
    throttled = MemoryQos(throttling_percent=80)
    assert throttle_at(GIB, 2 * GIB, 64 * GIB, throttled) == 1_932_734_464
    assert throttle_at(GIB, -1, 64 * GIB, throttled) == 55_190_327_296
    assert protected(GIB, MemoryQos(min_percent=50, low_percent=80)) == (536_870_912, 858_993_459)


@pytest.mark.parametrize(
    ("limit", "qos", "expected"),
    [
        (2 * GIB, MemoryQos(pagecache_percent=50), (1, 1_073_741_824, 0)),
        (2 * GIB, MemoryQos(pagecache_bytes=4 * GIB), (1, 2_147_483_648, 0)),
        (2 * GIB, MemoryQos(pagecache_percent=0), (0, 0, None)),
        (-1, MemoryQos(pagecache_percent=50), (None, None, None)),
    ],
    ids=["V-12-percent", "V-12-capped", "V-12-zero", "V-12-unlimited"],
)
def test_page_cache(limit: int, qos: MemoryQos, expected: tuple[int | None, int | None, int | None]) -> None:
    assert page_cache(limit, qos) == expected


def test_v13_masks_and_bandwidths() -> None:
    wanted = {(0xFFF, 0, 30): 0xF, (0x7FF, 10, 50): 0x3C, (0xFFF, 30, 100): 0xFF0, (0xFFFFF, 0, 30): 0x3F}
    for (full, start, end), mask in wanted.items():
        assert mask_of(line(full), Range(start, end)) == mask
    assert [bandwidth_of(INTEL, percent) for percent in (25, 30)] == [30, 30]
    assert [bandwidth_of(AMD, percent) for percent in (50, 100)] == [80, 2048]


def test_v14_kernel_burst() -> None:
    assert (wanted_burst_us(2000, 1000), wanted_burst_us(500, 200)) == (2_000_000, 100_000)
    assert base_quota_us(None) <= 0, "no limit: nothing to save up from, so no burst"
    assert not BurstPolicy("cfsQuotaBurstOnly").kernel


def test_v15_min_free_kbytes() -> None:
    assert min_free_kib(64 * GIB, 100) == 671_088
    assert min_free_kib(64 * GIB, 1) == 6710 < MIN_FREE_KIB[0]  # the strategy refuses it: W-60-2T-rejected


V26 = (Pool(0, 0, CpuSet(range(4))), Pool(1, 1, CpuSet(range(8, 12))))


@pytest.mark.parametrize(
    ("qos", "resources", "cpus"),
    [(Qos.LS, {"cpu": "2"}, "8-11"), (Qos.LS, {"hugepages-1Gi": "1Gi"}, "0-3,8-11"), (None, None, None)],
    ids=["V-26-cpu", "V-26-hugepages", "V-26-static-kubelet"],
)
def test_pools_of_numa_nodes(qos: Qos | None, resources: dict[str, str] | None, cpus: str | None) -> None:
    status = {STATUS: {"numaNodeResources": [{"node": 1, "resources": resources}]}} if resources else {}
    container = Container("c", cgroup="g", running=True)
    about = pod(container, qos=qos, kube=KubeQos.BURSTABLE, annotations=status)
    found = asked(about, context(ls_pools=V26, kubelet_policy="none" if qos else "static"), container).get(Knob.CPUSET)
    assert (None if found is None else str(found)) == cpus


def test_v26_host_applications_that_are_ls_get_all_pools() -> None:
    assert str(host_app_cpus(HostApp("edge", "edge", Qos.LS), context(ls_pools=V26))) == "0-3,8-11"


def test_v31_cpu_normalization() -> None:
    def ratio(text: str, before: float | None = None) -> float | None:
        annotations = {"node.koordinator.sh/cpu-normalization-ratio": text}
        document = check_node({"metadata": {"annotations": annotations}}, At("Node a"))
        return node_facts(document, CpuSet((0,)), GIB, None, ratio_before=before).info.cpu_normalization_ratio

    for text, quota_us, scaled in (("1.2", 200_000, 166_667), ("1.35", 150_000, 111_112), ("0.8", 150_000, 150_000)):
        found = ratio(text)
        assert (quota_us if found is None else scale(quota_us, found)) == scaled
    assert ratio("abc", before=1.2) == 1.2


def test_v33_batch_resources_as_the_webhook_writes_them() -> None:
    def spec(limits: dict[str, str]) -> dict[str, dict[str, str]]:
        return {"requests": {"kubernetes.io/batch-cpu": "1500"}, "limits": limits}

    full = spec({"kubernetes.io/batch-cpu": "3k", "kubernetes.io/batch-memory": "4Gi"})
    key = "node.koordinator.sh/extended-resource-spec"
    reply = replied(pod(annotations={key: {"containers": {"main": full}}}), context(), "main").resources
    assert (reply.cpu_shares, reply.cpu_quota_us, reply.memory_limit_bytes) == (1536, 300_000, 4_294_967_296)
    both = pod(annotations={key: {"containers": {"main": full, "side": spec({})}}})
    assert asked(both, context())[Knob.CPU_QUOTA] == -1


def test_v35_one_unit_end_to_end() -> None:
    lines = terway.node_text(network_context("10G", "terway-qos", ls={"ingressRequest": 50})).splitlines()
    assert "offline_l1_rx_bps_min 625000000" in lines
    about = pod(qos=Qos.LS, kube=KubeQos.BURSTABLE, annotations={OWN: {"ingressLimit": "100M", "egressLimit": "50M"}})
    files = terway.files(PodSet((about,), 1, 0.0), network_context("10G", "terway-qos"))
    found = next(json.loads(one.content) for one in files if one.target == terway.POD_FILE)
    assert found["u1"]["qosConfig"] == {"ingressBandwidth": 12_500_000, "egressBandwidth": 6_250_000}


def test_v37_units_of_batch_requests_and_limits() -> None:
    text = Metrics(lambda: (SNAPSHOT, ()), process=False).exposition("", Which.EXTERNAL)[0].decode()
    mine = [row for row in text.splitlines() if 'pod_uid="u3"' in row]
    for name, resource, unit, value in (
        ("limits", "batch-cpu", "byte", "4000.0"),
        ("limits", "batch-memory", "byte", "8.589934592e+09"),
        ("requests", "batch-memory", "integer", "8.589934592e+09"),
    ):
        (row,) = (
            one
            for one in mine
            if one.startswith(f"koordlet_container_resource_{name}{{") and f'resource="kubernetes.io/{resource}"' in one
        )
        assert f'unit="{unit}"' in row
        assert row.endswith(f" {value}")


NODE_BURST = CpuBurst(BurstPolicy.NONE, 1000, 300, -1)


def test_v39_a_pods_burst_lies_over_the_nodes() -> None:
    wish = read_settings({}, {"koordinator.sh/cpuBurst": '{"policy":"auto","cpuBurstPercent":500}'}).cpu_burst
    assert wish is not None
    assert wish.over(NODE_BURST) == CpuBurst(BurstPolicy.AUTO, 500, 300, -1)


def test_v40_a_malformed_burst_annotation_is_ignored() -> None:
    found = read_settings({}, {"koordinator.sh/cpuBurst": '{"cpuBurstPercent":"500"}'})
    assert found.cpu_burst is None
    assert "cpuBurstPercent" in found.faults[0][1]


def test_v41_memory_policy_none_leaves_every_file_as_it_was() -> None:
    """beyond: the reference writes its neutral values; ours gives back what stood there before us."""
    about = pod(qos=Qos.LS, annotations={"koordinator.sh/memoryQOS": {"policy": "none", "minLimitPercent": 50}})
    assert resolve(about, MemoryClasses()) is None


def test_v42_memory_policy_auto_needs_no_class() -> None:
    about = pod(qos=Qos.BE, annotations={"koordinator.sh/memoryQOS": {"policy": "auto"}})
    found = resolve(about, MemoryClasses())
    assert found == RECOMMENDED["BE"]
    assert found is not None
    assert (found.wmark_ratio, found.wmark_scale_permill, found.wmark_min_adj) == (95, 20, 50)


@pytest.mark.parametrize(("qos", "bvt"), [(Qos.LS, -1), (Qos.LSR, 2)], ids=["V-44-ls", "V-44-lsr"])
def test_own_group_identity(qos: Qos, bvt: int) -> None:
    about = pod(qos=qos, kube=KubeQos.GUARANTEED, annotations={CPU_QOS: {"enable": True, "groupIdentity": -1}})
    assert asked(about, context(slo=CLASSES, support=BVT))[Knob.CPU_BVT] == bvt


def test_v52_a_pod_without_class_that_has_cpus_of_its_own() -> None:
    container = Container("c", cgroup="g", running=True, limits=Resources(cpu_mcpu=2000))
    about = pod(container, qos=None, kube=KubeQos.GUARANTEED, annotations={STATUS: {"cpuset": "0-1"}})
    found = asked(about, context(cpu_normalization_ratio=1.5), container)
    assert (str(found[Knob.CPUSET]), found[Knob.CPU_QUOTA]) == ("0-1", -1)
    assert about.default_qos is Qos.LSR


def test_v55_an_evicted_pod_that_is_still_there_counts_as_released() -> None:
    pods = [victim("a", priority=5000), victim("b", priority=5500)]
    node = Node(pods, capacity_bytes=100 * GIB, memory={"a": 5 * GIB, "b": 5 * GIB})
    rule = policy(["BEMemoryEvict"], memory_evict_threshold_percent=70)
    assert names(node.memory_round(rule, 72 * GIB)) == ["a"]
    node.accept("a")
    for _ in range(119):
        assert names(node.memory_round(rule, 72 * GIB)) == ["a"], "one wish for one pod, and none for another"


def test_example_5_1_is_the_policy_that_it_says() -> None:
    document = next(one for one in EXAMPLES if one["kind"] == "NodeSLO")
    loaded = load_spec(document["spec"], lambda name, qos, path: name, At("NodeSLO node-a"))
    assert loaded.warnings == ()
    slo, threshold = loaded.slo, loaded.slo.threshold
    assert (threshold.enable, threshold.cpu_suppress_min_percent, threshold.memory_evict_lower_percent) == (True, 5, 75)
    assert (slo.be_resctrl.cat_end_percent, slo.burst.policy, slo.system.min_free_factor) == (30, BurstPolicy.AUTO, 100)
    assert [block.name for block in (*slo.blkio.be, *slo.blkio.root)] == ["/dev/sdb", "vg0"]
    assert slo.memory.be.qos.pagecache_percent == 60
    assert [(app.name, app.qos) for app in slo.host_apps] == [("edge-proxy", Qos.LS)]


@pytest.fixture(scope="module")
def example_pods() -> dict[str, Any]:
    items = [one for one in EXAMPLES if one["kind"] == "Pod"]
    for item in items:
        item["metadata"] |= {"uid": item["metadata"]["name"], "namespace": "default"}
    found = decode_pods(json.dumps({"kind": "PodList", "items": items}).encode(), Kubepods(Driver.CGROUPFS))
    assert found.errors == ()
    return {one.name: one for one in found.pods}


def test_example_5_4_one_pod_per_class(example_pods: dict[str, Any]) -> None:
    classes = {name: (one.qos, one.priority_class.value) for name, one in example_pods.items()}
    assert classes == {
        "trading-lse": (Qos.LSE, "koord-prod"),
        "api-lsr": (Qos.LSR, "koord-prod"),
        "web-ls": (Qos.LS, "koord-prod"),
        "spark-be": (Qos.BE, "koord-batch"),
        "node-agent": (Qos.SYSTEM, "koord-prod"),
        "train-mid": (Qos.LS, "koord-mid"),
    }
    lsr, web, spark = (example_pods[name] for name in ("api-lsr", "web-ls", "spark-be"))
    assert str(lsr.cpuset) == "8,10"
    assert lsr.settings.devices.gpus[0].memory_bytes == 16 * GIB
    assert (lsr.settings.memory_qos.policy.value, lsr.settings.resctrl is not None) == ("auto", True)
    assert (web.settings.core_sched_group, web.settings.network_qos.egress_bps) == ("tenant-a", 500_000_000)
    assert web.settings.cpu_burst.over(NODE_BURST) == CpuBurst(BurstPolicy.AUTO, 500, 300, -1)
    assert spark.batch_request_mcpu == 2000
    assert (spark.settings.evict_by, spark.settings.evict_priority) == (
        ("BEMemoryEvict", "BECPUEvict", "MemoryEvict"),
        -10,
    )
    assert spark.settings.oom_score_adj_spec == (("main", 1000),)
    assert [(block.name, block.cfg.read_bps) for block in spark.settings.blkio] == [("scratch", 52_428_800)]
    assert example_pods["train-mid"].containers[0].limits.mid_cpu_mcpu == 4000
