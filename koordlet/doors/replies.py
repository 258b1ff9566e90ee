"""What the doors said in their replies, until the executor has seen the container and noted it in its journal.

A reply is no write: its value comes into the kernel by the runtime's hand. Kept is, per container and knob, what the
runtime would have set without us (act/adopt.py). A container is told of before it has a directory, so it is known by
pod and name here; its directory is looked up among the loop's pods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from koordlet.act.adopt import Told
from koordlet.model.knob import Knob, KnobValue
from koordlet.model.pod import Pod
from koordlet.model.podevent import Hook, LinuxResources, PodEvent

MAX_CONTAINERS: Final = 4096
"""The longest told of are forgotten first; those have been seen since, or never will be."""

_Key = tuple[str, str]


class Replies:
    """pods: the loop's, on its thread. Notes come from the doors' threads."""

    def __init__(self, pods: Callable[[], tuple[Pod, ...]]) -> None:
        self._pods = pods
        self._lock = threading.Lock()
        self._told: dict[_Key, dict[Knob, Told]] = {}
        self._scores: dict[_Key, tuple[int, int]] = {}
        self._places: tuple[tuple[Pod, ...] | None, dict[str, _Key]] = (None, {})

    def note(self, event: PodEvent, given: LinuxResources) -> None:
        """given: what the reply says beyond what was asked."""
        if event.container is None or event.hook not in (Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER):
            return
        key = (event.pod.uid, event.container.name)
        with self._lock:
            before = self._told.pop(key, {})
            if event.hook is Hook.PRE_CREATE_CONTAINER:
                made = _at_creation(event.asked, given)
                self._scores.pop(key, None)
                if given.oom_score_adj is not None:
                    self._scores[key] = (event.asked.oom_score_adj or 0, given.oom_score_adj)
            else:
                made = _at_update(before, event.asked, given)
            if made:
                self._told[key] = made
            for table in (self._told, self._scores):
                while len(table) > MAX_CONTAINERS:
                    table.pop(next(iter(table)))

    def find(self, target: str, knob: Knob) -> Told | None:
        if not self._told:
            return None
        key = self._container_in(target)
        return None if key is None else self._told.get(key, {}).get(knob)

    def drop(self, target: str, knob: Knob) -> None:
        key = self._container_in(target)
        with self._lock:
            if key is not None and key in self._told:
                self._told[key].pop(knob, None)
                if not self._told[key]:
                    del self._told[key]

    def score(self, target: str) -> tuple[int, int] | None:
        """(what the runtime was asked for, what the reply said), of a container's processes."""
        if not self._scores:
            return None
        key = self._container_in(target)
        return None if key is None else self._scores.get(key)

    def _container_in(self, target: str) -> _Key | None:
        pods = self._pods()
        if pods is not self._places[0]:
            self._places = (pods, dict(_places(pods)))
        return self._places[1].get(target)


def _places(pods: Iterable[Pod]) -> Iterable[tuple[str, _Key]]:
    for pod in pods:
        for container in pod.containers:
            if container.cgroup:
                yield container.cgroup, (pod.uid, container.name)


def _values(found: LinuxResources) -> dict[Knob, KnobValue | None]:
    return {
        Knob.CPU_SHARES: found.cpu_shares,
        Knob.CPU_QUOTA: found.cpu_quota_us,
        Knob.CPUSET: found.cpuset or None,  # an empty one is never written as such
        Knob.CPUSET_MEMS: found.cpuset_mems or None,
        Knob.MEMORY_LIMIT: found.memory_limit_bytes,
    }


def _at_creation(asked: LinuxResources, given: LinuxResources) -> dict[Knob, Told]:
    wanted = _values(asked)
    return {knob: Told(ours, wanted[knob]) for knob, ours in _values(given).items() if ours is not None}


def _at_update(before: dict[Knob, Told], asked: LinuxResources, given: LinuxResources) -> dict[Knob, Told]:
    """What is not asked for stays what it was asked to be before."""
    wanted, made = _values(asked), dict(before)
    for knob, ours in _values(given).items():
        now = wanted[knob]
        if now is not None:
            made[knob] = Told(now if ours is None else ours, now, anew=True)
        elif ours is not None and knob in made:
            made[knob] = Told(ours, made[knob].asked, made[knob].anew)
    return made
