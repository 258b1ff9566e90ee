"""RuntimeHookService's messages against the golden bytes."""

from __future__ import annotations

from koordlet.wire.hook_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
)
from tests.unit.wire.golden import GOLDEN


def test_k1_a_request_is_read_and_written_alike() -> None:
    request = ContainerResourceHookRequest.FromString(GOLDEN["K1"])
    assert (request.pod_meta.name, request.pod_meta.namespace, request.pod_meta.uid) == ("p", "ns", "u1")
    assert request.container_meta.name == "main"
    assert (request.container_resources.cpu_shares, request.container_resources.oom_score_adj) == (2, 1000)
    assert dict(request.pod_labels) == {"koordinator.sh/qosClass": "BE"}
    assert request.pod_cgroup_parent == "/kubepods.slice"
    assert request.SerializeToString(deterministic=True) == GOLDEN["K1"]


def test_k2_a_reply() -> None:
    reply = ContainerResourceHookResponse(pod_cgroup_parent="/kubepods.slice")
    resources = LinuxContainerResources(
        cpu_shares=1024, cpu_quota=100000, memory_limit_in_bytes=1 << 30, oom_score_adj=1000
    )
    reply.container_resources.CopyFrom(resources)
    assert reply.SerializeToString() == GOLDEN["K2"]
    assert len(GOLDEN["K2"]) == 0x23


def test_k3_a_negative_quota() -> None:
    assert LinuxContainerResources(cpu_quota=-1).SerializeToString() == GOLDEN["K3"]


def test_fields_of_a_newer_proxy_are_skipped() -> None:
    request = PodSandboxHookRequest.FromString(b"\x0a\x03\x0a\x01p" + bytes.fromhex("9a0603616263"))
    assert request.pod_meta.name == "p"
