"""The parts of a kubelet's PodList that are decoded, as they are spelled there (core/v1 Pod)."""

from __future__ import annotations

from typing import Any

import msgspec

# gc=False: trees without cycles, dropped right after.


class RawMetadata(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    created: str | None = msgspec.field(default=None, name="creationTimestamp")
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")

    @property
    def key(self) -> str:
        text = f"{self.namespace[:64]}/{self.name[:253]}"
        return text if text.isprintable() else ascii(text)


_Number = str | int | float | None


class RawAmounts(msgspec.Struct, gc=False):
    cpu_mcpu: _Number = msgspec.field(default=None, name="cpu")
    memory_bytes: _Number = msgspec.field(default=None, name="memory")
    batch_cpu_mcpu: _Number = msgspec.field(default=None, name="kubernetes.io/batch-cpu")
    batch_memory_bytes: _Number = msgspec.field(default=None, name="kubernetes.io/batch-memory")
    mid_cpu_mcpu: _Number = msgspec.field(default=None, name="kubernetes.io/mid-cpu")
    mid_memory_bytes: _Number = msgspec.field(default=None, name="kubernetes.io/mid-memory")


class RawResources(msgspec.Struct, gc=False):
    requests: RawAmounts | None = None
    limits: RawAmounts | None = None


class RawContainer(msgspec.Struct, gc=False):
    name: str = ""
    resources: RawResources | None = None
    restart_policy: str | None = msgspec.field(default=None, name="restartPolicy")


class RawClaimRef(msgspec.Struct, gc=False):
    name: str = msgspec.field(default="", name="claimName")


class RawEphemeral(msgspec.Struct, gc=False):
    pass


class RawVolume(msgspec.Struct, gc=False):
    name: str = ""
    claim: RawClaimRef | None = msgspec.field(default=None, name="persistentVolumeClaim")
    ephemeral: RawEphemeral | None = None


class RawSpec(msgspec.Struct, gc=False):
    volumes: list[RawVolume] | None = None
    containers: list[RawContainer] | None = None
    init_containers: list[RawContainer] | None = msgspec.field(default=None, name="initContainers")
    priority: int | None = None
    host_network: bool | None = msgspec.field(default=None, name="hostNetwork")
    overhead: RawAmounts | None = None
    resources: RawResources | None = None


class RawState(msgspec.Struct, gc=False):
    running: dict[str, Any] | None = None


class RawContainerStatus(msgspec.Struct, gc=False):
    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")
    state: RawState | None = None


class RawPodIp(msgspec.Struct, gc=False):
    ip: str = ""


class RawStatus(msgspec.Struct, gc=False):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[RawPodIp] | None = msgspec.field(default=None, name="podIPs")
    qos_class: str = msgspec.field(default="", name="qosClass")
    start_time: str | None = msgspec.field(default=None, name="startTime")
    container_statuses: list[RawContainerStatus] | None = msgspec.field(default=None, name="containerStatuses")
    init_statuses: list[RawContainerStatus] | None = msgspec.field(default=None, name="initContainerStatuses")


class RawPod(msgspec.Struct, gc=False):
    metadata: RawMetadata
    spec: RawSpec | None = None
    status: RawStatus | None = None


class RawPodList(msgspec.Struct, gc=False):
    # Required: an error page that happens to be JSON must not pass as a node without pods.
    items: list[msgspec.Raw] | None
