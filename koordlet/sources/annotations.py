"""The annotations of a pod that its rules read: JSON -> model (spec/api 2.2). Each reader raises PolicyError or
ValueError; a bad part voids its annotation, so that nothing is half applied."""

from __future__ import annotations

import re
from typing import Any, Final

from koordlet.config.schema import (
    INT64_MAX,
    Anything,
    At,
    Bool,
    Int,
    ListOf,
    MapOf,
    Quantity,
    QuantityText,
    Record,
    Text,
)
from koordlet.model.cpuset import CpuSet
from koordlet.model.quantity import parse_mcpu, parse_units
from koordlet.model.resources import Resources
from koordlet.model.settings import (
    EVICTION_POLICY,
    DeviceAllocation,
    ExtendedAmounts,
    GpuShare,
    PodCpuQos,
    PodNetworkQos,
    RdmaShare,
    ResourceStatus,
)

RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
EXTENDED: Final = "node.koordinator.sh/extended-resource-spec"
CPU_QOS: Final = "koordinator.sh/cpuQOS"
DEVICES: Final = "scheduling.koordinator.sh/device-allocated"
NETWORK_QOS: Final = "koordinator.sh/networkQOS"
OOM_SCORE_ADJ: Final = "koordinator.sh/oom-score-adj"
OOM_SCORE_ADJ_SPEC: Final = "koordinator.sh/oom-score-adj-spec"


def resource_status(document: Any) -> ResourceStatus:
    found = _RESOURCE_STATUS.check(document, At(RESOURCE_STATUS))
    listed: str | None = found.get("cpuset")
    cpuset = CpuSet.parse(listed) if listed else None
    if listed and not cpuset:
        raise ValueError(f"cpuset {listed!r} names no CPU")
    nodes = {
        row["node"]
        for row in found.get("numaNodeResources", ())
        if any(row.get("resources", {}).get(name) for name in ("cpu", "kubernetes.io/batch-cpu"))
    }
    return ResourceStatus(cpuset, tuple(sorted(nodes)))


def extended(document: Any) -> tuple[ExtendedAmounts, ...]:
    found = _EXTENDED.check(document, At(EXTENDED)).get("containers", {})
    return tuple(
        ExtendedAmounts(name, _amounts(row.get("requests", {})), _amounts(row.get("limits", {})))
        for name, row in found.items()
    )


def cpu_qos(document: Any) -> PodCpuQos:
    found = _CPU_QOS.check(document, At(CPU_QOS))
    return PodCpuQos(found.get("enable"), found.get("groupIdentity"))


def devices(document: Any) -> DeviceAllocation:
    found = _DEVICES.check(document, At(DEVICES))
    return DeviceAllocation(
        gpus=tuple(_gpu(row) for row in found.get("gpu", ())),
        rdma=tuple(_rdma(row) for row in found.get("rdma", ())),
    )


def network_qos(document: Any) -> PodNetworkQos:
    found = _NETWORK_QOS.check(document, At(NETWORK_QOS))
    limits = {name: parse_units(text) for name, text in found.items()}
    for name, value in limits.items():
        if not 0 <= value <= INT64_MAX:
            raise ValueError(f"{name}: {found[name][:40]!r} is not a rate in bits per second")
    return PodNetworkQos(limits.get("ingressLimit"), limits.get("egressLimit"))


def oom_score_adj(document: Any) -> int:
    return _SCORE.check(document, At(OOM_SCORE_ADJ))


def oom_score_adj_spec(document: Any) -> tuple[tuple[str, int], ...]:
    return tuple(MapOf(_SCORE).check(document, At(OOM_SCORE_ADJ_SPEC)).items())


def _amounts(found: dict[str, int]) -> Resources:
    return Resources(
        batch_cpu_mcpu=found.get("kubernetes.io/batch-cpu"),
        batch_memory_bytes=found.get("kubernetes.io/batch-memory"),
        mid_cpu_mcpu=found.get("kubernetes.io/mid-cpu"),
        mid_memory_bytes=found.get("kubernetes.io/mid-memory"),
    )


def _gpu(row: dict[str, Any]) -> GpuShare:
    amounts = row.get("resources", {})
    return GpuShare(
        minor=row.get("minor", 0),
        core_percent=amounts.get("koordinator.sh/gpu-core"),
        memory_percent=amounts.get("koordinator.sh/gpu-memory-ratio"),
        memory_bytes=amounts.get("koordinator.sh/gpu-memory"),
        id=row.get("id", ""),
    )


def _rdma(row: dict[str, Any]) -> RdmaShare:
    functions = [vf.get("busID", "") for vf in row.get("extension", {}).get("vfs", ())] or [row.get("id", "")]
    for address in functions:
        if not _PCI.fullmatch(address):  # it becomes part of a path
            raise ValueError(f"rdma: {address[:32]!r} is not a PCI address such as 0000:1f:00.2")
    return RdmaShare(tuple(functions))


_UNITS: Final = Quantity(parse_units)
_SCORE: Final = Int(-1000, 1000)
_PCI: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_EXTENDED_AMOUNTS: Final = Record(
    {f"kubernetes.io/{kind}-{what}": _UNITS for kind in ("batch", "mid") for what in ("cpu", "memory")}, open=True
)
_EXTENDED: Final = Record(
    {"containers": MapOf(Record({"requests": _EXTENDED_AMOUNTS, "limits": _EXTENDED_AMOUNTS}, open=True))}, open=True
)
_RESOURCE_STATUS: Final = Record(
    {
        "cpuset": Text(),
        "numaNodeResources": ListOf(
            Record(
                {
                    "node": Int(0, 4096),
                    "resources": Record({"cpu": Quantity(parse_mcpu), "kubernetes.io/batch-cpu": _UNITS}, open=True),
                },
                required=("node",),
                open=True,
            )
        ),
    },
    open=True,
)
_CPU_QOS: Final = Record({"enable": Bool(), "groupIdentity": Int(-1, 2)}, open=True)
_NETWORK_QOS: Final = Record({"ingressLimit": QuantityText(), "egressLimit": QuantityText()}, open=True)
_GPU_AMOUNTS: Final = Record(
    {f"koordinator.sh/{name}": _UNITS for name in ("gpu-core", "gpu-memory", "gpu-memory-ratio")}, open=True
)
_DEVICES: Final = Record(
    {
        "gpu": ListOf(
            Record({"minor": Int(0, 2**31 - 1), "id": Text(longest=64), "resources": _GPU_AMOUNTS}, open=True),
            longest=1024,
        ),
        "rdma": ListOf(
            Record(
                {
                    "minor": Anything(),
                    "id": Text(longest=64),
                    "extension": Record({"vfs": ListOf(Record({"busID": Text(longest=64)}, open=True))}, open=True),
                },
                open=True,
            ),
            longest=1024,
        ),
    },
    open=True,
)


EVICTION_PRIORITY: Final = "koordinator.sh/eviction-priority"
EVICTION_ENABLED: Final = "koordinator.sh/eviction-enabled"
SUB_PRIORITY: Final = "koordinator.sh/priority"
_FEATURES: Final = ListOf(Text(longest=63), longest=64)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


def eviction_policy(document: Any) -> tuple[str, ...]:
    """Features by which the pod may be evicted."""
    return tuple(_FEATURES.check(document, At(EVICTION_POLICY)))


def eviction_priority(document: Any) -> int:
    return Int(-(2**31), 2**31 - 1).check(document, At(EVICTION_PRIORITY))


def sub_priority(label: str) -> int | None:
    """A label, so its text is no JSON; anything but a decimal number counts as absent."""
    return int(label) if _INTEGER.fullmatch(label) else None
