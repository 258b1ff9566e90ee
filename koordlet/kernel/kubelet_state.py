"""The kubelet's checkpoint of the static CPU manager, `<kubelet root>/cpu_manager_state`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from koordlet.kernel.errors import KernelFileError, is_gone
from koordlet.kernel.host import Host
from koordlet.model.cpuset import CpuSet

_NAME = "cpu_manager_state"


@dataclass(frozen=True, slots=True)
class KubeletCpus:
    """pods: pod UID -> its containers' exclusive CPUs. exclusive: all of them, also those of the old layout,
    which names containers only. shared: online CPUs that nobody owns."""

    policy: str
    pods: dict[str, CpuSet] = field(default_factory=dict)
    exclusive: CpuSet = field(default_factory=CpuSet)
    shared: CpuSet = field(default_factory=CpuSet)


def read_cpu_manager_state(host: Host, online: CpuSet) -> KubeletCpus | None:
    """None without a checkpoint (no kubelet here). Raises OSError, or KernelFileError for garbage."""
    path = host.kubelet_root / _NAME
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        if is_gone(error):
            return None
        raise
    try:
        return parse_cpu_manager_state(text, online)
    except KernelFileError as error:
        raise error.at(path) from None


def parse_cpu_manager_state(text: str, online: CpuSet) -> KubeletCpus:
    """Both layouts: `{pod UID: {container: cpus}}`, and `{container id: cpus}` of kubelets before 1.18.

    `defaultCpuSet` is not used: it goes stale when a machine is resized, so shared is computed from `online`.
    The checksum is the kubelet's own affair. Raises KernelFileError; nothing of a faulty file is used.
    """
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KernelFileError(_NAME, f"no JSON: {error}", text) from None
    if not isinstance(state, dict) or not isinstance(state.get("policyName"), str):
        raise KernelFileError(_NAME, "no policyName", text)
    entries = {} if state.get("entries") is None else state["entries"]
    if not isinstance(entries, dict):
        raise KernelFileError(_NAME, "entries is no object", text)
    pods: dict[str, CpuSet] = {}
    exclusive = CpuSet()
    for key, entry in entries.items():
        if isinstance(entry, dict):
            cpus = CpuSet()
            for container, owned in entry.items():
                cpus |= _cpus(f"entries.{key}.{container}", owned)
            pods[key] = cpus
        else:
            cpus = _cpus(f"entries.{key}", entry)
        exclusive |= cpus
    return KubeletCpus(state["policyName"], pods, exclusive, online - exclusive)


def _cpus(key: str, value: object) -> CpuSet:
    if not isinstance(value, str):
        raise KernelFileError(_NAME, f"{key} is no CPU list", repr(value))
    try:
        return CpuSet.parse(value)
    except ValueError as error:
        raise KernelFileError(_NAME, f"{key}: {error}", value) from None
