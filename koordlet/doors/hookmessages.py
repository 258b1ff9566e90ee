"""RuntimeHookService's messages <-> the model. A reply is a copy of the request in which only answered values differ:
the proxy takes an absent score, CPU set or environment for an order to reset it."""

from __future__ import annotations

from koordlet.model.cpuset import CpuSet
from koordlet.model.podevent import LinuxResources, PodAnswer
from koordlet.sources.sandbox import Sandbox, SandboxContainer
from koordlet.wire.hook_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)


def pod_sandbox(request: PodSandboxHookRequest) -> Sandbox:
    meta = request.pod_meta
    return Sandbox(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        cgroup_parent=request.cgroup_parent,
        labels=dict(request.labels),
        annotations=dict(request.annotations),
    )


def container_sandbox(request: ContainerResourceHookRequest) -> Sandbox:
    meta = request.pod_meta
    return Sandbox(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        cgroup_parent=request.pod_cgroup_parent,
        labels=dict(request.pod_labels),
        annotations=dict(request.pod_annotations),
    )


def container(
    request: ContainerResourceHookRequest, *, running: bool, asked: LinuxResources | None
) -> SandboxContainer:
    meta = request.container_meta
    return SandboxContainer(name=meta.name, id=meta.id, running=running, asked=asked)


def asked(resources: LinuxContainerResources) -> LinuxResources:
    """What the runtime is about to apply; 0 and "" are "not said", as is a CPU list that is none."""
    return LinuxResources(
        cpu_shares=resources.cpu_shares or None,
        cpu_quota_us=resources.cpu_quota or None,
        cpu_period_us=resources.cpu_period or None,
        cpuset=cpus(resources.cpuset_cpus),
        cpuset_mems=cpus(resources.cpuset_mems),
        memory_limit_bytes=max(resources.memory_limit_in_bytes, -1) or None,
        oom_score_adj=resources.oom_score_adj,
        unified=dict(resources.unified),
    )


def cpus(text: str) -> CpuSet | None:
    try:
        return CpuSet.parse(text) if text else None
    except ValueError:
        return None


def pod_reply(request: PodSandboxHookRequest) -> PodSandboxHookResponse:
    """A copy: what is wanted of a pod's own cgroup is written there, the proxy would not pass it on."""
    reply = PodSandboxHookResponse(cgroup_parent=request.cgroup_parent)
    reply.labels.update(request.labels)
    reply.annotations.update(request.annotations)
    if request.HasField("resources"):
        reply.resources.CopyFrom(request.resources)
    return reply


def container_reply(request: ContainerResourceHookRequest, answer: PodAnswer) -> ContainerResourceHookResponse:
    reply = ContainerResourceHookResponse(pod_cgroup_parent=request.pod_cgroup_parent)
    reply.container_annotations.update(request.container_annotations)
    reply.container_annotations.update(answer.annotations)
    reply.container_envs.update(request.container_envs)
    reply.container_envs.update(answer.env)
    if request.HasField("container_resources"):
        reply.container_resources.CopyFrom(request.container_resources)
    _override(reply, answer.resources)
    return reply


def undeliverable(answer: PodAnswer) -> tuple[str, ...]:
    """What this protocol has no field for."""
    return tuple(name for name, found in (("mounts", answer.mounts), ("devices", answer.devices)) if found)


def _override(reply: ContainerResourceHookResponse, wanted: LinuxResources) -> None:
    """The resources message is made when the request had none and something is wanted (nil-resources-response)."""
    if wanted.cpu_shares is not None:
        reply.container_resources.cpu_shares = wanted.cpu_shares
    if wanted.cpu_quota_us is not None:
        reply.container_resources.cpu_quota = wanted.cpu_quota_us
    if wanted.cpu_period_us is not None:
        reply.container_resources.cpu_period = wanted.cpu_period_us
    if wanted.memory_limit_bytes is not None:
        reply.container_resources.memory_limit_in_bytes = wanted.memory_limit_bytes
    if wanted.oom_score_adj is not None:
        reply.container_resources.oom_score_adj = wanted.oom_score_adj
    if wanted.cpuset is not None:
        reply.container_resources.cpuset_cpus = str(wanted.cpuset)
    if wanted.cpuset_mems is not None:
        reply.container_resources.cpuset_mems = str(wanted.cpuset_mems)
    if wanted.unified:
        reply.container_resources.unified.update(wanted.unified)
