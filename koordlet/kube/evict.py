"""Evictions through the API server, and Events about them, in threads of their own: nobody waits for the server.

An eviction carries the pod's uid as a precondition, so a pod of the same name that came since is left alone. What the
server says comes back as an `EvictionAnswer`; when to try again is the asker's matter. Events about the same pod and
reason count up one object, and more than EVENTS_PER_S of them are dropped.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from koordlet.kube.client import Api
from koordlet.kube.errors import ApiError
from koordlet.kube.limit import RateLimit

log = structlog.get_logger(__name__)

QUEUED: Final = 256
THREADS: Final = 4
"""A server may take ten seconds to refuse one pod (it tries again itself): the next must not wait for that."""
EVENTS_PER_S: Final = 0.2
EVENTS_BURST: Final = 20
REMEMBERED: Final = 256
MESSAGE_LENGTH: Final = 1024
COMPONENT: Final = "koordlet-qosManager"


@dataclass(frozen=True, slots=True)
class PodRef:
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class EvictionAnswer:
    """error: "" when the server accepted it. gone: that very pod is no more; error then is ""."""

    uid: str
    error: str = ""
    gone: bool = False


class Evictions:
    """All methods return at once. node: this node's name, the host of the Events. now: wall clock, UTC.

    dropped: Events and evictions that did not fit.
    """

    def __init__(self, api: Api, node: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.dropped = 0
        self._api, self._node, self._now = api, node, now
        self._condition = threading.Condition()
        self._pods: deque[PodRef] = deque()
        self._asked: set[str] = set()
        self._events: deque[tuple[PodRef, str, str]] = deque()
        self._answers: list[EvictionAnswer] = []
        self._limit = RateLimit(EVENTS_PER_S, EVENTS_BURST)
        self._version = ""
        self._told: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._stopped = False
        self._telling = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def ask(self, pod: PodRef) -> None:
        """Evict it; while one is on its way, asking again for the same pod is no matter."""
        with self._condition:
            if pod.uid in self._asked:
                return
            if len(self._pods) >= QUEUED:
                self.dropped += 1
                self._answers.append(EvictionAnswer(pod.uid, "too many evictions are waiting"))
                return
            self._asked.add(pod.uid)
            self._pods.append(pod)
            self._go()

    def answers(self) -> list[EvictionAnswer]:
        """What came back since the last call."""
        with self._condition:
            found, self._answers = self._answers, []
        return found

    def tell(self, pod: PodRef, reason: str, message: str) -> None:
        """A Warning Event about the pod."""
        with self._condition:
            if len(self._events) >= QUEUED or self._limit.spare() < 1:
                self.dropped += 1
                return
            self._limit.take()
            self._events.append((pod, reason, message))
            self._go()

    def _go(self) -> None:
        """With the lock held: somebody takes it up, a new thread when all are busy."""
        waiting = len(self._pods) + len(self._events)
        if waiting > self._idle and len(self._threads) < THREADS:
            thread = threading.Thread(target=self._run, name="evictions", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._condition.notify()

    # on the threads

    def _run(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                self._condition.wait_for(lambda: self._stopped or self._pods or self._events)
                self._idle -= 1
                if self._stopped:
                    return
                pod = self._pods.popleft() if self._pods else None
                event = self._events.popleft() if pod is None else None
            try:
                if pod is not None:
                    self._evict(pod)
                elif event is not None:
                    with self._telling:
                        self._event(*event)
            except Exception:  # a dead thread would leave every further pod asked for ever
                log.exception("eviction.broken")

    def _evict(self, pod: PodRef) -> None:
        answer = EvictionAnswer(pod.uid, "internal error")
        try:
            answer = self._answer(pod)
        finally:
            with self._condition:
                self._asked.discard(pod.uid)
                self._answers.append(answer)

    def _answer(self, pod: PodRef) -> EvictionAnswer:
        try:
            body = {
                "apiVersion": f"policy/{self._policy_version()}",
                "kind": "Eviction",
                "metadata": {"namespace": pod.namespace, "name": pod.name},
                "deleteOptions": {"preconditions": {"uid": pod.uid}},
            }
            self._api.create(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)
        except ApiError as error:
            # Not so 409, another uid under that name: a static pod's mirror has one, and the pod itself runs on.
            if error.status == 404:
                return EvictionAnswer(pod.uid, gone=True)
            return EvictionAnswer(pod.uid, str(error))
        return EvictionAnswer(pod.uid)

    def _policy_version(self) -> str:
        """policy/v1 came with 1.22; before it there was v1beta1. Asked for once. Raises ApiError."""
        if not self._version:
            known = self._api.get("/api/v1", type=_Resources).resources
            found = next((one.version for one in known if one.name == "pods/eviction"), "")
            self._version = found or "v1"
        return self._version

    def _event(self, pod: PodRef, reason: str, message: str) -> None:
        at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        name, count = self._told.get((pod.uid, reason), ("", 0))
        try:
            if name:
                again = {"count": count + 1, "lastTimestamp": at, "message": message[:MESSAGE_LENGTH]}
                try:
                    self._api.merge_patch(f"{path}/{name}", again)
                except ApiError as error:
                    if error.status != 404:
                        raise
                    name, count = "", 0  # the server forgets Events after an hour
            if not name:
                name = f"{pod.name[:200]}.{uuid.uuid4().hex[:16]}"
                self._api.create(path, self._event_body(pod, name, reason, message, at))
        except ApiError as error:
            self.dropped += 1
            log.warning("event.failed", pod=f"{pod.namespace}/{pod.name}", reason=reason, error=str(error))
            return
        self._told[pod.uid, reason] = (name, count + 1)
        self._told.move_to_end((pod.uid, reason))
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _event_body(self, pod: PodRef, name: str, reason: str, message: str, at: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": pod.namespace, "name": name},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "type": "Warning",
            "reason": reason,
            "message": message[:MESSAGE_LENGTH],
            "source": {"component": COMPONENT, "host": self._node},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
        }


class _Resource(msgspec.Struct):
    name: str = ""
    version: str = ""


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []
