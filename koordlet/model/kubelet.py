"""What a kubelet's configuration says about CPUs and topology (its `/configz`). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """cpu_policy: none or static; cpu_options: its options, sorted. reserved_cpus: `reservedSystemCPUs`.
    reserved_mcpu: CPU of kubeReserved and systemReserved together. topology_policy, topology_scope: the topology
    manager's words ("single-numa-node", "container")."""

    cpu_policy: str = "none"
    cpu_options: tuple[tuple[str, str], ...] = ()
    reserved_cpus: CpuSet = field(default_factory=CpuSet)
    reserved_mcpu: int = 0
    topology_policy: str = "none"
    topology_scope: str = "container"
