"""From a container runtime's words to a `Pod`: where its cgroups are, what its labels and annotations say.

A runtime knows sandboxes, not pod specs: requests and limits are what the container was created with, batch amounts
come from the webhook's annotation, the Kubernetes QoS class from the cgroup's path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordlet.kernel.kubepods import Kubepods
from koordlet.model.pod import Container, Pod, Resources, Tree
from koordlet.model.podevent import LinuxResources
from koordlet.model.qos import KubeQos, raw_qos
from koordlet.model.units import DEFAULT_PERIOD_US, quota_to_mcpu
from koordlet.sources.annotations import RESOURCE_STATUS
from koordlet.sources.podlist import PRIORITY_LABEL, QOS_LABEL, is_static
from koordlet.sources.settings import read_settings

MAX_CONTAINERS: Final = 256
"""Of one pod; more are not taken."""
LONGEST_PATH: Final = 4096
_NAME: Final = re.compile(r"[0-9A-Za-z@_.:\\-]{1,255}")
_UID: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """id: the runtime's, "" where the door does not tell. cgroup_parent: as the runtime was told it."""

    uid: str
    namespace: str
    name: str
    id: str = ""
    cgroup_parent: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SandboxContainer:
    """cgroups_path: as in the OCI spec, "" where the door does not tell. asked: what it was or will be created with,
    None where only the present, perhaps adjusted values are known."""

    name: str
    id: str = ""
    cgroups_path: str = ""
    running: bool = False
    asked: LinuxResources | None = None


def pod_cgroup(cgroup_parent: str) -> str:
    """A pod's directory, relative; "" for a parent that names none (the root is nobody's pod: empty-cgroup-parent).

    CRI-O with systemd tells the last slice only; each dash in its name is a level above it.
    """
    parts = _parts(cgroup_parent)
    return _slices(parts[0]) if len(parts) == 1 and parts[0].endswith(".slice") else "/".join(parts)


def container_cgroup(cgroups_path: str) -> str:
    """A container's directory from the OCI spec's path: plain, or systemd's "slice:prefix:name"; "" when unusable."""
    slice_name, colon, scope = cgroups_path.partition(":")
    if not colon or "/" in scope:
        parts = _parts(cgroups_path)
        return "/".join(parts) if len(parts) > 1 else ""
    prefix, colon, name = scope.partition(":")
    above = pod_cgroup(slice_name)
    if not colon or not above or not _parts(f"{prefix}-{name}"):
        return ""
    return f"{above}/{prefix}-{name}.scope" if prefix else f"{above}/{name}.scope"


def kube_qos(cgroup: str) -> KubeQos:
    """The class that a directory stands for. One outside a kubelet's tree has none: it counts as Burstable, which takes
    nothing from it and promises nothing."""
    if "besteffort" in cgroup:
        return KubeQos.BESTEFFORT
    if "burstable" in cgroup or not is_kubelets(cgroup):
        return KubeQos.BURSTABLE
    return KubeQos.GUARANTEED


def is_kubelets(cgroup: str) -> bool:
    return any(part == "kubepods" or part.endswith("kubepods.slice") for part in cgroup.split("/"))


def make_pod(sandbox: Sandbox, containers: tuple[Container, ...] = ()) -> Pod:
    """A pod as a source yields it. Raises ValueError for a uid or name that cannot be one. An empty cgroup stays empty:
    such a pod can be answered, but nothing can be written for it."""
    if not _UID.fullmatch(sandbox.uid):
        raise ValueError(f"pod uid {sandbox.uid[:64]!r} is not letters, digits, '-' or '_'")
    for text in (sandbox.name, sandbox.namespace):
        if len(text) > 253 or not text.isprintable():
            raise ValueError(f"pod name {text[:64]!r} is too long or holds control characters")
    cgroup = pod_cgroup(sandbox.cgroup_parent)
    settings = read_settings(sandbox.labels, sandbox.annotations)
    return Pod(
        uid=sandbox.uid,
        namespace=sandbox.namespace,
        name=sandbox.name,
        cgroup=cgroup,
        kube_qos=kube_qos(cgroup),
        tree=Tree.KUBELET if not cgroup or is_kubelets(cgroup) else Tree.OURS,
        qos=raw_qos(sandbox.labels.get(QOS_LABEL)),
        priority_label=sandbox.labels.get(PRIORITY_LABEL),
        containers=containers,
        cpuset=settings.resource_status.cpuset if settings.resource_status else None,
        cpuset_error=settings.fault(RESOURCE_STATUS),
        settings=settings,
        static=is_static(sandbox.annotations),
    )


def make_container(found: SandboxContainer, runtime: str, cgroup: str, kubepods: Kubepods | None) -> Container:
    """runtime: scheme of its full id, such as "containerd". cgroup: its pod's; its own follows from the runtime's path,
    else from the name that the kubelet's driver would give it. Raises ValueError for a name that cannot be one."""
    if not found.name or len(found.name) > 253 or not found.name.isprintable():
        raise ValueError(f"container name {found.name[:64]!r} is empty, too long or holds control characters")
    full_id = f"{runtime}://{found.id}" if found.id else ""
    directory = container_cgroup(found.cgroups_path)
    if not directory and full_id and cgroup and kubepods is not None:
        directory = kubepods.container_dir(cgroup, full_id)
    requests, limits = amounts(found.asked) if found.asked else (Resources(), Resources())
    return Container(found.name, full_id, directory, found.running, requests, limits)


def amounts(asked: LinuxResources) -> tuple[Resources, Resources]:
    """(requests, limits) that a runtime's resources stand for. The least shares are "no request"."""
    shares, quota_us, memory = asked.cpu_shares, asked.cpu_quota_us, asked.memory_limit_bytes
    request = -(-shares * 1000 // 1024) if shares is not None and shares > 2 else None
    limit = quota_to_mcpu(quota_us, asked.cpu_period_us or DEFAULT_PERIOD_US) if quota_us and quota_us > 0 else None
    return Resources(cpu_mcpu=request), Resources(
        cpu_mcpu=limit, memory_bytes=memory if memory and memory > 0 else None
    )


def _parts(path: str) -> list[str]:
    """Components of a cgroup path, [] when it is none."""
    parts = [part for part in path.split("/") if part] if len(path) <= LONGEST_PATH else []
    if any(part in (".", "..") or not _NAME.fullmatch(part) for part in parts):
        return []
    return parts


def _slices(name: str) -> str:
    """kubepods-burstable-podx.slice -> kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice."""
    stems = name.removesuffix(".slice").split("-")
    return "/".join("-".join(stems[: depth + 1]) + ".slice" for depth in range(len(stems)))
