"""Device nodes of a container's RDMA functions; only NRI can carry them. (spec/hooks 4.6)"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.podevent import Hook, PodEvent

_ANNOTATION: Final = "scheduling.koordinator.sh/device-allocated"
_MODE: Final = 0o666


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    """Raises ValueError for a function that has no device node here; then no node at all is injected."""
    pod = event.pod
    if event.container is None or event.hook is not Hook.PRE_CREATE_CONTAINER:
        return
    if fault := pod.settings.fault(_ANNOTATION):
        raise ValueError(fault)
    shares = pod.settings.devices.rdma if pod.settings.devices else ()
    if not shares:
        return
    known = dict(context.node.rdma)
    if known.get("") is None:
        raise ValueError("/dev/infiniband/rdma_cm is not there")
    found = {known[""].path: known[""]}
    for function in (function for share in shares for function in share.functions):
        device = known.get(function)
        if device is None:
            raise ValueError(f"PCI function {function} has no verbs device here")
        found[device.path] = device
    wanted.devices += [replace(device, mode=_MODE) for device in found.values()]
    wanted.note(f"devices={len(found)}")
