"""A runtime's words about a sandbox become a pod; what it says of places is checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Resources, Tree
from koordlet.model.podevent import LinuxResources
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.units import mcpu_to_shares
from koordlet.sources.podlist import decode_pods
from koordlet.sources.sandbox import (
    Sandbox,
    SandboxContainer,
    amounts,
    container_cgroup,
    kube_qos,
    make_container,
    make_pod,
    pod_cgroup,
)

SLICE = "kubepods-besteffort-pod123_456.slice"
FULL = f"kubepods.slice/kubepods-besteffort.slice/{SLICE}"


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        pytest.param(SLICE, FULL, id="W48-crio-tells-the-last-slice"),
        (f"/{FULL}", FULL),
        ("/kubepods/burstable/podu1", "kubepods/burstable/podu1"),
        ("kubepods/burstable/podu1/", "kubepods/burstable/podu1"),
        ("", ""),
        ("/", ""),
        ("//", ""),
        ("/kubepods/../..", ""),
        ("a" * 5000, ""),
        ("/kubepods/pod\n", ""),
        ("/kubepods/pod\0", ""),
    ],
)
def test_pod_directories(parent: str, expected: str) -> None:
    assert pod_cgroup(parent) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/kubepods/burstable/podu1/c1", "kubepods/burstable/podu1/c1"),
        (f"{SLICE}:cri-containerd:c1", f"{FULL}/cri-containerd-c1.scope"),
        (f"{SLICE}:crio:c1", f"{FULL}/crio-c1.scope"),
        ("", ""),
        ("/c1", ""),  # a container without a pod above it
        (f"{SLICE}:crio", ""),
        ("::", ""),
        (f"{SLICE}:crio:../../x", ""),
        ("../x:crio:c1", ""),
    ],
)
def test_container_directories(path: str, expected: str) -> None:
    assert container_cgroup(path) == expected


@given(st.text(max_size=80))
def test_no_text_leads_out_of_the_hierarchy(text: str) -> None:
    for found in (pod_cgroup(text), container_cgroup(text)):
        assert not found.startswith("/")
        assert ".." not in found.split("/")


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (FULL, KubeQos.BESTEFFORT),
        ("kubepods/burstable/podx", KubeQos.BURSTABLE),
        ("kubepods/podx", KubeQos.GUARANTEED),
        ("kubepods.slice/kubepods-podx.slice", KubeQos.GUARANTEED),
        ("batch/podx", KubeQos.BURSTABLE),
        ("", KubeQos.BURSTABLE),
    ],
)
def test_class_of_a_directory(cgroup: str, expected: KubeQos) -> None:
    assert kube_qos(cgroup) is expected


def test_labels_and_annotations_mean_what_they_mean_in_a_kubelets_list() -> None:
    labels = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
    annotations = {
        "scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "2-3"}),
        "node.koordinator.sh/extended-resource-spec": json.dumps(
            {"containers": {"app": {"requests": {"kubernetes.io/batch-cpu": "1000"}}}}
        ),
    }
    told = make_pod(Sandbox("u1", "shop", "web-0", "sb", "/kubepods/podu1", labels, annotations))
    metadata = {"name": "web-0", "namespace": "shop", "uid": "u1", "labels": labels, "annotations": annotations}
    document = {"items": [{"metadata": metadata, "status": {"phase": "Running", "qosClass": "Guaranteed"}}]}
    (listed,) = decode_pods(json.dumps(document).encode(), Kubepods(Driver.CGROUPFS)).pods
    assert replace(told, request=listed.request) == listed  # no runtime knows a spec
    assert (told.qos, told.cpuset) == (Qos.LSR, CpuSet([2, 3]))


def test_a_malformed_allocation_is_a_fault_and_no_allocation() -> None:
    annotations = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"a-b"}'}
    found = make_pod(Sandbox("u1", "shop", "web-0", "sb", "/kubepods/podu1", {}, annotations))
    assert found.cpuset is None
    assert "a-b" in found.cpuset_error


def test_trees() -> None:
    assert make_pod(Sandbox("u", "n", "p", cgroup_parent="/kubepods/podu")).tree is Tree.KUBELET
    assert make_pod(Sandbox("u", "n", "p", cgroup_parent="/batch/podu")).tree is Tree.OURS


@pytest.mark.parametrize("sandbox", [Sandbox("../u", "n", "p"), Sandbox("", "n", "p"), Sandbox("u", "n", "p\x1b[2J")])
def test_names_that_cannot_be(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="pod"):
        make_pod(sandbox)


def test_amounts_of_a_container() -> None:
    asked = LinuxResources(cpu_shares=512, cpu_quota_us=50_000, cpu_period_us=50_000, memory_limit_bytes=1 << 30)
    assert amounts(asked) == (Resources(cpu_mcpu=500), Resources(cpu_mcpu=1000, memory_bytes=1 << 30))
    least = LinuxResources(cpu_shares=2, cpu_quota_us=-1, memory_limit_bytes=-1)
    assert amounts(least) == (Resources(), Resources())


@given(st.integers(3, 255_000))
def test_a_request_comes_back_from_its_shares(mcpu: int) -> None:
    assert amounts(LinuxResources(cpu_shares=mcpu_to_shares(mcpu)))[0].cpu_mcpu == mcpu


def test_a_containers_place_follows_from_its_id_where_the_runtime_tells_none() -> None:
    found = SandboxContainer("app", "abc123")
    made = make_container(found, "cri-o", FULL, Kubepods(Driver.SYSTEMD))
    assert (made.id, made.cgroup) == ("cri-o://abc123", f"{FULL}/crio-abc123.scope")
    assert make_container(found, "cri-o", FULL, None).cgroup == ""


@pytest.mark.parametrize(("source", "static"), [("file", True), ("api", False)])
def test_the_runtime_hands_on_where_the_kubelet_had_a_pod_from(source: str, static: bool) -> None:
    sandbox = Sandbox("u1", "ns", "p", annotations={"kubernetes.io/config.source": source})
    assert make_pod(sandbox).static is static
