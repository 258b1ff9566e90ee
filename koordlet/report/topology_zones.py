"""Zones of a NodeResourceTopology: one per NUMA node, each resource with capacity, allocatable, available. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordlet.model.quantity import format_bytes, format_mcpu, parse_quantity

HUGE_2M: Final = 2 << 20
HUGE_1G: Final = 1 << 30
_NAMES: Final = {HUGE_1G: "hugepages-1Gi", HUGE_2M: "hugepages-2Mi"}


@dataclass(frozen=True, slots=True)
class Zone:
    """memory_bytes: without huge pages. reserved_*: what the Node keeps back here; memory in thousandths of a byte,
    because an equal share of it need not be whole. hugepages: page size -> bytes, 1 GiB and 2 MiB only."""

    node: int
    cpus: int
    memory_bytes: int
    hugepages: tuple[tuple[int, int], ...] = ()
    reserved_mcpu: int = 0
    reserved_mbytes: int = 0


def zones(
    cpus: Mapping[int, int],
    memory: Mapping[int, int | None],
    hugepages: Mapping[int, Mapping[int, int]] | None,
    reserved_mcpu: int = 0,
    reserved_bytes: int = 0,
) -> tuple[Zone, ...]:
    """One zone per NUMA node, by id. cpus, memory: per node. hugepages: None while they are not reported.

    reserved_*: of the whole Node, split evenly, rounded up. Raises ValueError when a node's memory is not known: 0
    would be a lie that the scheduler believes.
    """
    made, count = [], len(memory)
    for node, total in sorted(memory.items()):
        if total is None:
            raise ValueError(f"the memory of NUMA node {node} cannot be read")
        pages = {size: (hugepages or {}).get(node, {}).get(size, 0) for size in _NAMES}
        made.append(
            Zone(
                node,
                cpus.get(node, 0),
                max(0, total - sum(pages.values())),
                tuple(pages.items()),
                -(-reserved_mcpu // count),
                -(-reserved_bytes * 1000 // count),
            )
        )
    return tuple(made)


def zone_object(zone: Zone) -> dict[str, Any]:
    cpu_mcpu, memory_mbytes = zone.cpus * 1000, zone.memory_bytes * 1000
    free_mcpu = max(0, cpu_mcpu - zone.reserved_mcpu)
    free_mbytes = max(0, memory_mbytes - zone.reserved_mbytes)
    resources = [_resource("cpu", format_mcpu(cpu_mcpu), format_mcpu(free_mcpu))]
    pages = {size: format_bytes(held) for size, held in zone.hugepages}
    resources += [_resource(name, pages.get(size, "0"), pages.get(size, "0")) for size, name in _NAMES.items()]
    resources.append(_resource("memory", format_bytes(zone.memory_bytes), _mbytes(free_mbytes)))
    return {"name": f"node-{zone.node}", "type": "Node", "resources": resources}


def merged_zones(current: object, wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The zones to write, None when ours stand there as they should.

    beyond: resource by resource, all three figures; the reference merges through `allocatable` alone and so loses the
    capacity. Zones that are not ours go, as in the reference.
    """
    rows = current if isinstance(current, list) else []
    known = {row.get("name"): row for row in rows if isinstance(row, dict)}
    same = len(rows) == len(wanted) == len(known)
    made = []
    for zone in wanted:
        before = known.get(zone["name"], {})
        listed = before.get("resources") if isinstance(before.get("resources"), list) else []
        held = {row.get("name"): row for row in listed or () if isinstance(row, dict)}
        ours = {row["name"]: row for row in zone["resources"]}
        same = same and before.get("type") == zone["type"]
        same = same and all(_equal(held.get(name), row) for name, row in ours.items())
        resources = sorted({**held, **ours}.values(), key=lambda row: str(row.get("name")))
        made.append({**before, "name": zone["name"], "type": zone["type"], "resources": resources})
    return None if same else made


def _equal(held: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> bool:
    """Quantities are compared by their amount."""
    if held is None:
        return False
    try:
        return all(
            parse_quantity(str(held.get(key))) == parse_quantity(ours[key])
            for key in ("capacity", "allocatable", "available")
        )
    except (ValueError, ArithmeticError):
        return False


def _resource(name: str, capacity: str, allocatable: str) -> dict[str, Any]:
    return {"name": name, "capacity": capacity, "allocatable": allocatable, "available": allocatable}


def _mbytes(value: int) -> str:
    """compat: what is not whole is told in thousandths of a byte."""
    return format_bytes(value // 1000) if value % 1000 == 0 else format_mcpu(value)
