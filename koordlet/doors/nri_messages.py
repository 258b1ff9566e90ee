"""NRI's messages <-> the model. Absent wrappers and zeros are "not said"; what is not wanted is not set, because two
plugins that set one field make the creation fail."""

from __future__ import annotations

from koordlet.model.cpuset import CpuSet
from koordlet.model.podevent import LinuxResources, PodAnswer
from koordlet.sources.sandbox import Sandbox, SandboxContainer
from koordlet.wire import nri_pb2 as nri


def sandbox(pod: nri.PodSandbox) -> Sandbox:
    return Sandbox(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        id=pod.id,
        cgroup_parent=pod.linux.cgroup_parent,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
    )


def container(
    found: nri.Container, *, running: bool | None = None, asked: LinuxResources | None = None
) -> SandboxContainer:
    """running: None takes the state that the runtime tells."""
    alive = found.state in (nri.CONTAINER_RUNNING, nri.CONTAINER_PAUSED)
    return SandboxContainer(
        name=found.name,
        id=found.id,
        cgroups_path=found.linux.cgroups_path,
        running=alive if running is None else running,
        asked=asked,
    )


def asked(resources: nri.LinuxResources, score: nri.OptionalInt | None = None) -> LinuxResources:
    memory = resources.memory.limit.value
    return LinuxResources(
        cpu_shares=resources.cpu.shares.value or None,
        cpu_quota_us=resources.cpu.quota.value or None,
        cpu_period_us=resources.cpu.period.value or None,
        cpuset=_cpus(resources.cpu.cpus),
        cpuset_mems=_cpus(resources.cpu.mems),
        memory_limit_bytes=max(memory, -1) or None,
        oom_score_adj=score.value if score is not None else None,
        unified=dict(resources.unified),
    )


def env(found: nri.Container) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in found.env)}


def adjustment(answer: PodAnswer) -> nri.ContainerAdjustment | None:
    """None when nothing is wanted."""
    made = nri.ContainerAdjustment()
    if answer.annotations:
        made.annotations.update(answer.annotations)
    for name, value in answer.env.items():
        made.env.add(key=name, value=value)
    for source, destination, options in answer.mounts:
        made.mounts.add(source=source, destination=destination, type="bind", options=options)
    for device in answer.devices:
        node = made.linux.devices.add(path=device.path, type=device.kind, major=device.major, minor=device.minor)
        if device.mode:
            node.file_mode.value = device.mode
    if answer.resources.oom_score_adj is not None:
        made.linux.oom_score_adj.value = answer.resources.oom_score_adj
    wanted = resources(answer)
    if wanted is not None:
        made.linux.resources.CopyFrom(wanted)
    return made if made.ByteSize() else None


def update(container_id: str, answer: PodAnswer) -> nri.ContainerUpdate | None:
    """For the container of an UpdateContainer event; without its id the runtime would ignore it. None: nothing
    wanted."""
    wanted = resources(answer)
    if wanted is None:
        return None
    made = nri.ContainerUpdate(container_id=container_id)
    made.linux.resources.CopyFrom(wanted)
    return made


def resources(answer: PodAnswer) -> nri.LinuxResources | None:
    """Without what NRI cannot say or a runtime trips over: an empty CPU set, "unlimited" memory."""
    found, made = answer.resources, nri.LinuxResources()
    if found.cpu_shares is not None and found.cpu_shares > 0:
        made.cpu.shares.value = found.cpu_shares
    if found.cpu_quota_us is not None:
        made.cpu.quota.value = found.cpu_quota_us
    if found.cpu_period_us is not None and found.cpu_period_us > 0:
        made.cpu.period.value = found.cpu_period_us
    if found.cpuset:
        made.cpu.cpus = str(found.cpuset)
    if found.cpuset_mems:
        made.cpu.mems = str(found.cpuset_mems)
    if found.memory_limit_bytes is not None and found.memory_limit_bytes > 0:
        made.memory.limit.value = found.memory_limit_bytes
    if answer.resctrl_group:
        made.rdt_class.value = answer.resctrl_group
    if found.unified:
        made.unified.update(found.unified)
    return made if made.ByteSize() else None


def _cpus(text: str) -> CpuSet | None:
    try:
        return CpuSet.parse(text) if text else None
    except ValueError:
        return None
