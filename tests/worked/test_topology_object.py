"""NodeResourceTopology: worked examples of spec/api 1.3, 5.3 and spec/collect 4.5; recordings of the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordlet.config.nodefile import node_facts
from koordlet.decide.pools import SharePools, share_pools
from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.cpuset import CpuSet
from koordlet.model.kubelet import KubeletConfig
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo
from koordlet.report.topology import (
    BE_POOLS,
    CPU_BASIC_INFO,
    CPU_POLICY,
    CPU_TOPOLOGY,
    LS_POOLS,
    NUMA_RESERVATION,
    POD_ALLOCS,
    RESERVATION,
    SYSTEM_QOS,
    CpuInfo,
    TopologyFacts,
    cpu_policy,
    desired,
    merged,
    topology_policy,
)
from koordlet.report.topology_node import kept_back, reservation, system_qos
from koordlet.report.topology_zones import HUGE_2M, zone_object, zones
from koordlet.sources.podlist import decode_pods
from tests.unit.decide.build import flat, topology
from tests.worked.test_pools import HT8

GIB = 1 << 30
OBSERVED = json.loads((Path(__file__).parents[1] / "observed/topology.json").read_text())
EXAMPLE = next(
    found
    for found in yaml.safe_load_all((Path(__file__).parents[1] / "labs/cluster/examples.yaml").read_text())
    if found["kind"] == "NodeResourceTopology"
)


def amounts(zone: dict[str, Any], figure: str = "allocatable") -> dict[str, str]:
    return {row["name"]: row[figure] for row in zone["resources"]}


def facts(machine: Topology, pools: SharePools | None = None, **more: Any) -> TopologyFacts:
    counts: dict[int, int] = {}
    for cpu in machine.cpus:
        counts[cpu.node] = counts.get(cpu.node, 0) + 1
    given = {
        "node": "node-a",
        "owner_uid": "1f0c",
        "topology": machine,
        "zones": zones(counts, dict.fromkeys(counts, 32 * GIB), None),
        "pools": pools or SharePools(),
    }
    return TopologyFacts(**{**given, **more})


def test_v20_numa_reservation_comes_off_what_is_allocatable_only() -> None:
    kept = kept_back({NUMA_RESERVATION: "true"}, {"cpu": "16", "memory": "64Gi"}, {"cpu": "15500m", "memory": "60Gi"})
    first, second = (zone_object(z) for z in zones({0: 8, 1: 8}, {0: 32 * GIB, 1: 32 * GIB}, None, *kept))
    for zone in (first, second):
        assert (amounts(zone)["cpu"], amounts(zone)["memory"]) == ("7750m", "30Gi")
        assert (amounts(zone, "capacity")["cpu"], amounts(zone, "capacity")["memory"]) == ("8", "32Gi")
        assert amounts(zone, "available") == amounts(zone)


def test_w28_a_share_that_is_not_whole_is_rounded_up() -> None:
    kept = kept_back({NUMA_RESERVATION: "true"}, {"cpu": "3", "memory": "4Gi"}, {"cpu": "2500m", "memory": "3Gi"})
    made = zones({0: 1, 1: 1, 2: 1}, dict.fromkeys(range(3), 2 * GIB), None, *kept)
    assert {(zone.reserved_mcpu, zone.reserved_mbytes) for zone in made} == {(167, 357913941334)}
    assert amounts(zone_object(made[0]))["cpu"] == "833m"
    assert amounts(zone_object(made[0]))["memory"] == f"{2 * GIB * 1000 - 357913941334}m"


@pytest.mark.parametrize(
    ("gate", "memory", "huge"), [(True, "30Gi", "2Gi"), (False, "32Gi", "0")], ids=["v50-on", "v50-off"]
)
def test_v50_huge_pages(gate: bool, memory: str, huge: str) -> None:
    pages = {0: {HUGE_2M: 2 * GIB, 64 << 10: GIB}} if gate else None
    (zone,) = zones({0: 8}, {0: 33554432 << 10}, pages)
    found = amounts(zone_object(zone))
    assert (found["memory"], found["hugepages-2Mi"], found["hugepages-1Gi"]) == (memory, huge, "0")


@pytest.mark.parametrize("label", ["false", "yes", ""])
def test_v53_any_other_label_takes_nothing_off_and_is_mirrored(label: str) -> None:
    given = ({"cpu": "16"}, {"cpu": "8"})
    assert kept_back({NUMA_RESERVATION: label}, *given) == (0, 0)
    made = desired(facts(flat(2), numa_reservation=label))
    assert made["metadata"]["labels"].get(NUMA_RESERVATION, "") == label


@pytest.mark.parametrize(
    ("policy", "scope", "told"),
    [
        ("restricted", "pod", "RestrictedPodLevel"),  # V-51, W-29
        ("none", "container", "None"),
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
        ("best-effort", "pod", "BestEffortPodLevel"),
        ("newer-word", "pod", "None"),
        ("restricted", "newer-word", "None"),
    ],
)
def test_v51_w29_topology_policy(policy: str, scope: str, told: str) -> None:
    assert topology_policy(KubeletConfig(topology_policy=policy, topology_scope=scope)) == told


def test_topology_policy_without_a_kubelets_answer() -> None:
    assert topology_policy(None) == "None"


def test_v34_reserved_cpus_of_the_static_policy() -> None:
    machine = topology([(cpu, cpu % 4, 0, 0) for cpu in range(8)])
    options = (("full-pcpus-only", "true"),)
    assert cpu_policy(KubeletConfig("static", options, reserved_mcpu=1500), machine) == {
        "policy": "static",
        "options": {"full-pcpus-only": "true"},
        "reservedCPUs": "0,4",
    }
    listed = KubeletConfig("static", reserved_cpus=CpuSet([1, 2]), reserved_mcpu=4000)
    assert cpu_policy(listed, machine)["reservedCPUs"] == "1-2"
    assert cpu_policy(KubeletConfig("none", reserved_mcpu=1500), machine) == {"policy": "none"}
    assert cpu_policy(None, machine) == {}


def test_v22_a_reservation_by_amount_is_published_with_its_cpus() -> None:
    machine = topology([(cpu, cpu % 4, 0, 0) for cpu in range(8)])
    text = {RESERVATION: '{"resources":{"cpu":"1500m"}}'}
    assert reservation(text, machine) == {"resources": {"cpu": "1500m"}, "reservedCPUs": "0,4"}


@pytest.mark.parametrize("text", ["{", "[]", '{"reservedCPUs":"a-b"}', '{"resources":{"cpu":"x"}}', "null", ""])
def test_a_malformed_reservation_is_left_out(text: str) -> None:
    assert reservation({RESERVATION: text}, flat(2)) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"cpuset":"6-7"}', {"cpuset": "6-7"}),
        ('{"cpuset":"7,6","cpusetExclusive":false}', {"cpuset": "6-7", "cpusetExclusive": False}),
        ('{"cpuset":"x"}', {}),
        ("{", {}),
    ],
)
def test_system_qos(text: str, told: dict[str, Any]) -> None:
    assert system_qos({SYSTEM_QOS: text}) == told


def test_example_5_3_is_made_and_stands_unchanged() -> None:
    machine = topology([(0, 0, 0, 0), (1, 1, 0, 1)])
    texts = EXAMPLE["metadata"]["annotations"]
    made = desired(
        facts(
            machine,
            share_pools(machine, (), NodeInfo()),
            cpu=CpuInfo("AMD EPYC 7763", "AuthenticAMD", smt=True),
            kubelet=KubeletConfig(),
        )
    )
    assert {key: json.loads(text) for key, text in made["metadata"]["annotations"].items()} == {
        key: json.loads(text) for key, text in texts.items()
    }
    assert made["zones"] == EXAMPLE["zones"]
    assert made["topologyPolicies"] == EXAMPLE["topologyPolicies"]
    assert made["metadata"]["labels"] == EXAMPLE["metadata"]["labels"]
    assert made["apiVersion"] == EXAMPLE["apiVersion"]
    owners = made["metadata"]["ownerReferences"]
    current = {**EXAMPLE, "metadata": {**EXAMPLE["metadata"], "resourceVersion": "7", "ownerReferences": owners}}
    assert merged(current, made) is None


def test_texts_of_the_annotations() -> None:
    texts = desired(facts(HT8, cpu=CpuInfo("Xeon", "GenuineIntel", True, True, "7ff")))["metadata"]["annotations"]
    assert texts[CPU_BASIC_INFO] == (
        '{"cpuModel":"Xeon","hyperThreadEnabled":true,"turboEnabled":true,"catL3CbmMask":"7ff","vendorID":"GenuineIntel"}'
    )
    assert texts[CPU_TOPOLOGY].startswith('{"detail":[{"id":0,"core":0,"socket":0,"node":0},{"id":1,"core":1,')
    assert (texts[POD_ALLOCS], texts[CPU_POLICY], texts[SYSTEM_QOS], texts[LS_POOLS]) == ("null", "{}", "{}", "[]")


def test_without_any_cpu_there_is_no_object() -> None:
    with pytest.raises(ValueError, match="no online CPU"):
        desired(facts(Topology(())))


def test_a_numa_node_whose_memory_cannot_be_read_is_no_node_without_memory() -> None:
    with pytest.raises(ValueError, match="NUMA node 1"):
        zones({0: 1}, {0: GIB, 1: None}, None)


@pytest.mark.parametrize("name", sorted(OBSERVED))
def test_recordings_of_the_reference(name: str) -> None:
    """Two CPUs, one NUMA node; what differs is what spec/seen.md corrects."""
    seen, recorded = OBSERVED[name], OBSERVED[name]["nrt"]
    items = [
        {
            "metadata": {
                "name": pod["name"],
                "namespace": "default",
                "uid": f"{index:08d}-0000-4000-8000-000000000000",
                "labels": pod.get("labels"),
                "annotations": {
                    key: text if isinstance(text, str) else json.dumps(text)
                    for key, text in pod.get("annotations", {}).items()
                },
            },
            "status": {"phase": pod.get("phase", "Running"), "qosClass": "Burstable"},
        }
        for index, pod in enumerate(seen["pods"])
    ]
    pods = decode_pods(json.dumps({"items": items}).encode(), Kubepods(Driver.CGROUPFS, "/")).pods
    texts = {
        key: text if isinstance(text, str) else json.dumps(text)
        for key, text in seen["node"].get("annotations", {}).items()
    }
    machine = flat(2)
    info = node_facts({"metadata": {"annotations": texts}}, machine.online, 0, machine).info
    asked = "-disable-query-kubelet-config=false" in seen["args"]
    made = desired(
        facts(
            machine,
            share_pools(machine, pods, info),
            kubelet=KubeletConfig() if asked else None,
            reservation=reservation(texts, machine),
            system_qos=system_qos(texts),
        )
    )
    told = {key: json.loads(text) for key, text in made["metadata"]["annotations"].items()}
    for key in (LS_POOLS, BE_POOLS, POD_ALLOCS, CPU_POLICY, RESERVATION, SYSTEM_QOS, CPU_TOPOLOGY):
        assert told[key] == recorded["annotations"][key], key
    assert made["topologyPolicies"] == recorded["topologyPolicies"]
    assert made["metadata"]["labels"] == recorded["labels"]
    assert [[row["name"] for row in zone["resources"]] for zone in made["zones"]] == [
        [row["name"] for row in zone["resources"]] for zone in recorded["zones"]
    ]
