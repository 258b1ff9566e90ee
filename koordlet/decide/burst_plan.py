"""Who may burst and how far: built once per change of pods or policy, so a tick only looks at the throttled. Pure.

A declared workload is its own only container; the limit that it declares has to be its cgroup's quota, as the
administrator set it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordlet.decide.base_quota import base_quota_us
from koordlet.model.burst import BurstPolicy, CpuBurst
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Container, Pod
from koordlet.model.qos import Qos
from koordlet.model.units import DEFAULT_PERIOD_US
from koordlet.model.view import NodeView
from koordlet.model.why import stages

NAME: Final = "burst"
ANNOTATION: Final = "koordinator.sh/cpuBurst"
QUOTA_MAX_US: Final = 2**44 - 1
"""Largest quota that the kernel takes."""
_SKIPPED: Final = (Qos.LSE, Qos.LSR, Qos.BE)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One running container whose quota may burst. key: its id. limit_mcpu: of the base, after normalisation."""

    key: str
    pod: Pod
    cgroup: str
    config: CpuBurst
    base_us: int
    ceiling_us: int
    labels: Labels

    @property
    def limit_mcpu(self) -> float:
        return self.base_us * 1000 / DEFAULT_PERIOD_US


@dataclass(frozen=True, slots=True)
class Plan:
    """kernel: burst decisions, which depend on nothing that moves. quota: by container key. limited: of those the ones
    that may burst for some time only. pod_base_us: by pod uid,
    where every container of the pod is limited. exclusive: cgroups of LSE and LSR pods. exclusive_mcpu: what they
    asked for."""

    kernel: tuple[Decision, ...] = ()
    quota: Mapping[str, Entry] = field(default_factory=dict)
    by_cgroup: Mapping[str, Entry] = field(default_factory=dict)
    limited: tuple[Entry, ...] = ()
    bases_us: tuple[tuple[str, int], ...] = ()
    pod_base_us: tuple[tuple[str, int], ...] = ()
    exclusive: tuple[str, ...] = ()
    exclusive_mcpu: int = 0
    gauges: tuple[tuple[str, Labels, float], ...] = ()
    notes: tuple[str, ...] = ()


def make_plan(view: NodeView, node: CpuBurst, ratio: float | None) -> Plan:
    """ratio: CPU normalisation, None where it is off."""
    kernel: list[Decision] = []
    quota: list[Entry] = []
    bases: list[tuple[str, int]] = []
    pod_bases: list[tuple[str, int]] = []
    gauges: list[tuple[str, Labels, float]] = []
    notes: list[str] = []
    exclusive = [pod for pod in view.pods.pods if pod.active and pod.qos in (Qos.LSE, Qos.LSR)]
    for pod in view.pods.pods:
        # A pinned pod without a class has no quota, by the pod rules; a second writer would fight them (seen 11).
        if pod.qos in _SKIPPED or not pod.active or (pod.qos is None and pod.cpuset is not None):
            continue
        wish = pod.settings.cpu_burst
        config = node if wish is None else wish.over(node)
        if wish is not None and wish.unknown_policy:
            bad = f"policy {wish.unknown_policy!r}, expected one of {_POLICIES}"
            notes.append(f"pod {pod.key}: {ANNOTATION}: {bad}: no burst")
        base = {c.name: base_quota_us(c.limits.cpu_mcpu, ratio) for c in pod.containers}
        whole = _whole_us(pod)
        pod_burst = 0
        for container in pod.containers:
            cgroup = pod.directory(container)
            if not cgroup:
                continue
            us = base[container.name]
            burst = _burst_us(container, us, config)
            labels = _labels(pod, container)
            gauges.append(("container_scaled_cfs_burst_us", labels, float(burst)))
            pod_burst += burst
            if burst:
                kernel.append(_kernel(cgroup, burst, us, config))
            if us > 0 and container.running and config.policy.quota:
                key = container.id or f"{pod.uid}/{container.name}"
                quota.append(Entry(key, pod, cgroup, config, us, _ceiling_us(us, config), labels))
            if us > 0:
                bases.append((cgroup, us))
        if whole is not None and not any(pod.directory(container) == pod.cgroup for container in pod.containers):
            bases.append((pod.cgroup, whole))
            pod_bases.append((pod.uid, whole))
            if pod_burst and pod.cgroup:
                kernel.append(_kernel(pod.cgroup, min(pod_burst, whole), whole, config))
    return Plan(
        kernel=tuple(kernel),
        quota={entry.key: entry for entry in quota},
        by_cgroup={entry.cgroup: entry for entry in quota},
        limited=tuple(entry for entry in quota if entry.config.quota_burst_period_s >= 0),
        bases_us=tuple(bases),
        pod_base_us=tuple(pod_bases),
        exclusive=tuple(pod.cgroup for pod in exclusive),
        exclusive_mcpu=sum(max(c.requests.cpu_mcpu or 0, 0) for pod in exclusive for c in pod.containers),
        gauges=tuple(gauges),
        notes=tuple(notes),
    )


def wanted_burst_us(limit_mcpu: int, percent: int) -> int:
    """The configured burst, before it is held within the quota: mainline kernels refuse a larger one (F-23)."""
    return limit_mcpu * percent * DEFAULT_PERIOD_US // 100_000


def _whole_us(pod: Pod) -> int | None:
    """The pod's quota as the kubelet sets it, None where a container has no limit. Not scaled by normalisation: the
    pod's group only has to be wide enough for its containers."""
    limits = [base_quota_us(container.limits.cpu_mcpu) for container in pod.containers]
    return sum(limits) if limits and all(us > 0 for us in limits) else None


def _burst_us(container: Container, base_us: int, config: CpuBurst) -> int:
    if not config.policy.kernel or base_us <= 0:
        return 0
    return min(wanted_burst_us(container.limits.cpu_mcpu or 0, config.cpu_burst_percent), base_us)


def _ceiling_us(base_us: int, config: CpuBurst) -> int:
    percent = config.quota_burst_percent
    return min(base_us * percent // 100, QUOTA_MAX_US) if percent > 100 else base_us


def _kernel(target: str, burst_us: int, quota_us: int, config: CpuBurst) -> Decision:
    why = stages(policy=config.policy.value, percent=config.cpu_burst_percent, base_us=quota_us, burst_us=burst_us)
    return Decision(target, Knob.CPU_BURST, burst_us, why, NAME)


def _labels(pod: Pod, container: Container) -> Labels:
    return (
        ("pod_namespace", pod.namespace),
        ("pod_name", pod.name),
        ("container_id", container.id),
        ("container_name", container.name),
    )


_POLICIES: Final = ", ".join(policy.value for policy in BurstPolicy)
