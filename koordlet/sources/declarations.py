"""Workload declarations of a machine without (or beside) a cluster: `LocalWorkloadList` files (spec/ledger 6.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from koordlet.config.documents import read_document
from koordlet.config.nodeslo_schema import PRIORITY_TEXTS, QOS_TEXTS
from koordlet.config.schema import Anything, At, Bool, Int, ListOf, Quantity, Record, Text
from koordlet.model.pinning import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy, PinRequest
from koordlet.model.pod import Resources
from koordlet.model.qos import Qos
from koordlet.model.quantity import parse_mcpu, parse_units

MAX_ITEMS: Final = 1000
_GLOB: Final = re.compile(r"[*?\[]")


class Rank(IntEnum):
    """How specific a match is; the smallest wins (spec/ledger 6.3, point 2)."""

    PID_FILE = 0
    UNIT = 2
    UNIT_GLOB = 3
    CGROUP = 4
    CGROUP_GLOB = 5


@dataclass(frozen=True, slots=True)
class Match:
    """What a declaration applies to. text: a path without outer slashes, a unit name, or a pid file."""

    rank: Rank
    text: str

    @property
    def literal(self) -> int:
        """Length of the text before its first wildcard."""
        found = _GLOB.search(self.text)
        return found.start() if found else len(self.text)

    @property
    def many(self) -> bool:
        """It may match several cgroups."""
        return self.rank in (Rank.UNIT_GLOB, Rank.CGROUP_GLOB)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One item of a file. where: "file: items[n]", for messages."""

    where: str
    namespace: str
    name: str
    match: Match
    qos: Qos
    priority_class: str | None = None
    priority: int | None = None
    requests: Resources = field(default_factory=Resources)
    limits: Resources = field(default_factory=Resources)
    pin: PinRequest = field(default_factory=PinRequest)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Declarations:
    """A file's content. unmatched: class of what nobody declared, None where the file does not say."""

    items: tuple[Declaration, ...] = ()
    unmatched: Qos | None = None
    warnings: tuple[str, ...] = ()


def load_declarations(path: Path, *, strict: bool = False) -> Declarations:
    """A declarations file. Unknown keys are warnings, errors where strict. Raises PolicyError, OSError."""
    at = At(str(path), strict=strict)
    found: dict[str, Any] = _FILE.check(read_document(path), at)
    if found.get("kind", "LocalWorkloadList") != "LocalWorkloadList":
        raise at.below("kind").error(found["kind"], "LocalWorkloadList")
    items: dict[str, Declaration] = {}
    for index, item in enumerate(found.get("items", [])):
        made = _declaration(item, at.below("items").below(index))
        if made.key in items:
            raise at.below("items").below(index).below("name").error(item["name"], "a name used once per namespace")
        items[made.key] = made
    unmatched = found.get("defaults", {}).get("unmatched")
    return Declarations(tuple(items.values()), Qos(unmatched) if unmatched else None, tuple(at.warnings))


def _declaration(item: dict[str, Any], at: At) -> Declaration:
    for key in _LATER:
        if key in item:
            at.warnings.append(f"{at.file}: {at.below(key).key}: accepted, but not used yet")
    return Declaration(
        where=f"{at.file}: {at.key}",
        namespace=item.get("namespace", "local"),
        name=item["name"],
        match=_match(item["match"], at.below("match")),
        qos=Qos(item["qos"]),
        priority_class=item.get("priorityClass"),
        priority=item.get("priority"),
        requests=_resources(item.get("requests", {})),
        limits=_resources(item.get("limits", {})),
        pin=_pin(item.get("cpu", {})),
    )


def _match(found: dict[str, Any], at: At) -> Match:
    for key in ("container", "user"):
        if key in found:
            raise at.below(key).error(found[key], "cgroup, systemd or pidFile; this kind is not supported yet")
    if len(found) != 1:
        raise at.error(", ".join(found) or None, "exactly one of cgroup, systemd, pidFile")
    ((kind, text),) = found.items()
    if kind == "pidFile":
        if not text.startswith("/"):
            raise at.below(kind).error(text, "an absolute path")
        return Match(Rank.PID_FILE, text)
    if kind == "systemd":
        if "/" in text or text.startswith("."):
            raise at.below(kind).error(text, "a unit name such as nginx.service or batch-*.scope")
        return Match(Rank.UNIT_GLOB if _GLOB.search(text) else Rank.UNIT, text)
    path = text.strip("/")
    parts = path.split("/")
    if not path or "" in parts or "." in parts or ".." in parts or "**" in path:
        raise at.below(kind).error(text, "a cgroup path below the root; * stands for one level or a part of it")
    return Match(Rank.CGROUP_GLOB if _GLOB.search(path) else Rank.CGROUP, path)


def _resources(found: dict[str, Any]) -> Resources:
    return Resources(
        cpu_mcpu=found.get("cpu"),
        memory_bytes=found.get("memory"),
        batch_cpu_mcpu=found.get("batch-cpu", found.get("kubernetes.io/batch-cpu")),
        batch_memory_bytes=found.get("batch-memory", found.get("kubernetes.io/batch-memory")),
        mid_cpu_mcpu=found.get("mid-cpu", found.get("kubernetes.io/mid-cpu")),
        mid_memory_bytes=found.get("mid-memory", found.get("kubernetes.io/mid-memory")),
    )


def _pin(found: dict[str, Any]) -> PinRequest:
    return PinRequest(
        bind=BindPolicy(found.get("bindPolicy", BindPolicy.DEFAULT)),
        required=found.get("required", False),
        exclusive=ExclusivePolicy(found.get("exclusive", ExclusivePolicy.NONE)),
        numa=NumaPolicy(found.get("numaPolicy", NumaPolicy.NONE)),
        numa_exclusive=NumaExclusive(found.get("numaExclusive", NumaExclusive.NONE)),
    )


class _Name:
    """A name that can stand in `namespace/name`."""

    def check(self, value: object, at: At) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise at.error(value, "letters, digits, '-', '_' and '.', at most 63")
        return value


_NAME: Final = re.compile(r"[0-9A-Za-z]([0-9A-Za-z._-]{0,62})")
_CPU: Final = Quantity(parse_mcpu)
_UNITS: Final = Quantity(parse_units)
_AMOUNTS: Final = Record(
    {
        "cpu": _CPU,
        "memory": _UNITS,
        "batch-cpu": _UNITS,
        "batch-memory": _UNITS,
        "mid-cpu": _UNITS,
        "mid-memory": _UNITS,
        "kubernetes.io/batch-cpu": _UNITS,
        "kubernetes.io/batch-memory": _UNITS,
        "kubernetes.io/mid-cpu": _UNITS,
        "kubernetes.io/mid-memory": _UNITS,
    }
)
_LATER: Final = ("slo", "evict", "contract")
_ITEM: Final = Record(
    {
        "name": _Name(),
        "namespace": _Name(),
        "match": Record(
            {
                "cgroup": Text(required=True),
                "systemd": Text(required=True, longest=255),
                "pidFile": Text(required=True),
                "container": Anything(),
                "user": Anything(),
            }
        ),
        "qos": Text(QOS_TEXTS),
        "priorityClass": Text(PRIORITY_TEXTS),
        "priority": Int(-(2**31), 2**31 - 1),
        "requests": _AMOUNTS,
        "limits": _AMOUNTS,
        "cpu": Record(
            {
                "bindPolicy": Text(tuple(BindPolicy)),
                "required": Bool(),
                "exclusive": Text(tuple(ExclusivePolicy)),
                "numaPolicy": Text(tuple(NumaPolicy)),
                "numaExclusive": Text(("Preferred", "Required")),
            }
        ),
        **dict.fromkeys(_LATER, Anything()),
    },
    required=("name", "match", "qos"),
)
_FILE: Final = Record(
    {
        "apiVersion": Anything(),
        "kind": Anything(),
        "metadata": Anything(),
        "items": ListOf(_ITEM, longest=MAX_ITEMS),
        "defaults": Record({"unmatched": Text(("SYSTEM", "LS", "BE"))}),
    }
)
