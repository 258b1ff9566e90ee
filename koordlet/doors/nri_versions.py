"""What a runtime's NRI can do, from what Configure tells (spec/hooks 2.7, 2.11). Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import IntEnum
from typing import Final

from koordlet.model.podevent import Hook


class Event(IntEnum):
    """NRI's events; the numbers are the wire's."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14

    @property
    def bit(self) -> int:
        return 1 << (self - 1)


STAGES: Final = {
    Event.RUN_POD_SANDBOX: Hook.PRE_RUN_POD_SANDBOX,
    Event.STOP_POD_SANDBOX: Hook.POST_STOP_POD_SANDBOX,
    Event.CREATE_CONTAINER: Hook.PRE_CREATE_CONTAINER,
    Event.UPDATE_CONTAINER: Hook.PRE_UPDATE_CONTAINER,
    Event.POST_START_CONTAINER: Hook.POST_START_CONTAINER,
}
"""Events at which the pod rules are asked. The others that are wanted only tell who is gone."""
WANTED: Final = (*STAGES, Event.REMOVE_CONTAINER, Event.REMOVE_POD_SANDBOX)

Release = tuple[int, int]

_OLD_MASK: Final = 0x7FF
_NEW_MASK: Final = 0x3FFF
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")
_CONTAINERD: Final = (
    ((2, 3, 0), (0, 12)),
    ((2, 2, 1), (0, 11)),
    ((2, 2, 0), (0, 10)),
    ((1, 7, 26), (0, 8)),
    ((1, 7, 14), (0, 6)),
    ((1, 7, 7), (0, 4)),
    ((1, 7, 0), (0, 3)),
)
_CRIO: Final = (
    ((1, 35, 0), (0, 11)),
    ((1, 34, 0), (0, 10)),
    ((1, 32, 0), (0, 9)),
    ((1, 30, 0), (0, 6)),
    ((1, 29, 0), (0, 5)),
    ((1, 27, 0), (0, 3)),
    ((1, 26, 0), (0, 2)),
)


def release(nri_version: str, runtime: str, version: str, registration_timeout_ms: int) -> Release:
    """The NRI release behind a runtime, at least: what it says itself (from 0.12 on), else by the runtime's version.
    (0, 0): unknown, and old as far as anybody can tell."""
    if found := _VERSION.match(nri_version):
        return int(found[1]), int(found[2])
    known: Release = (0, 8) if registration_timeout_ms > 0 else (0, 0)
    found = _VERSION.match(version)
    table = {"containerd": _CONTAINERD, "cri-o": _CRIO}.get(runtime.lower().replace("crio", "cri-o"))
    if found is None or table is None:
        return known
    told = (int(found[1]), int(found[2]), int(found[3] or 0))
    return max(known, next((nri for since, nri in table if told >= since), known))


def event_mask(nri: Release, disabled: Collection[Hook] = (), wanted: Collection[Event] = WANTED) -> int:
    """Bits to subscribe to: never one that the runtime does not know, it would refuse the registration."""
    bits = sum(event.bit for event in wanted if STAGES.get(event) not in disabled)
    return bits & (_NEW_MASK if nri >= (0, 10) else _OLD_MASK)


def scheme(runtime: str) -> str:
    """Of container ids, as a kubelet writes them."""
    return "cri-o" if runtime.lower() in ("cri-o", "crio") else runtime.lower() or "containerd"
