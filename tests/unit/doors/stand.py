"""A desk with a stand-in for the pod rules, and what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from koordlet.doors.admission import Inbox
from koordlet.doors.desk import Desk
from koordlet.doors.teller import Teller
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Pod
from koordlet.model.podevent import Hook, LinuxResources, PodAnswer, PodEvent
from koordlet.model.qos import Qos
from koordlet.sources.runtime import RuntimeSource

SHARES = {Qos.LSR: 1024, Qos.LS: 512, Qos.BE: 2}


class Stand:
    """rule: what is answered; the default gives shares by QoS label, the pod's own CPUs, and bvt to the pod's
    cgroup."""

    def __init__(self, rule: Callable[[PodEvent], PodAnswer] | None = None, **desk: Any) -> None:
        self.events: list[PodEvent] = []
        self.known: dict[str, Pod] = {}
        self.inbox = Inbox()
        self.rule = rule or by_label
        self.timed: list[tuple[str, str]] = []
        self.desk = Desk(
            self._answer, self.inbox, timed=lambda stage, status, ms: self.timed.append((stage, status)), **desk
        )
        self.source = RuntimeSource(complete=True)

    def teller(self, door: str = "nri", **more: Any) -> Teller:
        return Teller(door, self.desk, self.source, self.known.get, **more)

    def _answer(self, event: PodEvent) -> PodAnswer:
        self.events.append(event)
        return self.rule(event)

    def close(self) -> None:
        self.desk.close()
        self.inbox.close()


def by_label(event: PodEvent) -> PodAnswer:
    if event.container is None:
        return PodAnswer(decisions=(Decision(event.cgroup, Knob.CPU_SHARES, 2, (), "podrules"),))
    if event.hook not in (Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER):
        return PodAnswer()
    shares = SHARES.get(event.pod.qos) if event.pod.qos else None
    cpuset = event.pod.cpuset
    quota = -1 if cpuset else None
    return PodAnswer(resources=LinuxResources(cpu_shares=shares, cpuset=cpuset, cpu_quota_us=quota))


class Blocked:
    """A rule that does not come back until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, event: PodEvent) -> PodAnswer:
        self.go.wait(20.0)
        return PodAnswer(resources=LinuxResources(cpu_shares=7, cpuset=CpuSet([0])))
