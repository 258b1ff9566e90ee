"""Facts about the node that the kernel cannot tell: capacity override, reservation, annotations (spec/api 2.3).

The raw form is the subset of a Kubernetes Node object that also stands in `--node FILE` (spec/ledger 6.2).
Annotations come from strangers: a malformed one is left out with a warning and never fails the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordlet.config.documents import read_annotation, read_document
from koordlet.config.errors import PolicyError
from koordlet.config.schema import Anything, At, Bool, MapOf, Quantity, Record, Shape, Text
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import BindPolicy, NodePinning, NumaPolicy, NumaStrategy
from koordlet.model.quantity import parse_mcpu, parse_units
from koordlet.model.resources import Resources
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo

RESERVATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
RAW_ALLOCATABLE: Final = "node.koordinator.sh/raw-allocatable"
KUBELET_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
NORMALIZATION: Final = "node.koordinator.sh/cpu-normalization-ratio"


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A checked node file. raw: its known keys, quantities as integers. warnings: its unknown keys."""

    raw: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    info: NodeInfo
    warnings: tuple[str, ...] = ()


def load_node(path: Path) -> NodeFile:
    """A node file. Raises PolicyError, OSError."""
    at = At(str(path))
    raw = check_node(read_document(path), at)
    return NodeFile(raw, tuple(at.warnings))


def check_node(document: object, at: At) -> dict[str, Any]:
    """The known keys of a Node object, quantities as milli-CPU and bytes. Raises PolicyError."""
    found: dict[str, Any] = _NODE.check(document, at)
    if found.get("kind", "Node") != "Node":
        raise at.below("kind").error(found["kind"], "Node")
    return found


def node_facts(
    raw: dict[str, Any],
    online: CpuSet,
    memory_bytes: int,
    topology: Topology | None,
    *,
    ratio_before: float | None = None,
) -> NodeFacts:
    """Node facts from `check_node`'s result ({} for none) and the machine's own CPUs and memory.

    ratio_before: the normalization ratio that stays in force while its annotation is malformed.
    """
    warnings: list[str] = []
    metadata, status = raw.get("metadata", {}), raw.get("status", {})
    annotations = metadata.get("annotations", {})
    capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
    capacity_mcpu = capacity.get("cpu", len(online) * 1000)

    reserved = raw.get("reserved")
    if reserved is None:
        reserved = _reservation(annotations, warnings)
    reserved_cpus = reserved.get("reservedCPUs", CpuSet())
    # V-32: an explicit list wins over the quantity.
    reserved_mcpu = len(reserved_cpus) * 1000 if reserved_cpus else reserved.get("cpu", 0)
    kubelet_mcpu = max(capacity_mcpu - allocatable.get("cpu", capacity_mcpu), 0)
    if not reserved_cpus <= online:
        warnings.append(f"reserved CPUs {reserved_cpus - online} are not online here")

    system_cpus, exclusive = _system_qos(annotations, warnings)
    info = NodeInfo(
        name=metadata.get("name", ""),
        capacity_mcpu=capacity_mcpu,
        capacity_bytes=capacity.get("memory", memory_bytes),
        reserved_mcpu=max(kubelet_mcpu, reserved_mcpu),
        reserved_cpus=reserved_cpus,
        system_qos_cpus=system_cpus if exclusive else CpuSet(),
        kubelet_policy=_kubelet_policy(annotations, warnings),
        allocatable=Resources(**{field: allocatable.get(name) for name, field in _ALLOCATABLE.items()}),
        raw_allocatable=_raw_allocatable(annotations, warnings),
        topology=topology,
        reservation_mcpu=0 if reserved_cpus else reserved.get("cpu", 0),
        pinning=_pinning(metadata.get("labels", {}), warnings),
        system_cpuset=system_cpus,
        cpu_normalization_ratio=_ratio(annotations, ratio_before, warnings),
    )
    return NodeFacts(info, tuple(warnings))


def _reservation(annotations: dict[str, str], warnings: list[str]) -> dict[str, Any]:
    found = _annotation(annotations, RESERVATION, _RESERVATION, warnings) or {}
    resources = found.pop("resources", {})
    return {**resources, **found}


def _system_qos(annotations: dict[str, str], warnings: list[str]) -> tuple[CpuSet, bool]:
    """The CPUs of System-QoS pods, and whether nobody else may have them."""
    found = _annotation(annotations, SYSTEM_QOS, _SYSTEM_QOS, warnings) or {}
    return found.get("cpuset", CpuSet()), found.get("cpusetExclusive", True)


def _ratio(annotations: dict[str, str], before: float | None, warnings: list[str]) -> float | None:
    """A change of less than 0.01 is none (V-31)."""
    text = annotations.get(NORMALIZATION)
    if text is None:
        return None
    try:
        ratio = float(text) if len(text) <= _LONGEST_RATIO else math.nan
    except ValueError:
        ratio = math.nan
    if not (math.isfinite(ratio) and ratio > 0):
        error = PolicyError(NORMALIZATION, "", text[:_LONGEST_RATIO], "a number above 0")
        warnings.append(f"annotation ignored: {error}")
        return before
    return before if before is not None and abs(ratio - before) < _LEAST_CHANGE else ratio


def _kubelet_policy(annotations: dict[str, str], warnings: list[str]) -> str | None:
    """None when malformed: taking it for "none" would move the containers of a static node."""
    if KUBELET_POLICY not in annotations:
        return "none"
    found = _annotation(annotations, KUBELET_POLICY, _KUBELET_POLICY, warnings)
    return None if found is None else str(found.get("policy", "none"))


def _pinning(labels: dict[str, str], warnings: list[str]) -> NodePinning:
    """The scheduler's node labels; an unknown text counts as absent."""
    bind = _label(labels, "cpu-bind-policy", {"FullPCPUsOnly", "SpreadByPCPUs"}, warnings)
    return NodePinning(
        bind={"FullPCPUsOnly": BindPolicy.FULL_PCPUS, "SpreadByPCPUs": BindPolicy.SPREAD}.get(bind),
        numa=NumaPolicy(_label(labels, "numa-topology-policy", set(NumaPolicy), warnings) or NumaPolicy.NONE),
        strategy=NumaStrategy(
            _label(labels, "numa-allocate-strategy", set(NumaStrategy), warnings) or NumaStrategy.LEAST_ALLOCATED
        ),
    )


def _label(labels: dict[str, str], name: str, known: Collection[str], warnings: list[str]) -> str:
    text = labels.get(f"node.koordinator.sh/{name}", "")
    if text in known or text in ("", "None"):
        return "" if text == "None" else text
    warnings.append(f"label ignored: node.koordinator.sh/{name}: {text[:63]!r} is none of {', '.join(sorted(known))}")
    return ""


def _raw_allocatable(annotations: dict[str, str], warnings: list[str]) -> Resources:
    found = _annotation(annotations, RAW_ALLOCATABLE, _RESOURCES, warnings) or {}
    return Resources(cpu_mcpu=found.get("cpu"), memory_bytes=found.get("memory"))


def _annotation(annotations: dict[str, str], key: str, shape: Shape, warnings: list[str]) -> dict[str, Any] | None:
    """Checked content, {} when absent or JSON null, None (and a warning) when malformed."""
    if key not in annotations:
        return {}
    try:
        found = read_annotation(key, annotations[key])
        checked: dict[str, Any] = {} if found is None else shape.check(found, At(key))
    except PolicyError as error:
        warnings.append(f"annotation ignored: {error}")
        return None
    return checked


class _Cpus:
    def check(self, value: object, at: At) -> CpuSet | None:
        allowed = 'a CPU list such as "0-3,8"'
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)  # YAML reads a bare 7 as a number
        if not isinstance(value, str):
            raise at.error(value, allowed)
        try:
            return CpuSet.parse(value) or None
        except ValueError as error:
            raise at.error(value, allowed) from error


_LONGEST_RATIO: Final = 32
_LEAST_CHANGE: Final = 0.01
_CPU: Final = Quantity(parse_mcpu)
_BYTES: Final = Quantity(parse_units)
_RESOURCES: Final = Record({"cpu": _CPU, "memory": _BYTES}, open=True)
_ALLOCATABLE: Final = {
    "cpu": "cpu_mcpu",
    "memory": "memory_bytes",
    "kubernetes.io/batch-cpu": "batch_cpu_mcpu",
    "kubernetes.io/batch-memory": "batch_memory_bytes",
    "kubernetes.io/mid-cpu": "mid_cpu_mcpu",
    "kubernetes.io/mid-memory": "mid_memory_bytes",
}
"""Resource name -> field of `Resources`. Batch and mid CPU count milli-CPU."""


class _Capacity:
    def check(self, value: object, at: At) -> dict[str, Any]:
        found: dict[str, Any] = _RESOURCES.check(value, at)
        for name, number in found.items():
            if number == 0:
                raise at.below(name).error(number, "a quantity above 0")
        return found


_RESERVATION: Final = Record({"resources": _RESOURCES, "reservedCPUs": _Cpus(), "applyPolicy": Text()})
_SYSTEM_QOS: Final = Record({"cpuset": _Cpus(), "cpusetExclusive": Bool()})
_KUBELET_POLICY: Final = Record({"policy": Text(("none", "static")), "options": MapOf(Text()), "reservedCPUs": Text()})
_NODE: Final = Record(
    {
        "apiVersion": Anything(),
        "kind": Anything(),
        # Open: this also reads a Node as the API server prints it.
        "metadata": Record(
            {"name": Text(longest=253), "labels": MapOf(Text()), "annotations": MapOf(Text(longest=1 << 18))},
            open=True,
        ),
        "spec": Anything(),
        "status": Record(
            {
                "capacity": _Capacity(),
                "allocatable": Record({n: _CPU if n == "cpu" else _BYTES for n in _ALLOCATABLE}, open=True),
            },
            open=True,
        ),
        "reserved": Record({"cpu": _CPU, "memory": _BYTES, "reservedCPUs": _Cpus()}),
    }
)
