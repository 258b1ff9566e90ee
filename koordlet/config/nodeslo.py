"""The effective NodeSLO: what was received, over the built-in defaults, disabled classes neutral (spec/api 1.2.6)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordlet.config import nodeslo_schema as table
from koordlet.config.documents import read_document
from koordlet.config.schema import Anything, At, Record
from koordlet.config.slo_burst import typed_burst
from koordlet.config.slo_network import network
from koordlet.config.slo_qosloops import blkio_classes, memory_classes, system_strategy
from koordlet.model.pod import HostApp
from koordlet.model.qos import Qos
from koordlet.model.slo import CpuEvictPolicy, CpuPolicy, CpuQos, NodeSlo, ResctrlQos, SuppressPolicy, Threshold

HostAppDir = Callable[[str, str, dict[str, str] | None], str]
"""(name, qos, cgroupPath or None) -> cgroup path; raises ValueError. kernel.kubepods.host_app_dir, curried."""


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy file's content. Its warnings name unknown keys."""

    slo: NodeSlo
    effective: dict[str, Any]
    warnings: tuple[str, ...] = ()


def load_policy(path: Path, host_app_dir: HostAppDir) -> LoadedPolicy:
    """A policy file: a NodeSLO object or its bare spec, YAML or JSON. Raises PolicyError, OSError."""
    at = At(str(path))
    document = read_document(path)
    if isinstance(document, dict) and {"kind", "apiVersion", "spec"} & document.keys():
        found = _OBJECT.check(document, at)
        if found.get("kind", "NodeSLO") != "NodeSLO":
            raise at.below("kind").error(found["kind"], "NodeSLO")
        document, at = found.get("spec", {}), at.below("spec")
    return load_spec(document, host_app_dir, at)


def load_spec(spec: object, host_app_dir: HostAppDir, at: At) -> LoadedPolicy:
    """A received `spec`, None for an empty one. Raises PolicyError."""
    effective = merge(spec, at)
    return LoadedPolicy(_typed(effective, host_app_dir, at), effective, tuple(at.warnings))


def decode(spec: object, *, host_app_dir: HostAppDir, file: str = "NodeSLO") -> NodeSlo:
    """A received `spec`, None for none yet, as the control loops see it. Raises PolicyError."""
    at = At(file)
    return _typed(merge(spec, at), host_app_dir, at)


def merge(received: object, at: At | None = None) -> dict[str, Any]:
    """The effective spec in the NodeSLO's own keys.

    received: a spec, None for none. Objects merge, arrays and scalars replace; unknown keys and `extensions`
    are dropped. Raises PolicyError for a wrong type or a value out of range, and then nothing holds.
    """
    at = at or At("NodeSLO")
    clean = {} if received is None else table.SPEC.check(received, at)
    effective: dict[str, Any] = {name: _overlay(table.DEFAULTS[name], clean.get(name, {})) for name in table.SECTIONS}
    effective["hostApplications"] = clean.get("hostApplications", [])
    _check_pairs(effective, at)
    classes = effective["resourceQOSStrategy"]
    for name in table.NEUTRALISED_CLASSES:
        for block in table.NEUTRALISED_BLOCKS:
            if not classes[name][block]["enable"]:
                classes[name][block] = copy.deepcopy(table.NEUTRAL[block])
    return effective


def _overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(base)
    for name, value in top.items():
        below = merged.get(name)
        merged[name] = _overlay(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _check_pairs(effective: dict[str, Any], at: At) -> None:
    section = "resourceUsedThresholdWithBE"
    for lower, upper in table.ORDERED:
        values = effective[section]
        if lower in values and upper in values and values[lower] >= values[upper]:
            raise at.below(section).below(lower).error(values[lower], f"less than {upper} ({values[upper]})")
    strategy = at.below("resourceQOSStrategy")
    for name, blocks in effective["resourceQOSStrategy"].items():
        cat = blocks.get("resctrlQOS") or {}
        start, end = cat.get("catRangeStartPercent", 0), cat.get("catRangeEndPercent", 100)
        if start >= end:
            where = strategy.below(name).below("resctrlQOS").below("catRangeStartPercent")
            raise where.error(start, f"less than catRangeEndPercent ({end})")


def _typed(effective: dict[str, Any], host_app_dir: HostAppDir, at: At) -> NodeSlo:
    classes = effective["resourceQOSStrategy"]
    return NodeSlo(
        threshold=_threshold(effective["resourceUsedThresholdWithBE"]),
        lsr_cpu=_cpu_qos(classes["lsrClass"]),
        ls_cpu=_cpu_qos(classes["lsClass"]),
        be_cpu=_cpu_qos(classes["beClass"]),
        system_cpu=_cpu_qos(classes["systemClass"]),
        cpu_policy=CpuPolicy(classes["policies"]["cpuPolicy"]),
        network=network(effective, at),
        burst=typed_burst(effective["cpuBurstStrategy"]),
        lsr_resctrl=_resctrl_qos(classes["lsrClass"]),
        ls_resctrl=_resctrl_qos(classes["lsClass"]),
        be_resctrl=_resctrl_qos(classes["beClass"]),
        memory=memory_classes(classes),
        blkio=blkio_classes(classes),
        system=system_strategy(effective["systemStrategy"], at.below("systemStrategy")),
        host_apps=_host_apps(effective["hostApplications"], host_app_dir, at.below("hostApplications")),
    )


def _threshold(found: dict[str, Any]) -> Threshold:
    return Threshold(
        enable=found["enable"],
        cpu_suppress_threshold_percent=found["cpuSuppressThresholdPercent"],
        cpu_suppress_min_percent=found.get("cpuSuppressMinPercent"),
        cpu_suppress_policy=SuppressPolicy(found["cpuSuppressPolicy"]),
        memory_evict_threshold_percent=found["memoryEvictThresholdPercent"],
        memory_evict_lower_percent=found.get("memoryEvictLowerPercent"),
        memory_allocatable_evict_threshold_percent=found.get("memoryAllocatableEvictThresholdPercent"),
        memory_allocatable_evict_lower_percent=found.get("memoryAllocatableEvictLowerPercent"),
        cpu_evict_be_satisfaction_upper_percent=found.get("cpuEvictBESatisfactionUpperPercent"),
        cpu_evict_be_satisfaction_lower_percent=found.get("cpuEvictBESatisfactionLowerPercent"),
        cpu_evict_be_usage_threshold_percent=found.get("cpuEvictBEUsageThresholdPercent"),
        cpu_evict_time_window_s=found.get("cpuEvictTimeWindowSeconds"),
        cpu_evict_threshold_percent=found.get("cpuEvictThresholdPercent"),
        cpu_evict_lower_percent=found.get("cpuEvictLowerPercent"),
        cpu_allocatable_evict_threshold_percent=found.get("cpuAllocatableEvictThresholdPercent"),
        cpu_allocatable_evict_lower_percent=found.get("cpuAllocatableEvictLowerPercent"),
        cpu_evict_policy=CpuEvictPolicy(found["cpuEvictPolicy"]),
        evict_enabled_priority_threshold=found.get("evictEnabledPriorityThreshold"),
        allocatable_evict_priority_threshold=found.get("allocatableEvictPriorityThreshold"),
    )


def _cpu_qos(blocks: dict[str, Any]) -> CpuQos:
    cpu = blocks["cpuQOS"]
    return CpuQos(cpu["enable"], cpu["groupIdentity"], cpu["schedIdle"], cpu["coreExpeller"])


def _resctrl_qos(blocks: dict[str, Any]) -> ResctrlQos:
    cat = blocks["resctrlQOS"]
    return ResctrlQos(cat["enable"], cat["catRangeStartPercent"], cat["catRangeEndPercent"], cat["mbaPercent"])


def _host_apps(items: list[dict[str, Any]], host_app_dir: HostAppDir, at: At) -> tuple[HostApp, ...]:
    apps: dict[str, HostApp] = {}
    for index, item in enumerate(items):
        here, name, qos, path = at.below(index), item["name"], item.get("qos", ""), item.get("cgroupPath")
        if name in apps:
            raise here.below("name").error(name, "a name used once")
        try:
            cgroup = host_app_dir(name, qos, path)
        except ValueError as error:
            raise here.below("cgroupPath").error(path, f"a cgroup path ({error})") from error
        apps[name] = HostApp(
            name=name,
            cgroup=cgroup,
            qos=Qos(qos) if qos else None,
            priority_class=item.get("priority", ""),
            # compat: only this combination is best effort for suppress (spec/api 1.2.5).
            is_be=qos == "BE" and (path or {}).get("base") == "KubepodsBesteffort",
        )
    return tuple(apps.values())


_OBJECT: Final = Record(
    {"apiVersion": Anything(), "kind": Anything(), "metadata": Anything(), "spec": Anything(), "status": Anything()}
)
