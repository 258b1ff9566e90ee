"""A kubelet's PodList, JSON to `Pod`s: only the needed parts are ever decoded.

One pod's bad annotation, quantity or container id stays that pod's problem; a document that is no PodList is
refused as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from koordlet.config.schema import INT64_MAX
from koordlet.kernel.kubepods import Kubepods
from koordlet.model.blkio import BlockType
from koordlet.model.pod import Container, Pod, Resources
from koordlet.model.qos import KubeQos, raw_qos
from koordlet.model.quantity import parse_mcpu, parse_units
from koordlet.model.settings import PodSettings
from koordlet.sources.annotations import RESOURCE_STATUS
from koordlet.sources.podobjects import (
    RawAmounts,
    RawContainer,
    RawMetadata,
    RawPod,
    RawPodList,
    RawResources,
    RawSpec,
    RawStatus,
)
from koordlet.sources.podrequest import pod_request
from koordlet.sources.settings import read_settings

MAX_PODS: Final = 10_000
QOS_LABEL: Final = "koordinator.sh/qosClass"
PRIORITY_LABEL: Final = "koordinator.sh/priority-class"


class PodListError(Exception):
    """The bytes are not a PodList; nothing of them was taken."""


@dataclass(frozen=True, slots=True)
class PodList:
    """pods: sorted by namespace and name. errors: one line per fault inside a pod, naming it."""

    pods: tuple[Pod, ...]
    errors: tuple[str, ...] = ()


def decode_pods(data: bytes, kubepods: Kubepods) -> PodList:
    """Pods of a `GET /pods/` answer. Raises PodListError."""
    return PodDecoder(kubepods).decode(data)


class PodDecoder:
    """Decodes answer after answer: a pod whose text is as it was is the same `Pod` as then, for a tenth of the cost."""

    def __init__(self, kubepods: Kubepods) -> None:
        self.kubepods = kubepods
        self._known: dict[tuple[int, int], tuple[Pod | None, tuple[str, ...]]] = {}

    def decode(self, data: bytes) -> PodList:
        """Raises PodListError."""
        try:
            items = [bytes(item) for item in _LIST.decode(data).items or []]
            if len(items) > MAX_PODS:
                raise PodListError(f"{len(items)} pods, at most {MAX_PODS} are accepted")
            found = {(hash(item), len(item)): item for item in items}
            known = {key: self._known.get(key) or self._read(item) for key, item in found.items()}
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise PodListError(f"not a PodList: {error}") from error
        self._known = known
        pods: dict[str, Pod] = {}
        errors: list[str] = []
        for pod, faults in known.values():
            errors += faults
            if pod is None:
                continue
            if pod.uid in pods:
                errors.append(f"pod {pod.key}: left out: uid {pod.uid} belongs to {pods[pod.uid].key}")
                continue
            pods[pod.uid] = pod
        return PodList(
            tuple(sorted(pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid))), tuple(sorted(errors))
        )

    def _read(self, text: bytes) -> tuple[Pod | None, tuple[str, ...]]:
        """A pod, None when it has to be left out, and its faults. Raises msgspec.MsgspecError, RecursionError."""
        item = _ITEM.decode(text)
        errors: list[str] = []
        try:
            return _pod(item, self.kubepods, errors), tuple(errors)
        except ValueError as error:
            return None, (*errors, f"pod {item.metadata.key}: left out: {error}")


def _pod(item: RawPod, kubepods: Kubepods, errors: list[str]) -> Pod:
    """Raises ValueError when the pod has no usable uid or name."""
    metadata, status = item.metadata, item.status or RawStatus()
    if not (metadata.name.isprintable() and metadata.namespace.isprintable()):
        raise ValueError("its name holds control characters")  # they would reach terminals
    kube_qos = _kube_qos(item, errors)
    uid = _uid(metadata)
    cgroup = kubepods.pod_dir(uid, kube_qos)
    labels = metadata.labels or {}
    phase = status.phase or "Pending"
    settings = _settings(metadata, errors)
    cpuset, cpuset_error = None, ""
    if phase in ("Pending", "Running"):  # beyond: a finished pod releases its CPUs
        cpuset = settings.resource_status.cpuset if settings.resource_status else None
        cpuset_error = settings.fault(RESOURCE_STATUS)
    containers = _containers(item, cgroup, kubepods, errors)
    return Pod(
        uid=uid,
        namespace=metadata.namespace,
        name=metadata.name,
        cgroup=cgroup,
        kube_qos=kube_qos,
        phase=phase,
        qos=raw_qos(labels.get(QOS_LABEL)),
        priority=item.spec.priority if item.spec else None,
        priority_label=labels.get(PRIORITY_LABEL),
        containers=containers,
        cpuset=cpuset,
        cpuset_error=cpuset_error,
        settings=settings,
        host_network=bool(item.spec and item.spec.host_network),
        ips=_ips(status),
        terminating=metadata.deleted is not None,
        static=is_static(metadata.annotations or {}),
        # A static pod has no creation time in the kubelet's own answer.
        created_at_s=_time(metadata.created or status.start_time),
        request=_request(item, containers, errors),
        claims=_claims(item, settings),
    )


def _time(text: str | None) -> float | None:
    """RFC 3339 -> wall clock in seconds, None where it makes no sense: no age is better than a wrong one."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _uid(metadata: RawMetadata) -> str:
    """The name of the pod's cgroup: a static pod's config hash, which is the uid in the kubelet's own answer
    and an annotation of the mirror pod in the API server's."""
    annotations = metadata.annotations or {}
    mirror = annotations.get("kubernetes.io/config.mirror")
    return mirror if mirror and mirror == annotations.get("kubernetes.io/config.hash") else metadata.uid


def is_static(annotations: Mapping[str, str]) -> bool:
    """The kubelet marks each pod with where it has it from; the API server's copy of a static one is its mirror."""
    return (
        annotations.get("kubernetes.io/config.source", "api") != "api" or "kubernetes.io/config.mirror" in annotations
    )


def _settings(metadata: RawMetadata, errors: list[str]) -> PodSettings:
    settings = read_settings(metadata.labels or {}, metadata.annotations or {})
    errors.extend(f"pod {metadata.key}: {text}" for _, text in settings.faults)
    return settings


def _claims(item: RawPod, settings: PodSettings) -> tuple[tuple[str, str], ...]:
    """(volume, claim) of volumes whose I/O the pod limits. A generic ephemeral volume's claim is named after both."""
    limited = {block.name for block in settings.blkio or () if block.type is BlockType.POD_VOLUME}
    found = []
    for volume in (item.spec.volumes or ()) if limited and item.spec else ():
        if volume.name in limited and volume.claim is not None:
            found.append((volume.name, volume.claim.name))
        elif volume.name in limited and volume.ephemeral is not None:
            found.append((volume.name, f"{item.metadata.name}-{volume.name}"))
    return tuple(found)


def _ips(status: RawStatus) -> tuple[str, ...]:
    return tuple(row.ip for row in status.pod_ips or () if row.ip) or ((status.pod_ip,) if status.pod_ip else ())


def _containers(item: RawPod, cgroup: str, kubepods: Kubepods, errors: list[str]) -> tuple[Container, ...]:
    """Regular containers and sidecars (init containers that are restarted always)."""
    spec, status = item.spec or RawSpec(), item.status or RawStatus()
    states = {found.name: found for found in (*(status.container_statuses or ()), *(status.init_statuses or ()))}
    sidecars = [found for found in spec.init_containers or () if found.restart_policy == "Always"]
    made: list[Container] = []
    for found in (*sidecars, *(spec.containers or ())):
        state = states.get(found.name)
        full_id = state.container_id if state else ""
        directory = ""
        if full_id:  # empty: the runtime has not named it yet
            try:
                directory = kubepods.container_dir(cgroup, full_id)
            except ValueError as error:
                errors.append(f"pod {item.metadata.key}: container {found.name[:64]}: {error}")
        resources = found.resources or RawResources()
        made.append(
            Container(
                name=found.name,
                id=full_id,
                cgroup=directory,
                running=bool(state and state.state and state.state.running is not None),
                requests=_amounts(resources.requests, item, found, "requests", errors),
                limits=_amounts(resources.limits, item, found, "limits", errors),
                sidecar=found.restart_policy == "Always" and found in sidecars,
            )
        )
    return tuple(made)


def _request(item: RawPod, containers: tuple[Container, ...], errors: list[str]) -> Resources:
    spec = item.spec or RawSpec()
    known = {container.name: container.requests for container in containers}
    inits: list[tuple[Resources, bool]] = []
    for found in spec.init_containers or ():
        is_sidecar = found.restart_policy == "Always"
        given = found.resources.requests if found.resources else None
        inits.append(
            (known[found.name] if is_sidecar else _amounts(given, item, found, "requests", errors), is_sidecar)
        )
    whole = RawContainer("pod")
    return pod_request(
        [known[found.name] for found in spec.containers or ()],
        inits,
        overhead=_amounts(spec.overhead, item, whole, "overhead", errors),
        pod_level=_amounts(spec.resources.requests if spec.resources else None, item, whole, "requests", errors),
    )


def _amounts(given: RawAmounts | None, item: RawPod, found: RawContainer, which: str, errors: list[str]) -> Resources:
    if given is None:
        return Resources()
    values: dict[str, int | None] = {}
    for name, read in _READ.items():
        text = getattr(given, name)
        if text is None:
            continue
        try:
            values[name] = _int64(read(str(text)))
        except (ValueError, ArithmeticError) as error:
            key = name.rpartition("_")[0].replace("_", "-")
            errors.append(f"pod {item.metadata.key}: container {found.name[:64]}: {which}.{key}: {error}")
    return Resources(**values)


def _int64(value: int) -> int:
    if not -INT64_MAX <= value <= INT64_MAX:
        raise ValueError("a quantity that fits 64 bits is needed")
    return value


def _kube_qos(item: RawPod, errors: list[str]) -> KubeQos:
    """status.qosClass, else Kubernetes' own rule over the requests and limits of all containers."""
    text = item.status.qos_class if item.status else ""
    if text:
        try:
            return KubeQos(text)
        except ValueError:
            errors.append(f"pod {item.metadata.key}: unknown status.qosClass {text[:64]!r}")
    spec = item.spec or RawSpec()
    all_equal, any_set, ignored = True, False, list[str]()
    for found in (*(spec.containers or ()), *(spec.init_containers or ())):
        resources = found.resources or RawResources()
        limits = _amounts(resources.limits, item, found, "limits", ignored)
        requests = _amounts(resources.requests, item, found, "requests", ignored)
        for limit, request in (
            (limits.cpu_mcpu, requests.cpu_mcpu),
            (limits.memory_bytes, requests.memory_bytes),
        ):
            any_set |= bool(limit) or bool(request)
            all_equal &= bool(limit) and request in (None, limit)
    if not any_set:
        return KubeQos.BESTEFFORT
    return KubeQos.GUARANTEED if all_equal else KubeQos.BURSTABLE


_LIST: Final = msgspec.json.Decoder(RawPodList)
_ITEM: Final = msgspec.json.Decoder(RawPod)
_READ: Final = {
    "cpu_mcpu": parse_mcpu,
    "memory_bytes": parse_units,
    "batch_cpu_mcpu": parse_units,
    "batch_memory_bytes": parse_units,
    "mid_cpu_mcpu": parse_units,
    "mid_memory_bytes": parse_units,
}
