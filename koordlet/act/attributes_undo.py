"""Giving back what no journal holds: scores and cookies of processes, trees of network devices, frozen groups."""

from __future__ import annotations

from typing import Final

from koordlet.act.attributes import Attributes
from koordlet.act.core_sched import CoreCookies
from koordlet.act.freeze import Freezer
from koordlet.act.network import Network
from koordlet.act.oom_score import OomScores
from koordlet.kernel.host import Host

_WORDS: Final = {
    OomScores.kind: "process's OOM score",
    CoreCookies.kind: "container's core scheduling group",
    Network.kind: "network device",
    Freezer.kind: "frozen cgroup",
}


def left_behind(attributes: Attributes) -> tuple[str, ...]:
    """One line per thing that an agent changed and has not given back."""
    return tuple(f"{_WORDS[kind]} {key}" for kind in _WORDS for key in sorted(attributes.of(kind)))


def undo_attributes(host: Host, attributes: Attributes) -> tuple[str, ...]:
    """Give all of it back; what could not be stays in the file and is named."""
    for applier in (OomScores(host, attributes), CoreCookies(host, attributes), Network(attributes)):
        applier.restore_all(0.0, "undo")
    Freezer(host, attributes).thaw_all()
    return left_behind(attributes)
