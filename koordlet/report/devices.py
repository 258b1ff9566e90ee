"""The node's Device object: what the scheduler gives away of accelerators and RDMA functions (spec/api 1.4). Pure.

beyond: compared without times, so an unhealthy device is no update every 3 s; what others wrote stays.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from koordlet.model.device import GPU, RDMA, Device, DeviceSet
from koordlet.report.topology import owner
from koordlet.sources.nvidia import DRIVER_LABEL
from koordlet.sources.xpu import MODEL_LABEL, PARTITION_LABEL, PARTITIONS, VENDOR_LABEL

API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
KIND: Final = "Device"
HEALTHY: Final = "Healthy"
_OUR_KINDS: Final = (GPU, RDMA)
_OUR_LABELS: Final = (VENDOR_LABEL, MODEL_LABEL, DRIVER_LABEL, PARTITION_LABEL)


def desired(node: str, uid: str, found: DeviceSet) -> dict[str, Any]:
    """The whole object; its conditions carry no times yet."""
    rows = sorted(found.devices, key=lambda device: (device.kind, device.minor, device.id))
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": node,
            "labels": dict(found.labels),
            "annotations": dict(found.annotations),
            "ownerReferences": [owner(node, uid)],
        },
        "spec": {"devices": [device_object(device) for device in rows]},
    }


def device_object(device: Device) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": device.kind,
        "id": device.id,
        "minor": device.minor,
        "health": device.healthy,
        "resources": dict(device.resources),
    }
    if device.place is not None:
        place = {"socketID": -1, "nodeID": device.place.node, "pcieID": device.place.pcie, "busID": device.place.bus}
        made["topology"] = {key: value for key, value in place.items() if value != "" or key == "pcieID"}
    if device.functions is not None:
        made["vfGroups"] = [{"vfs": [{"minor": -1, "busID": bus} for bus in device.functions]}]
    if device.health is not None:
        made["conditions"] = [_condition(device)]
    return made


def _condition(device: Device) -> dict[str, str]:
    assert device.health is not None
    if device.health.healthy:
        return {"type": HEALTHY, "status": "True", "reason": "DeviceHealthy", "message": "device is healthy"}
    return {
        "type": HEALTHY,
        "status": "False",
        "reason": device.health.code or "Unknown",
        "message": device.health.message or "device is unhealthy",
    }


def merged(current: Mapping[str, Any], wanted: Mapping[str, Any], wall_s: float) -> dict[str, Any] | None:
    """The object to write in place of `current`, or None when all that is ours already stands there."""
    metadata = dict(_object(current.get("metadata")))
    spec = dict(_object(current.get("spec")))
    before = [row for row in spec.get("devices") or () if isinstance(row, dict)]
    theirs = [row for row in before if row.get("type") not in _OUR_KINDS]
    ours = wanted["spec"]["devices"]
    labels = _laid_over(_object(metadata.get("labels")), wanted["metadata"]["labels"], _OUR_LABELS)
    texts = _laid_over(_object(metadata.get("annotations")), wanted["metadata"]["annotations"], (PARTITIONS,))
    (reference,) = wanted["metadata"]["ownerReferences"]
    owners = metadata.get("ownerReferences") or []
    same = (
        [_timeless(row) for row in before] == [*theirs, *ours]
        and labels == _object(metadata.get("labels"))
        and texts == _object(metadata.get("annotations"))
        and reference in owners
    )
    if same:
        return None
    metadata |= {"labels": labels, "annotations": texts}
    others = (one for one in owners if not isinstance(one, dict) or one.get("kind") != "Node")
    metadata["ownerReferences"] = [*others, reference]
    metadata.pop("managedFields", None)
    return {**current, "metadata": metadata, "spec": {**spec, "devices": [*theirs, *timed(ours, before, wall_s)]}}


def timed(rows: list[dict[str, Any]], before: list[dict[str, Any]], wall_s: float) -> list[dict[str, Any]]:
    """With the moment of the last change in each condition: of before, while its status is the same."""
    known = {
        (row.get("id"), one.get("type")): one
        for row in before
        for one in row.get("conditions") or ()
        if isinstance(one, dict)
    }
    now = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = copy.deepcopy(rows)
    for row in made:
        for one in row.get("conditions", ()):
            old = known.get((row["id"], one["type"]), {})
            kept = old.get("lastTransitionTime") if old.get("status") == one["status"] else None
            one["lastTransitionTime"] = kept or now
    return made


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    conditions = row.get("conditions")
    if row.get("type") not in _OUR_KINDS or not isinstance(conditions, list):
        return row
    kept = [{key: text for key, text in one.items() if key != "lastTransitionTime"} for one in conditions]
    return {**row, "conditions": kept}


def _laid_over(held: dict[str, Any], wanted: dict[str, str], owned: tuple[str, ...]) -> dict[str, Any]:
    return {**{key: text for key, text in held.items() if key not in owned}, **wanted}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
