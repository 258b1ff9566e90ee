"""Builders for tests of CPU burst. Cores where a name says cores; a container's cgroup is `<pod>/<container>`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from koordlet.decide.burst import BURST, State
from koordlet.model.burst import BurstPolicy, BurstSettings, CpuBurst
from koordlet.model.knob import Knob
from koordlet.model.pod import Container, Pod, PodSet, Resources
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.settings import PodSettings
from koordlet.model.slo import NodeSlo
from koordlet.model.view import NodeInfo, NodeView, Outcome, Policy, Reading, Usage, WorkloadUsage

Made = tuple[Container, float | None, float | None]


def container(
    name: str, limit_mcpu: int, *, throttled: float | None = None, used: float | None = None, running: bool = True
) -> Made:
    """used: cores. A limit of 0 is none."""
    limits = Resources(cpu_mcpu=limit_mcpu or None)
    return Container(name, running=running, limits=limits, requests=limits), throttled, used


class MadePod:
    def __init__(self, pod: Pod, rows: dict[str, tuple[float | None, float | None]]) -> None:
        self.pod, self.rows = pod, rows


def pod(name: str, *containers: Made, qos: str = "LS", wish: BurstSettings | None = None, **more: Any) -> MadePod:
    rows = {f"{name}/{c.name}": (throttled, used) for c, throttled, used in containers}
    made = Pod(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        cgroup=name,
        kube_qos=KubeQos.BURSTABLE,
        qos=Qos(qos) if qos else None,
        containers=tuple(replace(c, id=f"containerd://{name}-{c.name}", cgroup=f"{name}/{c.name}")
                         for c, _, _ in containers),
        settings=PodSettings(cpu_burst=wish),
        **more,
    )  # fmt: skip
    return MadePod(made, rows)


def view(
    now_s: float,
    cores: float,
    *,
    node: float = 0.5,
    be: float = 0.0,
    pods: tuple[MadePod, ...] = (),
    used: dict[str, float] | None = None,
    revision: int = 1,
    at_s: float | None = None,
    **info: Any,
) -> NodeView:
    """used: cores by cgroup."""

    def reading(cores: float) -> Reading:
        return Reading(cores * 1000, now_s if at_s is None else at_s)

    rows = {}
    for made in pods:
        for cgroup, (throttled, cpu) in made.rows.items():
            rows[cgroup] = WorkloadUsage(
                cgroup,
                cgroup,
                made.pod,
                cgroup.rpartition("/")[2],
                cpu_mcpu=None if cpu is None else reading(cpu),
                throttled=None if throttled is None else Reading(throttled, reading(0).at_s),
            )
    for cgroup, cpu in (used or {}).items():
        rows[cgroup] = WorkloadUsage(cgroup, cgroup, cpu_mcpu=reading(cpu))
    return NodeView(
        now_s=now_s,
        node=NodeInfo(name="n", capacity_mcpu=int(cores * 1000), **info),
        usage=Usage(
            node_mcpu=reading(node),
            pods_mcpu=reading(node),
            nonbe_pods_mcpu=reading(node - be),
            throttled_containers=tuple(
                cgroup for made in pods for cgroup, (throttled, _) in made.rows.items() if throttled
            ),
        ),
        pods=PodSet(tuple(made.pod for made in pods), revision, now_s),
        workloads=rows,
    )


def burst(policy: BurstPolicy, gates: tuple[str, ...] = ("CPUBurst",), **fields: Any) -> Policy:
    return Policy(slo=NodeSlo(burst=CpuBurst(policy=policy, **fields)), gates=frozenset(gates))


def decide(seen: NodeView, rule: Policy, state: State | None = None) -> Outcome[State]:
    return BURST.decide(seen, rule, state or BURST.initial(), seen.now_s)


def wanted(outcome: Outcome[Any], knob: Knob, target: str) -> Any:
    """What is wanted, None when it is not named."""
    found = [d.value for d in outcome.decisions if d.knob is knob and d.target == target]
    assert len(found) <= 1
    return found[0] if found else None
