"""Batch and mid resources of BE pods: shares and memory limit; their quota is in quota.py. (spec/hooks 4.3)"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.pod import Container, Pod, Resources, Tree
from koordlet.model.podevent import PodEvent
from koordlet.model.qos import Qos
from koordlet.model.units import UNLIMITED, mcpu_to_shares


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a container may use of the lent resources. None: not said. Milli-CPU and bytes."""

    request_mcpu: int | None = None
    limit_mcpu: int | None = None
    limit_bytes: int | None = None


def lent(pod: Pod) -> dict[str, Amounts]:
    """Containers of a BE pod that ask for batch or mid resources, by name; empty for any other pod.

    The pod's spec speaks first; a door that knows no spec has the webhook's copy of it in an annotation.
    beyond: mid resources count as batch ones do (the reference leaves such pods at the least weight, F-15).
    """
    if not _has_lent(pod):
        return {}
    found = {c.name: amounts for c in pod.containers if (amounts := _amounts(c.requests, c.limits)) is not None}
    if not found:
        rows = pod.settings.extended or ()
        found = {row.container: amounts for row in rows if (amounts := _amounts(row.requests, row.limits)) is not None}
    return found


def of_container(pod: Pod, container: Container) -> Amounts | None:
    """A container's own amounts, also where only it and not the whole pod is known."""
    if not _has_lent(pod):
        return None
    return _amounts(container.requests, container.limits) or lent(pod).get(container.name)


def _has_lent(pod: Pod) -> bool:
    """A declared workload's amounts are for the ledger; its limits are the administrator's."""
    return pod.qos is Qos.BE and pod.tree is Tree.KUBELET


def _amounts(requests: Resources, limits: Resources) -> Amounts | None:
    request_mcpu = _first(requests.batch_cpu_mcpu, requests.mid_cpu_mcpu)
    limit_mcpu = _first(limits.batch_cpu_mcpu, limits.mid_cpu_mcpu)
    limit_bytes = _first(limits.batch_memory_bytes, limits.mid_memory_bytes)
    request_bytes = _first(requests.batch_memory_bytes, requests.mid_memory_bytes)
    if request_mcpu is limit_mcpu is limit_bytes is request_bytes is None:
        return None
    return Amounts(request_mcpu, limit_mcpu, limit_bytes)


def _first(batch: int | None, mid: int | None) -> int | None:
    return mid if batch is None else batch


def of_pod(pod: Pod) -> list[list[Amounts]]:
    """Groups of containers: the pod must hold the sum of each group.

    compat: sidecars are not in the sum, as seen on the reference; but a pod is never smaller than one of them, which
    cgroup v1 would refuse.
    """
    found = lent(pod)
    sidecars = {c.name for c in pod.containers if c.sidecar}
    regular = [amounts for name, amounts in found.items() if name not in sidecars]
    groups = [[amounts] for name, amounts in found.items() if name in sidecars]
    return [regular, *groups] if regular else groups


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    """A limit of 0 is no limit: 0 bytes would kill the pod (W12)."""
    if event.container is not None:
        amounts = of_container(event.pod, event.container)
        groups = [] if amounts is None else [[amounts]]
    else:
        groups = of_pod(event.pod)
    if not groups:
        return
    request_mcpu = max(sum(max(row.request_mcpu or 0, 0) for row in rows) for rows in groups)
    wanted.shares = mcpu_to_shares(request_mcpu)
    wanted.memory_limit_bytes = largest_sum([[row.limit_bytes for row in rows] for rows in groups])
    wanted.note(f"request_mcpu={request_mcpu} limit_bytes={wanted.memory_limit_bytes}")


def largest_sum(groups: list[list[int | None]]) -> int:
    """UNLIMITED as soon as one member has no limit above 0."""
    if any(limit is None or limit <= 0 for rows in groups for limit in rows):
        return UNLIMITED
    return max(sum(limit or 0 for limit in rows) for rows in groups)
