"""Checkpoint files of the peak predictor: which are kept after a restart, and what they hold (spec/collect 6.4).

One JSON file per model, named after it: a pod's uid or a node item. Format, shared with the reference:
`{"UID", "CPU": {"referenceTimestamp", "bucketWeights": {"<index>": 1..10000}, "totalWeight"}, "Memory": {...},
"LastUpdated"}`. A file that is torn or belongs to nobody any more is deleted and stops nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from koordlet.model.qos import PriorityClass

log = structlog.get_logger(__name__)

NODE_ITEMS: Final = frozenset(
    {"__node__", "__node-sys__", *(f"__node-{priority.value}__" for priority in PriorityClass)}
)
"""The node's own models: whole node, system, and one per priority class ("__node-__": pods without a class)."""
CPU_BUCKETS: Final = 158
MEMORY_BUCKETS: Final = 205
MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Buckets:
    """A decayed histogram. weights: bucket index -> weight, scaled to total_weight. reference: RFC 3339 text."""

    reference: str
    weights: dict[int, float]
    total_weight: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    cpu: Buckets
    memory: Buckets
    last_updated: str


def restore(directory: Path, pod_uids: Collection[str]) -> dict[str, Checkpoint]:
    """Models by name. Deletes temporary files, broken files and those of no current pod or node item."""
    kept: dict[str, Checkpoint] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not path.is_file():
            continue
        try:
            if path.name not in NODE_ITEMS and path.name not in pod_uids:
                raise ValueError("neither a known pod nor an item of the node")
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"larger than {MAX_BYTES} bytes")
            kept[path.name] = parse(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            log.info("checkpoint.dropped", path=str(path), reason=str(error))
            path.unlink(missing_ok=True)
    return kept


def parse(text: str) -> Checkpoint:
    """Raises ValueError for anything that is not a whole checkpoint."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    cpu, memory = (_buckets(found.get(key), key, n) for key, n in (("CPU", CPU_BUCKETS), ("Memory", MEMORY_BUCKETS)))
    return Checkpoint(cpu, memory, str(found.get("LastUpdated", "")))


def _buckets(found: Any, key: str, count: int) -> Buckets:
    if not isinstance(found, dict) or not isinstance(found.get("bucketWeights"), dict):
        raise ValueError(f"{key} is not a histogram")
    total, raw = found.get("totalWeight"), {}
    if not isinstance(total, (int, float)) or isinstance(total, bool) or not 0 <= total < float("inf"):
        raise ValueError(f"{key}.totalWeight={total!r} is not a weight")
    for index, weight in found["bucketWeights"].items():
        if not (index.isascii() and index.isdigit() and int(index) < count):
            raise ValueError(f"{key}.bucketWeights: {index!r} is no bucket in 0..{count - 1}")
        if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= 10_000:
            raise ValueError(f"{key}.bucketWeights[{index}]={weight!r} is not in 0..10000")
        raw[int(index)] = weight
    scale = total / sum(raw.values()) if sum(raw.values()) else 0.0
    weights = {index: weight * scale for index, weight in raw.items()}
    return Buckets(str(found.get("referenceTimestamp", "")), weights, float(total))
