"""What the scheduler counts for a pod, by Kubernetes' own rule: CPU in milli-CPU, memory in bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from koordlet.model.resources import Resources


def pod_request(
    containers: Sequence[Resources],
    inits: Sequence[tuple[Resources, bool]],
    overhead: Resources,
    pod_level: Resources,
) -> Resources:
    """inits: request and "is a sidecar" of each init container, in their order.

    Containers and sidecars run together; an init container runs beside the sidecars that started before it. The larger
    of the two counts, unless the pod's own resources name the amount; overhead comes on top.
    """
    return Resources(
        cpu_mcpu=_one("cpu_mcpu", containers, inits, overhead, pod_level),
        memory_bytes=_one("memory_bytes", containers, inits, overhead, pod_level),
    )


def _one(
    name: str,
    containers: Sequence[Resources],
    inits: Sequence[tuple[Resources, bool]],
    overhead: Resources,
    pod_level: Resources,
) -> int:
    def amount(resources: Resources) -> int:
        return getattr(resources, name) or 0

    sidecars = starting = 0
    for request, is_sidecar in inits:
        starting = max(starting, sidecars + amount(request))
        if is_sidecar:
            sidecars += amount(request)
    whole = getattr(pod_level, name)
    if whole is None:
        whole = max(sum(map(amount, containers)) + sidecars, starting)
    return int(whole) + amount(overhead)
