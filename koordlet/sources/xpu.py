"""Accelerators that somebody else's agent describes in files: `-xpu-device-infos-dir`, JSON arrays (spec/api 1.4).

beyond: a malformed file or device is left out and named; the reference loses all of them, or gives it minor 0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from koordlet.config.documents import read_annotation
from koordlet.config.errors import PolicyError
from koordlet.config.reload import file_signature
from koordlet.config.schema import At, Bool, ListOf, MapOf, QuantityText, Record, Text
from koordlet.model.device import GPU, GPU_MEMORY_RATIO, Device, DeviceSet, Health, Place

VENDOR_LABEL: Final = "node.koordinator.sh/gpu-vendor"
MODEL_LABEL: Final = "node.koordinator.sh/gpu-model"
PARTITION_LABEL: Final = "node.koordinator.sh/gpu-partition-policy"
PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
MAX_FILES: Final = 64
MAX_BYTES: Final = 64 << 10


class XpuFiles:
    """Reads the directory again when a file in it changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: object = None
        self._known = DeviceSet()

    def poll(self) -> DeviceSet:
        """No directory is no device."""
        try:
            files = sorted(path for path in self._directory.iterdir() if path.is_file())
            seen = [(path.name, file_signature(path)) for path in files]
        except OSError as error:
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            return DeviceSet() if missing else DeviceSet(faults=(f"{self._directory}: {error.strerror}",))
        if seen != self._seen:
            self._seen, self._known = seen, read_files(files)
        return self._known


def read_files(files: list[Path]) -> DeviceSet:
    rows: list[dict[str, Any]] = []
    faults = (
        [f"{files[0].parent}: {len(files)} files, the first {MAX_FILES} are read"] if len(files) > MAX_FILES else []
    )
    for path in files[:MAX_FILES]:
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            found = read_annotation(str(path), data.decode("utf-8", "replace"))
        except (OSError, PolicyError) as error:
            faults.append(f"{path}: {error}")
            continue
        if not isinstance(found, list):
            faults.append(f"{path}: not a list of devices")
            continue
        for index, row in enumerate(found):
            try:
                checked = _DEVICE.check(row, At(str(path)).below(index))
                checked["minor"] = _number(checked["minor"])
                rows.append(checked)
            except (PolicyError, ValueError) as error:
                faults.append(f"{path}: device {index}: {error}")
    return _device_set(rows, faults)


def _device_set(rows: list[dict[str, Any]], faults: list[str]) -> DeviceSet:
    devices: dict[str, Device] = {}
    for row in rows:
        if row["uuid"] in devices:
            faults.append(f"device {row['uuid']}: named twice, the first one counts")
            continue
        devices[row["uuid"]] = _device(row)
    if not rows:
        return DeviceSet(faults=tuple(faults))
    labels = {MODEL_LABEL: rows[0].get("model", ""), VENDOR_LABEL: rows[0].get("vendor", "")}
    topology = rows[0].get("topology", {})
    if "p2pLinks" in topology:
        labels[PARTITION_LABEL] = "Honor" if topology.get("mustHonorPartition") else "Prefer"
    table = _partitions(rows)
    texts = {PARTITIONS: json.dumps(table, separators=(",", ":"))} if table else {}
    return DeviceSet(tuple(sorted(devices.values(), key=lambda found: found.id)), labels, texts, tuple(faults))


def _device(row: dict[str, Any]) -> Device:
    amounts = {GPU_MEMORY_RATIO: "100"}
    for name, text in row.get("resources", {}).items():
        amounts[f"koordinator.sh/{name}" if name in ("gpu-core", "gpu-memory") else name] = text
    topology, status = row.get("topology"), row.get("status")
    place = None
    if topology is not None:
        node = topology.get("nodeID", "")
        place = Place(_number(node) if node else -1, topology.get("pcieID", ""), topology.get("busID", ""))
    health = None
    if status is not None:
        health = Health(status.get("healthy", False), status.get("errCode", ""), status.get("errMessage", ""))
    return Device(GPU, row["uuid"], row["minor"], tuple(sorted(amounts.items())), place, health=health)


def _partitions(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Number of devices -> groups of them that are linked with each other, each once."""
    table: dict[str, list[dict[str, Any]]] = {}
    seen = set()
    for row in rows:
        for link in row.get("topology", {}).get("p2pLinks", ()):
            try:
                minors = sorted({row["minor"], *(_number(text) for text in link.get("peerMinor", "").split(","))})
            except ValueError:
                continue
            if not link.get("type") or tuple(minors) in seen:
                continue
            seen.add(tuple(minors))
            group = {"minors": minors, "gpuLinkType": link["type"], "allocationScore": 1}
            table.setdefault(str(len(minors)), []).append(group)
    return table


def _number(text: str) -> int:
    """A number told as text."""
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise ValueError(f"{text[:32]!r} is not a number such as 0")
    return int(text)


_LINK: Final = Record({"peerMinor": Text(), "type": Text(longest=64)}, open=True)
_TOPOLOGY: Final = Record(
    {
        "p2pLinks": ListOf(_LINK, longest=1024),
        "mustHonorPartition": Bool(),
        "socketID": Text(longest=64),
        "nodeID": Text(longest=64),
        "pcieID": Text(longest=64),
        "busID": Text(longest=64),
    },
    open=True,
)
_STATUS: Final = Record({"healthy": Bool(), "errCode": Text(longest=256), "errMessage": Text(longest=1024)}, open=True)
_DEVICE: Final = Record(
    {
        "vendor": Text(longest=63),
        "model": Text(longest=63),
        "uuid": Text(longest=253, required=True),
        "minor": Text(longest=16),
        "resources": MapOf(QuantityText()),
        "topology": _TOPOLOGY,
        "status": _STATUS,
    },
    required=("uuid", "minor"),
    open=True,
)
