"""The pods that a container runtime told a door of: all there are on a host without a kubelet, the newest ones beside
it.

The doors' threads tell, the loop polls. What NRI synchronised is complete; what a single hook call told holds until its
pod's end is told, or for a while where nobody would tell that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from koordlet.kernel.kubepods import Kubepods
from koordlet.model.pod import NO_CLAIM, Container, Pod, PodSet
from koordlet.model.podevent import LinuxResources
from koordlet.sources.podlist import MAX_PODS
from koordlet.sources.sandbox import MAX_CONTAINERS, Sandbox, SandboxContainer, amounts, make_container, make_pod

log = structlog.get_logger(__name__)

MAX_ERRORS: Final = 100
SPEC_LAG_S: Final = 30.0
"""By then a kubelet's list has a limit that was changed in place."""


@dataclass(slots=True)
class _Known:
    pod: Pod
    sandbox_id: str
    containers: dict[str, Container] = field(default_factory=dict)
    until_s: float | None = None
    asked: dict[str, tuple[float, int | None]] = field(default_factory=dict)
    """(when, milli-CPU) by container: limits that an update brought."""


class RuntimeSource:
    """complete: no other source knows the runtime's pods, so the age of what is known counts. Methods may be called
    from any thread; times are monotonic."""

    def __init__(self, *, complete: bool, kubepods: Callable[[], Kubepods | None] = lambda: None) -> None:
        self._complete = complete
        self._kubepods = kubepods
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._uids: dict[str, str] = {}  # by sandbox id
        self._set = PodSet()
        self._changed = False
        self._lost_s: float | None = None
        self._errors: dict[str, None] = {}
        self.refused = 0

    def poll(self, now_s: float) -> PodSet:
        with self._lock:
            for uid in [
                uid for uid, known in self._known.items() if known.until_s is not None and known.until_s < now_s
            ]:
                self._forget(uid)
            if self._changed:
                self._changed = False
                found = (replace(k.pod, containers=tuple(k.containers.values())) for k in self._known.values())
                pods = sorted((p for p in found if p.cgroup), key=lambda pod: (pod.namespace, pod.name, pod.uid))
                self._set = PodSet(tuple(pods), self._set.revision + 1)
            at_s = NO_CLAIM
            if self._complete:
                at_s = self._lost_s if self._lost_s is not None and self._known else now_s
            return PodSet(self._set.pods, self._set.revision, at_s)

    @property
    def changed(self) -> bool:
        """Since the last poll."""
        return self._changed

    def errors(self) -> tuple[str, ...]:
        """Pods of which something could not be used."""
        with self._lock:
            return tuple(self._errors)

    def find(self, uid: str) -> Pod | None:
        with self._lock:
            known = self._known.get(uid)
            return replace(known.pod, containers=tuple(known.containers.values())) if known is not None else None

    def uid_of(self, sandbox_id: str) -> str:
        """The empty text when the sandbox is not known."""
        with self._lock:
            return self._uids.get(sandbox_id, "")

    def synchronized(
        self, runtime: str, sandboxes: Iterable[Sandbox], containers: Iterable[tuple[str, SandboxContainer]]
    ) -> None:
        """All that the runtime has: (sandbox id, container). What is not named is gone."""
        with self._lock:
            before, self._known, self._uids = self._known, {}, {}
            self._changed, self._lost_s = True, None
            self._errors.clear()
            for sandbox in sandboxes:
                known = self._take(sandbox, None)
                old = before.get(sandbox.uid)
                if known is not None and old is not None:  # what it was created with is told only once
                    known.containers = dict(old.containers)
            told: set[tuple[str, str]] = set()
            for sandbox_id, container in containers:
                uid = self._uids.get(sandbox_id, "")
                told.add((uid, container.name))
                self._put(uid, container, runtime)
            for uid, known in self._known.items():
                known.containers = {n: c for n, c in known.containers.items() if (uid, n) in told}

    def sandbox(self, sandbox: Sandbox, until_s: float | None = None) -> bool:
        """A pod begins, or is told of again; False when it cannot be used and is not known either. until_s: forget it
        then, unless it is told of again."""
        with self._lock:
            self._take(sandbox, until_s)
            return sandbox.uid in self._known

    def container(self, uid: str, container: SandboxContainer, runtime: str) -> Container | None:
        """A container of a known pod begins or changes; None when it cannot be used."""
        with self._lock:
            return self._put(uid, container, runtime)

    def resized(self, uid: str, name: str, asked: LinuxResources, now_s: float) -> None:
        """New amounts were asked for an existing container; what is not said stays."""
        with self._lock:
            known = self._known.get(uid)
            if known is None or name not in known.containers:
                return
            old = known.containers[name]
            requests, limits = amounts(asked)
            if asked.cpu_quota_us is not None:
                known.asked[name] = (now_s, limits.cpu_mcpu)
            made = replace(
                old,
                requests=replace(old.requests, cpu_mcpu=requests.cpu_mcpu or old.requests.cpu_mcpu),
                limits=replace(
                    old.limits,
                    cpu_mcpu=limits.cpu_mcpu or old.limits.cpu_mcpu,
                    memory_bytes=limits.memory_bytes or old.limits.memory_bytes,
                ),
            )
            if made != old:
                known.containers[name] = made
                self._changed = True

    def up_to_date(self, pod: Pod, now_s: float) -> Pod:
        """The pod with the CPU limits that were asked for lately, which its spec, if it has one, may not say yet."""
        with self._lock:
            known = self._known.get(pod.uid)
            asked = {} if known is None else known.asked
            limits = {name: mcpu for name, (at_s, mcpu) in asked.items() if now_s - at_s < SPEC_LAG_S}
        containers = tuple(
            replace(c, limits=replace(c.limits, cpu_mcpu=limits[c.name])) if c.name in limits else c
            for c in pod.containers
        )
        return pod if containers == pod.containers else replace(pod, containers=containers)

    def container_gone(self, uid: str, name: str, full_id: str) -> None:
        with self._lock:
            known = self._known.get(uid)
            if known is not None and name in known.containers and known.containers[name].id in ("", full_id):
                del known.containers[name]
                self._changed = True

    def sandbox_gone(self, uid: str, sandbox_id: str = "") -> bool:
        """sandbox_id: of the one that ended; a pod whose sandbox was made anew stays: False."""
        with self._lock:
            known = self._known.get(uid)
            if known is not None and sandbox_id and known.sandbox_id not in ("", sandbox_id):
                return False
            if known is not None:
                self._forget(uid)
            return True

    def lost(self, now_s: float) -> None:
        """The runtime does not tell any more: from now on what is known grows old."""
        with self._lock:
            if self._lost_s is None:
                self._lost_s = now_s

    def _take(self, sandbox: Sandbox, until_s: float | None) -> _Known | None:
        try:
            pod = make_pod(sandbox)
            if sandbox.uid not in self._known and len(self._known) >= MAX_PODS:
                raise ValueError(f"more than {MAX_PODS} pods")
        except ValueError as error:
            self._refuse(f"sandbox {sandbox.id[:64]!r}: left out: {error}")
            return None
        for _, fault in pod.settings.faults:
            self._refuse(f"pod {pod.key}: {fault}")
        if not pod.cgroup:
            self._refuse(f"pod {pod.key}: cgroup parent {sandbox.cgroup_parent[:128]!r} names no cgroup of its own")
        known = self._known.get(sandbox.uid)
        if known is None:
            known = self._known[sandbox.uid] = _Known(pod, sandbox.id, until_s=until_s)
            self._changed = True
        else:
            self._changed |= known.pod != pod
            known.pod = pod
            known.sandbox_id = sandbox.id or known.sandbox_id
            known.until_s = until_s if known.until_s is not None else None  # what NRI told stays
        if sandbox.id:
            self._uids[sandbox.id] = sandbox.uid
        return known

    def _put(self, uid: str, found: SandboxContainer, runtime: str) -> Container | None:
        known = self._known.get(uid)
        if known is None:
            return None
        try:
            made = make_container(found, runtime, known.pod.cgroup, self._kubepods())
            if found.name not in known.containers and len(known.containers) >= MAX_CONTAINERS:
                raise ValueError(f"more than {MAX_CONTAINERS} containers")
        except ValueError as error:
            self._refuse(f"pod {known.pod.key}: container left out: {error}")
            return None
        old = known.containers.get(found.name)
        if old is not None and found.asked is None and old.id in ("", made.id):
            made = replace(made, requests=old.requests, limits=old.limits, cgroup=made.cgroup or old.cgroup)
        if made != old:
            known.containers[found.name] = made
            self._changed = True
        return made

    def _forget(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        if known is not None:
            self._uids.pop(known.sandbox_id, None)
            self._changed = True

    def _refuse(self, text: str) -> None:
        self.refused += 1
        if text not in self._errors and len(self._errors) < MAX_ERRORS:
            self._errors[text] = None
            log.warning("runtime.malformed", what=text)
