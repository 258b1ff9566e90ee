"""Checkpoint files of the peak predictor: what they hold and which are kept after a restart (spec/collect 6.4).

One JSON file per model, named after it: a pod's uid or a node item. Format, shared with the reference:
`{"UID", "CPU": {"referenceTimestamp", "bucketWeights": {"<index>": 1..10000}, "totalWeight"}, "Memory": {...},
"LastUpdated"}`, bucket weights relative to the heaviest one's 10000. A file is replaced as a whole; one that is torn or
belongs to nobody any more is deleted and stops nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from koordlet.model.qos import PriorityClass
from koordlet.store.histogram import CPU, MEMORY, Histogram

log = structlog.get_logger(__name__)

NODE: Final = "__node__"
SYSTEM: Final = "__node-sys__"


def class_item(priority: PriorityClass) -> str:
    """The model of all pods of a class; "__node-__": pods without one."""
    return f"__node-{priority.value}__"


NODE_ITEMS: Final = frozenset({NODE, SYSTEM, *map(class_item, PriorityClass)})
"""The node's own models: whole node, system, and one per priority class."""
WEIGHT_MAX: Final = 10_000
MAX_BYTES: Final = 64 * 1024
_HALF: Final = ".tmp"


@dataclass(frozen=True, slots=True)
class Buckets:
    """A decayed histogram. weights: bucket index -> weight, scaled to total_weight. None: no sample yet."""

    reference_s: float | None
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
            with suppress(OSError):  # of a read-only file system: it is left out all the same
                path.unlink(missing_ok=True)
    return kept


def save(directory: Path, name: str, cpu: Histogram, memory: Histogram, now_s: float) -> None:
    """Writes one model's file; now_s: wall clock. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    half = directory / f"{name}{_HALF}"
    half.write_text(_render(name, cpu, memory, now_s), "utf-8")
    half.replace(directory / name)


def remove(directory: Path, name: str) -> None:
    """Raises OSError."""
    (directory / name).unlink(missing_ok=True)


def _render(name: str, cpu: Histogram, memory: Histogram, now_s: float) -> str:
    return json.dumps({"UID": name, "CPU": _saved(cpu), "Memory": _saved(memory), "LastUpdated": _time(now_s)})


def _saved(histogram: Histogram) -> dict[str, object]:
    top = max(histogram.weights.values(), default=0.0)
    rounded = {
        str(index): math.floor(weight * WEIGHT_MAX / top + 0.5) if top > 0 else 0
        for index, weight in sorted(histogram.weights.items())
    }
    return {
        "referenceTimestamp": None if histogram.reference_s is None else _time(histogram.reference_s),
        "bucketWeights": {index: weight for index, weight in rounded.items() if weight > 0},
        "totalWeight": histogram.total,
    }


def _time(at_s: float) -> str:
    """RFC 3339, whole seconds."""
    return datetime.fromtimestamp(math.floor(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text: str) -> Checkpoint:
    """Raises ValueError for anything that is not a whole checkpoint."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    cpu, memory = (_buckets(found.get(key), key, n) for key, n in (("CPU", CPU.count), ("Memory", MEMORY.count)))
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
        if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= WEIGHT_MAX:
            raise ValueError(f"{key}.bucketWeights[{index}]={weight!r} is not in 0..{WEIGHT_MAX}")
        raw[int(index)] = weight
    scale = total / sum(raw.values()) if sum(raw.values()) else 0.0
    weights = {index: weight * scale for index, weight in raw.items()}
    reference_s = _seconds(found.get("referenceTimestamp"), key)
    if weights and reference_s is None:
        raise ValueError(f"{key} has weights and no referenceTimestamp")
    return Buckets(reference_s, weights, float(total))


def _seconds(text: Any, key: str) -> float | None:
    """Wall-clock seconds; None for Go's zero time, which stands for "no sample yet"."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}.referenceTimestamp={text!r} is no time") from error
    if at.tzinfo is None:
        raise ValueError(f"{key}.referenceTimestamp={text!r} has no zone")
    return None if at.year == 1 else at.timestamp()
