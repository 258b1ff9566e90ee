"""Builders for tests of eviction: pods with a use, views of a node, and rounds of decide with what became of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from koordlet.decide.cpu_evict import CPU_EVICT
from koordlet.decide.memory_evict import MEMORY_EVICT
from koordlet.model.eviction import Evict, Eviction, EvictState
from koordlet.model.pod import Container, Pod, PodSet, Resources
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.settings import PodSettings
from koordlet.model.slo import NodeSlo, Threshold
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy, Reading, Usage, WorkloadUsage

GIB = 2**30


def pod(
    name: str,
    qos: Qos | None = Qos.BE,
    priority: int | None = None,
    *,
    batch: int = 0,
    requests: Resources | None = None,
    settings: PodSettings | None = None,
    **more: Any,
) -> Pod:
    """batch: milli-CPU requested as batch-cpu."""
    return Pod(
        uid=name,
        namespace="default",
        name=name,
        cgroup=f"kubepods/besteffort/pod{name}",
        kube_qos=KubeQos.BESTEFFORT if qos is Qos.BE else KubeQos.BURSTABLE,
        qos=qos,
        priority=priority,
        containers=(Container("main", requests=requests or Resources(batch_cpu_mcpu=batch)),),
        settings=settings or PodSettings(),
        **more,
    )


def policy(gates: Iterable[str], **threshold: Any) -> Policy:
    return Policy(slo=NodeSlo(threshold=Threshold(enable=True, **threshold)), gates=frozenset(gates))


@dataclass
class Node:
    """A node for rounds of one strategy. memory, cpu: pod name -> bytes, milli-CPU; None is not known."""

    pods: list[Pod]
    capacity_bytes: int | None = None
    capacity_mcpu: int | None = None
    memory: dict[str, float | None] = field(default_factory=dict)
    cpu: dict[str, float | None] = field(default_factory=dict)
    allocatable: Resources = field(default_factory=Resources)
    be_limit_mcpu: int | None = None
    evictions: dict[str, Eviction] = field(default_factory=dict)
    now_s: float = 1000.0
    revision: int = 1
    state: Any = None

    def view(self, used_bytes: float | None = None, used_mcpu: float | None = None, be_mcpu: float = 0.0) -> NodeView:
        def reading(value: float | None) -> Reading | None:
            return None if value is None else Reading(float(value), self.now_s)

        roots = ()
        if self.be_limit_mcpu is not None:
            quota = self.be_limit_mcpu * 100
            roots = (BeRoot("kubepods/besteffort", self.pods[0].tree, quota_us=quota, period_us=100_000),)
        return NodeView(
            now_s=self.now_s,
            node=NodeInfo("n", self.capacity_mcpu, self.capacity_bytes, allocatable=self.allocatable),
            usage=Usage(node_memory_bytes=reading(used_bytes), node_mcpu=reading(used_mcpu), be_mcpu=reading(be_mcpu)),
            pods=PodSet(tuple(self.pods), self.revision, self.now_s),
            be_roots=roots,
            workloads={
                p.cgroup: WorkloadUsage(
                    p.key,
                    p.cgroup,
                    p,
                    cpu_mcpu=reading(self.cpu.get(p.name)),
                    memory_bytes=reading(self.memory.get(p.name)),
                )
                for p in self.pods
            },
            evictions=dict(self.evictions),
            wall_s=1e9 + self.now_s,
        )

    def memory_round(self, rule: Policy, used_bytes: float | None, step_s: float = 1.0) -> Outcome[Any]:
        self.now_s += step_s
        outcome = MEMORY_EVICT.decide(self.view(used_bytes), rule, self.state or MEMORY_EVICT.initial(), self.now_s)
        self.state = outcome.state
        return outcome

    def cpu_round(
        self, rule: Policy, used_mcpu: float | None, be_mcpu: float = 0.0, step_s: float = 1.0
    ) -> Outcome[Any]:
        self.now_s += step_s
        view = self.view(used_mcpu=used_mcpu, be_mcpu=be_mcpu)
        outcome = CPU_EVICT.decide(view, rule, self.state or CPU_EVICT.initial(), self.now_s)
        self.state = outcome.state
        return outcome

    def settle_cpu(self, rule: Policy, used_mcpu: float, be_mcpu: float = 0.0) -> Outcome[Any]:
        """After the pause of 20 s at the start, at constant use; stops at the first eviction."""
        for _ in range(25):
            outcome = self.cpu_round(rule, used_mcpu, be_mcpu)
            if outcome.effects:
                break
        return outcome

    def refuse(self, name: str, again_s: float = 10.0) -> None:
        self.evictions[name] = Eviction(name, "", EvictState.REFUSED, self.now_s, self.now_s + again_s, "429")

    def accept(self, name: str) -> None:
        self.evictions[name] = Eviction(name, "", EvictState.ACCEPTED, self.now_s)

    def remove(self, name: str) -> None:
        self.pods = [p for p in self.pods if p.name != name]
        self.evictions.pop(name, None)
        self.revision += 1

    def change(self, name: str, **parts: Any) -> None:
        self.pods = [replace(p, **parts) if p.name == name else p for p in self.pods]
        self.revision += 1


def names(outcome: Outcome[Any]) -> list[str]:
    return [effect.name for effect in outcome.effects if isinstance(effect, Evict)]


def released(outcome: Outcome[Any]) -> dict[str, int]:
    total: dict[str, int] = {}
    for effect in outcome.effects:
        for resource, amount in effect.release if isinstance(effect, Evict) else ():
            total[resource] = total.get(resource, 0) + amount
    return total


def asked(outcome: Outcome[Any]) -> int:
    """The amount that the first victim's feature wanted back."""
    why = dict(outcome.effects[0].why)
    return next(value for name, value in why.items() if name.startswith("release_"))
