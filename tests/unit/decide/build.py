"""Builders of views, topologies and policies for tests of strategies. CPU in cores where a name says cores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from koordlet.decide import suppress
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Pod, PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import NodeSlo, SuppressPolicy, Threshold
from koordlet.model.topology import Cpu, Topology
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy, Reading, Usage

CASES = Path(__file__).parents[2] / "cases"
ROOT = "kubepods/besteffort"
GATES = frozenset({"BECPUSuppress"})


def case(name: str, file: str) -> Any:
    return json.loads((CASES / name / file).read_text())


def topology(rows: Iterable[tuple[int, int, int, int]]) -> Topology:
    """From (id, core, socket, node), in the model's order."""
    cpus = [Cpu(id=cpu, core=core, socket=socket, node=node) for cpu, core, socket, node in rows]
    return Topology(cpus=tuple(sorted(cpus, key=lambda c: (c.node, c.socket, c.core, c.id))))


def lscpu(name: str) -> Topology:
    """Topology of a case's lscpu.txt (CPU NODE SOCKET CORE ...)."""
    lines = (CASES / name / "lscpu.txt").read_text().splitlines()[1:]
    numbers = [[int(text) for text in line.split()[:4]] for line in lines]
    return topology((cpu, core, socket, node) for cpu, node, socket, core in numbers)


P8 = topology((cpu, cpu // 2, cpu // 4, cpu // 4) for cpu in range(8))
"""2 sockets = 2 nodes x 2 cores x 2 threads, siblings i and i+1."""

T16 = topology((cpu, cpu % 8, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16))
"""2 nodes x 4 cores x 2 threads, siblings i and i+8."""


def flat(cpus: int) -> Topology:
    """One node without SMT."""
    return topology((cpu, cpu, 0, 0) for cpu in range(cpus))


def pinned(qos: Qos, cpus: str, name: str = "", **more: Any) -> Pod:
    name = name or qos.value.lower()
    more.setdefault("kube_qos", KubeQos.BESTEFFORT if qos is Qos.BE else KubeQos.GUARANTEED)
    more.setdefault("cgroup", f"kubepods/pod{name}")
    return Pod(uid=name, namespace="default", name=name, qos=qos, cpuset=CpuSet.parse(cpus), **more)


def policy(
    kind: SuppressPolicy = SuppressPolicy.CFS_QUOTA, percent: int = 65, minimum: int | None = None, **more: Any
) -> Policy:
    threshold = Threshold(
        enable=True,
        cpu_suppress_threshold_percent=percent,
        cpu_suppress_min_percent=minimum,
        cpu_suppress_policy=kind,
    )
    return Policy(slo=NodeSlo(threshold=threshold), gates=GATES, **more)


def usage(
    at_s: float,
    nonbe: float = 0.0,
    system: float = 0.0,
    be: float | None = None,
    hosts: float = 0.0,
    surge: float | None = None,
    pressure: float | None = None,
) -> Usage:
    """Usage in cores of one pass at `at_s`; be None means that BE has no reading."""

    def reading(cores: float) -> Reading:
        return Reading(cores * 1000, at_s)

    pods = nonbe + (be or 0.0)
    return Usage(
        node_mcpu=reading(pods + hosts + system),
        pods_mcpu=reading(pods),
        nonbe_pods_mcpu=reading(nonbe),
        hosts_mcpu=reading(hosts),
        nonbe_hosts_mcpu=reading(hosts),
        be_mcpu=None if be is None else reading(be),
        system_mcpu=reading(system),
        surge_mcpu=None if surge is None else reading(surge),
        ls_pressure_permyriad=None if pressure is None else Reading(pressure, at_s),
    )


def root(
    quota_us: int | None = -1, cpuset: str | None = None, path: str = ROOT, tree: Tree = Tree.KUBELET, **more: Any
) -> BeRoot:
    more.setdefault("levels", ((path,), (), ()))
    cpus = None if cpuset is None else CpuSet.parse(cpuset)
    return BeRoot(path=path, tree=tree, quota_us=quota_us, cpuset=cpus, **more)


def view(
    now_s: float,
    capacity: float | None,
    used: Usage,
    roots: tuple[BeRoot, ...] | None = None,
    pods: Iterable[Pod] = (),
    revision: int = 1,
    interval_s: float = 1.0,
    **node: Any,
) -> NodeView:
    return NodeView(
        now_s=now_s,
        interval_s=interval_s,
        node=NodeInfo(name="n", capacity_mcpu=None if capacity is None else int(capacity * 1000), **node),
        usage=used,
        pods=PodSet(tuple(pods), revision, now_s),
        be_roots=(root(),) if roots is None else roots,
    )


def decide(seen: NodeView, rule: Policy, state: suppress.State | None = None) -> Outcome[suppress.State]:
    return suppress.SUPPRESS.decide(seen, rule, state or suppress.SUPPRESS.initial(), seen.now_s)


def value(outcome: Outcome[Any], knob: Knob, target: str = ROOT) -> Any:
    """What is wanted for that knob, None when it is not named."""
    found = [d.value for d in outcome.decisions if d.knob is knob and d.target == target]
    return found[0] if found else None


def quota(outcome: Outcome[Any], target: str = ROOT) -> int | None:
    wanted = value(outcome, Knob.CPU_QUOTA, target)
    assert wanted is None or isinstance(wanted, int)
    return wanted


def cpus(outcome: Outcome[Any], target: str = ROOT) -> str | None:
    wanted = value(outcome, Knob.CPUSET, target)
    return None if wanted is None else str(wanted)


def stage(decision: Decision, name: str) -> Any:
    return dict(decision.why)[name]


def with_kernel(seen: NodeView, outcome: Outcome[Any]) -> NodeView:
    """The view after act wrote what was wanted."""
    roots = []
    for one in seen.be_roots:
        quota_us, kept = quota(outcome, one.path), value(outcome, Knob.CPUSET, one.path)
        roots.append(replace(one, quota_us=quota_us or one.quota_us, cpuset=kept or one.cpuset))
    return replace(seen, be_roots=tuple(roots))


CPUSET, QUOTA = SuppressPolicy.CPUSET, SuppressPolicy.CFS_QUOTA
Run = Outcome[suppress.State]


def follow(seen: NodeView, before: Run, rule: Policy) -> Run:
    """One more round with what the last one wrote in the kernel."""
    return decide(with_kernel(seen, before), rule, before.state)


def steady(nonbe: float = 4.0, rule: Policy | None = None, cores: float = 16) -> Run:
    return decide(view(0.0, cores, usage(0.0, nonbe=nonbe)), rule or policy())
