"""What both runtime doors do with a runtime's words: tell the source, make the event, ask the desk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from koordlet.doors.desk import LIMIT_S, UNCHANGED, Desk, HookError
from koordlet.doors.replies import Replies
from koordlet.model.pod import Container, Pod
from koordlet.model.podevent import Hook, LinuxResources, PodAnswer, PodEvent
from koordlet.sources.merge import filled
from koordlet.sources.runtime import RuntimeSource
from koordlet.sources.sandbox import Sandbox, SandboxContainer


class Teller:
    """One door's way in. known: a pod of the last view by its uid, which may know its spec. runtime: scheme of
    container ids. hold_s: for how long a pod counts whose end nobody may tell, None where its end is told. replies:
    where it is noted what a reply said."""

    def __init__(
        self,
        door: str,
        desk: Desk,
        source: RuntimeSource,
        known: Callable[[str], Pod | None],
        *,
        runtime: str = "containerd",
        hold_s: float | None = None,
        replies: Replies | None = None,
    ) -> None:
        self._replies = replies
        self.door, self.desk, self.source = door, desk, source
        self.runtime = runtime
        self._known = known
        self._hold_s = hold_s

    def pod(self, hook: Hook, sandbox: Sandbox, now_s: float, limit_s: float = LIMIT_S * 2) -> PodAnswer:
        """A moment of a whole pod."""
        if not self._tell(sandbox, now_s) or (pod := self._fullest(sandbox.uid)) is None:
            return UNCHANGED
        return self.desk.ask(PodEvent(hook, pod, cgroup=pod.cgroup), self.door, limit_s)

    def ended(self, sandbox: Sandbox, limit_s: float = LIMIT_S * 2) -> None:
        """All processes of a pod have ended, unless a new sandbox was made for it since."""
        pod = self._fullest(sandbox.uid)
        if self.source.sandbox_gone(sandbox.uid, sandbox.id) and pod is not None:
            with suppress(HookError):  # it cannot fail any more
                self.desk.ask(PodEvent(Hook.POST_STOP_POD_SANDBOX, pod, cgroup=pod.cgroup), self.door, limit_s)

    def container(
        self,
        hook: Hook,
        sandbox: Sandbox,
        container: SandboxContainer,
        now_s: float,
        *,
        asked: LinuxResources | None = None,
        env: dict[str, str] | None = None,
        pid: int | None = None,
        limit_s: float = LIMIT_S * 2,
    ) -> PodAnswer:
        """A moment of one container. asked: what the runtime is about to apply; container.asked: the same, at its
        creation."""
        if not self._tell(sandbox, now_s):
            return UNCHANGED
        made = self.source.container(sandbox.uid, container, self.runtime)
        pod = self._fullest(sandbox.uid)
        if made is None or pod is None:
            return UNCHANGED
        pod = self.source.up_to_date(pod, now_s)
        if hook is Hook.PRE_UPDATE_CONTAINER and asked is not None:
            self.source.resized(sandbox.uid, container.name, asked, now_s)
        named = next((c for c in pod.containers if c.name == made.name), made)
        event = PodEvent(
            hook,
            pod,
            replace(named, id=named.id or made.id, cgroup=named.cgroup or made.cgroup),
            cgroup=made.cgroup,
            asked=asked or LinuxResources(),
            env=env or {},
            pid=pid,
        )
        answer = self.desk.ask(event, self.door, limit_s)
        if self._replies is not None:
            self._replies.note(event, answer.resources)
        return answer

    def _tell(self, sandbox: Sandbox, now_s: float) -> bool:
        """False when it cannot be used."""
        return self.source.sandbox(sandbox, None if self._hold_s is None else now_s + self._hold_s)

    def _fullest(self, uid: str) -> Pod | None:
        """The view's pod, which may have a spec, at the place where the runtime says that it is."""
        told, known = self.source.find(uid), self._known(uid)
        if known is None or told is None:
            return told or known
        pod = filled(known, told)
        extra = _unnamed(pod, told)
        if extra or (told.cgroup and told.cgroup != pod.cgroup):
            pod = replace(pod, cgroup=told.cgroup or pod.cgroup, containers=(*pod.containers, *extra))
        return pod


def _unnamed(pod: Pod, told: Pod) -> tuple[Container, ...]:
    names = {container.name for container in pod.containers}
    return tuple(container for container in told.containers if container.name not in names)
