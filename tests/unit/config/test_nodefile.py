import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.config.errors import PolicyError
from koordlet.config.nodefile import (
    KUBELET_POLICY,
    RAW_ALLOCATABLE,
    RESERVATION,
    SYSTEM_QOS,
    NodeFacts,
    check_node,
    load_node,
    node_facts,
)
from koordlet.config.schema import At
from koordlet.model.cpuset import CpuSet
from koordlet.model.resources import Resources
from tests.hosts.cases import case_json

ONLINE = CpuSet(range(8))
GIB = 2**30
EXAMPLES = Path(__file__).parents[3] / "systemd/examples"


def facts(node: dict[str, Any]) -> NodeFacts:
    return node_facts(check_node(node, At("node.yaml")), ONLINE, 16 * GIB, None)


def annotated(**annotations: str) -> dict[str, Any]:
    names = {"reservation": RESERVATION, "system_qos": SYSTEM_QOS, "policy": KUBELET_POLICY, "raw": RAW_ALLOCATABLE}
    return {"metadata": {"annotations": {names[key]: text for key, text in annotations.items()}}}


def test_an_empty_node_is_what_the_machine_has() -> None:
    found = facts({})
    assert found.warnings == ()
    assert (found.info.capacity_mcpu, found.info.capacity_bytes) == (8000, 16 * GIB)
    assert (found.info.reserved_mcpu, found.info.reserved_cpus, found.info.kubelet_policy) == (0, CpuSet(), "none")


RESERVED = [
    ('{"resources":{"cpu":"2"},"reservedCPUs":"0-3"}', 4000, "0-3"),  # V-32
    ('{"resources":{"cpu":"1500m","memory":"4Gi"}}', 1500, ""),
    ('{"reservedcpus":"0,4","applyPolicy":"ReservedCPUsOnly"}', 2000, "0,4"),
    ("{}", 0, ""),
    ("null", 0, ""),
]


@pytest.mark.parametrize(("text", "mcpu", "cpus"), RESERVED, ids=[row[0] for row in RESERVED])
def test_reservation(text: str, mcpu: int, cpus: str) -> None:
    found = facts(annotated(reservation=text))
    assert (found.info.reserved_mcpu, str(found.info.reserved_cpus)) == (mcpu, cpus)
    assert found.warnings == ()


@pytest.mark.parametrize("text", ["", "{", '{"resources":{"cpu":"x"}}', '{"reservedCPUs":"a-b"}', '{"reservedCPUs":[]}',
                                  '{"resources":{"cpu":"2"},"reservedCPUs":"1 ,2"}'])  # fmt: skip
def test_a_malformed_reservation_is_left_out_as_a_whole(text: str) -> None:
    found = facts(annotated(reservation=text))
    assert (found.info.reserved_mcpu, found.info.reserved_cpus) == (0, CpuSet())
    assert RESERVATION in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ('{"cpuset":"6-7"}', "6-7"),
        ('{"cpuset":"6-7","cpusetExclusive":true}', "6-7"),
        ('{"cpuset":"6-7","cpusetExclusive":false}', ""),
        ("{}", ""),
    ],
)
def test_system_qos_cpus_are_exclusive_unless_said_otherwise(text: str, cpus: str) -> None:
    found = facts(annotated(system_qos=text))
    assert (str(found.info.system_qos_cpus), found.warnings) == (cpus, ())


def test_a_malformed_system_qos_annotation_does_not_spoil_the_rest() -> None:
    found = facts(annotated(system_qos='{"cpuset":"x"}', reservation='{"reservedCPUs":"0"}'))
    assert (found.info.system_qos_cpus, found.info.reserved_mcpu) == (CpuSet(), 1000)
    assert len(found.warnings) == 1


def test_kubelet_policy_annotation() -> None:
    texts, expected = case_json("kubelet-policy-annotation", "annotations.json"), case_json("kubelet-policy-annotation")
    for text, want in zip(texts, expected, strict=True):
        found = facts({} if text is None else annotated(policy=text))
        assert found.info.kubelet_policy == (None if want == "skip" else want)
        assert len(found.warnings) == (want == "skip")


@pytest.mark.parametrize(
    ("text", "policy"), [("{}", "none"), ('{"policy":""}', "none"), ('{"policy":"Static"}', None), ("[]", None)]
)
def test_other_kubelet_policies(text: str, policy: str | None) -> None:
    assert facts(annotated(policy=text)).info.kubelet_policy == policy


def test_kubelet_reservation_is_the_larger_one() -> None:
    node = annotated(reservation='{"resources":{"cpu":"1"}}')
    node["status"] = {"capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"}, "allocatable": {"cpu": "14500m"}}
    found = facts(node).info
    assert (found.capacity_mcpu, found.capacity_bytes, found.reserved_mcpu) == (16_000, 64 * GIB, 1500)


def test_allocatable_before_and_after_amplification() -> None:
    node = annotated(raw='{"cpu":"8","memory":"16Gi","pods":"110"}')
    node["status"] = {"allocatable": {"cpu": "12", "memory": "16Gi", "kubernetes.io/batch-cpu": "15k"}}
    found = facts(node).info
    assert found.allocatable == Resources(cpu_mcpu=12_000, memory_bytes=16 * GIB, batch_cpu_mcpu=15_000)
    assert found.raw_allocatable == Resources(cpu_mcpu=8000, memory_bytes=16 * GIB)


def test_a_malformed_raw_allocatable_is_left_out_with_a_warning() -> None:
    node = annotated(raw='{"cpu":"much"}')
    node["status"] = {"allocatable": {"cpu": "12"}}
    found = facts(node)
    assert (found.info.raw_allocatable, found.info.allocatable.cpu_mcpu) == (Resources(), 12_000)
    assert RAW_ALLOCATABLE in found.warnings[0]


def test_amplified_allocatable_reserves_nothing() -> None:
    found = facts({"status": {"capacity": {"cpu": 8}, "allocatable": {"cpu": 12}}})
    assert found.info.reserved_mcpu == 0


def test_own_reservation_of_a_node_file(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("kind: Node\nreserved: {cpu: 0.5, memory: 2Gi, reservedCPUs: 7}\n")
    raw = load_node(tmp_path / "node.yaml").raw
    assert str(node_facts(raw, ONLINE, 1, None).info.reserved_cpus) == "7"


def test_reserved_cpus_that_are_offline_are_reported() -> None:
    assert "8-9" in facts(annotated(reservation='{"reservedCPUs":"7-9"}')).warnings[0]


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ({"kind": "Pod"}, "kind"),
        ({"status": {"capacity": {"cpu": "0"}}}, "status.capacity.cpu"),
        ({"status": {"capacity": {"cpu": "-1"}}}, "status.capacity.cpu"),
        ({"reserved": {"cpu": "many"}}, "reserved.cpu"),
        ({"reserved": {"reservedCPUs": "1,"}}, "reserved.reservedCPUs"),
        ({"metadata": {"annotations": {"a": {"b": 1}}}}, "metadata.annotations.a"),
    ],
)
def test_a_bad_node_file_is_refused(node: dict[str, Any], key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        facts(node)
    assert caught.value.key == key


def test_the_example_loads_without_warnings() -> None:
    found = load_node(EXAMPLES / "node.yaml")
    assert found.warnings == ()
    info = node_facts(found.raw, ONLINE, 16 * GIB, None)
    assert info.warnings == ()
    assert (info.info.reserved_mcpu, str(info.info.system_qos_cpus)) == (1000, "0-1")


KEYS = st.sampled_from(["cpuset", "policy", "reservedCPUs", "resources", "cpu"])
TREES = st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda below: st.dictionaries(KEYS, below))


@given(st.text(max_size=60) | TREES.map(json.dumps))
def test_any_annotation_gives_facts(text: str) -> None:
    found = node_facts(annotated(reservation=text, system_qos=text, policy=text), ONLINE, 16 * GIB, None).info
    assert found.capacity_mcpu == 8000
    assert found.reserved_mcpu >= 0
