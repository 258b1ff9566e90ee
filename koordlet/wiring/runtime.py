"""The doors that a container runtime knocks at: hook server, NRI, and the source that both feed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from koordlet.config.flags import Flags
from koordlet.decide.podrules import PodContext, answer, context_of
from koordlet.decide.podrules.reconcile import RECONCILER, State
from koordlet.doors.admission import Inbox
from koordlet.doors.desk import UNCHANGED, Desk
from koordlet.doors.http import DoorError
from koordlet.doors.nri import LONGEST_WAIT_S, Backoff, NriDoor
from koordlet.doors.nri_identity import Identity, launched
from koordlet.doors.registration import Registration
from koordlet.doors.replies import Replies
from koordlet.doors.teller import Teller
from koordlet.inputs import KubepodsInput
from koordlet.model.places import SOCKET_FILE
from koordlet.model.pod import Pod, PodSet, Tree
from koordlet.model.podevent import PodAnswer, PodEvent
from koordlet.model.status import Snapshot
from koordlet.model.view import Policy
from koordlet.sources.runtime import RuntimeSource

if TYPE_CHECKING:
    from koordlet.doors.runtime_hook import RuntimeHookDoor

log = structlog.get_logger(__name__)

SWITCH_S: Final = 0.0001
HOLD_S: Final = 30.0
"""For how long a pod counts that only the proxy told of: until then a kubelet's list has it, or it has ended."""


class RuntimeDoors:
    """snapshot: the loop's last story. policy: the one in force. timed: takes (stage, status, milliseconds). pods: the
    loop's, on its thread."""

    def __init__(
        self,
        flags: Flags,
        kubepods: KubepodsInput,
        snapshot: Callable[[], Snapshot | None],
        policy: Callable[[], Policy],
        timed: Callable[[str, str, float], None],
        env: Mapping[str, str] = os.environ,
        pods: Callable[[], tuple[Pod, ...]] = tuple,
    ) -> None:
        self._flags, self._kubepods = flags, kubepods
        self._memory = _Memory(snapshot, policy)
        self.inbox = Inbox()
        self.replies = Replies(pods)
        self.desk = Desk(
            self._memory.answer,
            self.inbox,
            observe=flags.observe,
            fail=flags.hooks.fail,
            disabled=flags.hooks.disabled,
            timed=timed,
        )
        alone = flags.standalone and not flags.pods
        self.pods = RuntimeSource(complete=alone, kubepods=lambda: kubepods.get)
        self._nri = self._make_nri(env)
        self._hook: RuntimeHookDoor | None = None
        self._pods_seen = -1

    @property
    def hooked(self) -> bool:
        """A runtime asks before it makes a container."""
        return self._nri is not None and self._nri.ready

    def poll(self, now_s: float) -> PodSet:
        """As a source of the loop. The kubelet's tree is of interest as soon as one of the runtime's pods lies
        there."""
        found = self.pods.poll(now_s)
        if found.revision != self._pods_seen:
            self._pods_seen = found.revision
            if any(pod.tree is Tree.KUBELET for pod in found.pods):
                self._kubepods.wanted = True
        if self._pods_seen > 0:
            self._kubepods.poll(now_s)
        return found

    def start(self) -> None:
        """Raises DoorError."""
        self._hook = self._open_hook()
        if self._nri is not None:
            self._nri.start()
        if self._hook is not None or self._nri is not None:
            # A call passes between threads several times; each may have to wait for so long while a tick computes.
            sys.setswitchinterval(SWITCH_S)

    def close(self) -> None:
        """May be called twice: before the values are given back, and at the end."""
        if self._hook is not None:
            self._hook.close(stay_registered=not self._flags.restore_on_exit)
            self._hook = None
        if self._nri is not None:
            self._nri.close()
        self.desk.close()

    def figures(self) -> dict[str, float]:
        return {**self.desk.figures(), **(self._nri.figures() if self._nri is not None else {})}

    def errors(self) -> tuple[str, ...]:
        found = self.pods.errors()
        if self._nri is not None:
            found += self._nri.errors()
        return found if self._hook is None or not self._hook.error else (*found, self._hook.error)

    def _make_nri(self, env: Mapping[str, str]) -> NriDoor | None:
        flags = self._flags.hooks
        if flags.nri_socket is None:
            return None
        try:
            given = launched(env)
        except ValueError as error:
            raise DoorError(str(error)) from error
        identity, connection = given if given is not None else (Identity(flags.nri_name, flags.nri_index), None)
        return NriDoor(
            flags.nri_socket,
            identity,
            Teller("nri", self.desk, self.pods, self._memory.pod, runtime=flags.runtime, replies=self.replies),
            disabled=flags.disabled,
            backoff=Backoff(
                first_s=flags.nri_backoff_s,
                factor=flags.nri_backoff_factor,
                cap_s=min(flags.nri_backoff_cap_s, LONGEST_WAIT_S),
                steps=flags.nri_backoff_steps,
                settled_s=flags.nri_settled_s,
            ),
            given=connection,
            ended=lambda: os.kill(os.getpid(), signal.SIGTERM),
        )

    def _open_hook(self) -> RuntimeHookDoor | None:
        flags = self._flags.hooks
        stages = flags.proxy_stages(self._flags.gates.effective)
        if not flags.addr or not stages:
            return None
        path = Path(flags.addr)
        if path == self._flags.run_dir / SOCKET_FILE:
            raise DoorError(f"-runtime-hooks-addr={path} is the command's socket; choose another, or another -run-dir")
        if not path.parent.is_dir():
            log.info("hooks.closed", reason=f"{path.parent} does not exist: no koord-runtime-proxy here")
            return None
        from koordlet.doors.runtime_hook import RuntimeHookDoor  # 16 MB, most of it gRPC

        teller = Teller(
            "proxy",
            self.desk,
            self.pods,
            self._memory.pod,
            runtime=flags.runtime,
            hold_s=HOLD_S,
            replies=self.replies,
        )
        registration = Registration(flags.config_dir, flags.host_endpoint, flags.failure_policy, stages)
        door = RuntimeHookDoor(flags.addr, teller, registration)
        door.start()
        log.info("hooks.listening", socket=flags.addr, stages=list(stages))
        return door


class _Memory:
    """What a question is answered from: the last view, never a file or a peer."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], policy: Callable[[], Policy]) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._context: tuple[Snapshot, PodContext] | None = None
        self._by_uid: tuple[tuple[Pod, ...], dict[str, Pod]] = ((), {})

    def answer(self, event: PodEvent) -> PodAnswer:
        """Before the first round there is nothing to answer from; that round makes up for it."""
        snapshot = self._snapshot()
        if snapshot is None:
            return UNCHANGED
        known = self._context
        if known is None or known[0] is not snapshot:
            known = self._context = (snapshot, self._context_of(snapshot))
        return answer(event, known[1])

    def _context_of(self, snapshot: Snapshot) -> PodContext:
        """The reconciler's own, so that both give the same values and nothing is worked out twice."""
        outcome = snapshot.outcomes.get(RECONCILER.name)
        state = outcome.state if outcome is not None else None
        if isinstance(state, State) and state.context is not None:
            return state.context
        return context_of(snapshot.view, self._policy())

    def pod(self, uid: str) -> Pod | None:
        snapshot = self._snapshot()
        pods = snapshot.view.pods.pods if snapshot is not None else ()
        if pods is not self._by_uid[0]:
            self._by_uid = (pods, {pod.uid: pod for pod in pods})
        return self._by_uid[1].get(uid)
