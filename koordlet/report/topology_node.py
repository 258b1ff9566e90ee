"""What the Node object adds to its NodeResourceTopology: two annotations and what it keeps back per NUMA node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordlet.config.documents import read_annotation
from koordlet.config.errors import PolicyError
from koordlet.config.schema import At, Bool, MapOf, QuantityText, Record, Shape, Text
from koordlet.decide.packing import pack
from koordlet.model.cpuset import CpuSet
from koordlet.model.quantity import format_mcpu, parse_mcpu, parse_units
from koordlet.model.topology import Topology
from koordlet.report.topology import NUMA_RESERVATION, RESERVATION, SYSTEM_QOS


def reservation(annotations: Mapping[str, str], topology: Topology) -> dict[str, Any]:
    """The Node's annotation in the form that the scheduler reads; {} without one, or when it is malformed.

    CPUs reserved by amount get a list, because the scheduler must leave alone the CPUs that we left out of the pools.
    """
    found = _read(annotations, RESERVATION, _RESERVATION)
    if not found:
        return {}
    made: dict[str, Any] = {}
    resources: dict[str, str] = found.get("resources", {})
    if "cpu" in resources:
        resources["cpu"] = format_mcpu(parse_mcpu(resources["cpu"]))
    if resources:
        made["resources"] = resources
    cpus = _cpus(found.get("reservedCPUs", ""))
    if cpus is None:
        return {}
    if not cpus and "cpu" in resources:
        cpus = pack(-(-parse_mcpu(resources["cpu"]) // 1000), topology)
    if cpus:
        made["reservedCPUs"] = str(cpus)
    if found.get("applyPolicy"):
        made["applyPolicy"] = found["applyPolicy"]
    return made


def system_qos(annotations: Mapping[str, str]) -> dict[str, Any]:
    """The same for System-QoS CPUs."""
    found = _read(annotations, SYSTEM_QOS, _SYSTEM_QOS)
    cpus = _cpus(found.get("cpuset", ""))
    if not cpus:
        return {}
    found["cpuset"] = str(cpus)
    return found


def kept_back(
    labels: Mapping[str, str], capacity: Mapping[str, str | int], allocatable: Mapping[str, str | int]
) -> tuple[int, int]:
    """(milli-CPU, bytes) to take off the zones: capacity - allocatable of the Node, when its label asks for it.

    A figure that cannot be read takes nothing off.
    """
    if labels.get(NUMA_RESERVATION) != "true":
        return 0, 0
    return (
        _difference(capacity.get("cpu"), allocatable.get("cpu"), parse_mcpu),
        _difference(capacity.get("memory"), allocatable.get("memory"), parse_units),
    )


def _difference(capacity: str | int | None, allocatable: str | int | None, read: Any) -> int:
    if capacity is None or allocatable is None:
        return 0
    try:
        return max(0, int(read(str(capacity))) - int(read(str(allocatable))))
    except (ValueError, ArithmeticError):
        return 0


def _cpus(text: str) -> CpuSet | None:
    try:
        return CpuSet.parse(text)
    except ValueError:
        return None


def _read(annotations: Mapping[str, str], key: str, shape: Shape) -> dict[str, Any]:
    """{} when absent or malformed; config/nodefile.py names the fault where the same text is obeyed."""
    try:
        found = read_annotation(key, annotations.get(key, "null"))
        checked: dict[str, Any] = {} if found is None else shape.check(found, At(key))
    except PolicyError:
        return {}
    return checked


_RESERVATION: Final = Record({"resources": MapOf(QuantityText()), "reservedCPUs": Text(), "applyPolicy": Text()})
_SYSTEM_QOS: Final = Record({"cpuset": Text(), "cpusetExclusive": Bool()})
