"""Carrying out evictions: by the API server where there is one, by the container runtime, or by ending the processes
of the cgroup.

A pod is asked to go once. What became of it stays in the book until nobody wishes it gone any more, so a wish that is
repeated each tick costs a dictionary look-up. A refusal (a disruption budget, an error) backs off per pod; a pod that
was killed and comes back is spared for a while. Each attempt leaves an audit record and a count, with the feature as
the reason; in a cluster an Event too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import structlog

from koordlet.act.attributes import Attributes
from koordlet.act.freeze import Freezer
from koordlet.act.kill import Write, kill, members
from koordlet.act.reap import Reaper
from koordlet.kernel.host import Host
from koordlet.kernel.write import write_file
from koordlet.model.audit import AuditRecord, AuditSink
from koordlet.model.effect import Effect, EffectReport
from koordlet.model.eviction import Evict, Eviction, EvictState
from koordlet.model.pod import Tree
from koordlet.model.why import why_text

log = structlog.get_logger(__name__)

REFUSED_FIRST_S: Final = 5.0
REFUSED_MAX_S: Final = 300.0
SPARED_FIRST_S: Final = 60.0
SPARED_MAX_S: Final = 900.0
KEPT: Final = 4096
"""Most pods remembered; the oldest that nobody wishes gone are forgotten first."""


class EvictBy(StrEnum):
    AUTO = "auto"  # the API for a kubelet's pods, the kernel for workloads of our own
    API = "api"  # never anything but the API
    KILL = "kill"  # the kernel for all; the API is told as well where there is one
    CRI = "cri"  # the container runtime stops what it runs, the API is told as well; the kernel for the rest of ours


@dataclass(frozen=True, slots=True)
class Answer:
    """The API server's answer about one pod. error: "" when it was accepted. gone: there is no such pod (any more)."""

    uid: str
    error: str = ""
    gone: bool = False


class EvictionApi(Protocol):
    """The way through the API server (kube/). No method waits for the server."""

    def ask(self, evict: Evict) -> None:
        """POST the eviction with a precondition on the uid, in the background."""

    def answers(self) -> list[Answer]:
        """What came back since the last call."""

    def tell(self, evict: Evict, reason: str, message: str) -> None:
        """A Warning Event on the pod, in the background; reason evictPodSuccess or evictPodFail."""


class Runtime(Protocol):
    """The way through the container runtime (act/cri.py). No method waits for it."""

    def ask(self, evict: Evict) -> None:
        """Stop its containers, in the background."""

    def answers(self) -> list[Answer]:
        """What came back since the last call."""


Identify = Callable[[Evict], bool]
"""Whether the cgroup of that wish still is the workload that was judged."""
Count = Callable[[Evict, str], None]
"""result: evicted, refused or observed."""


@dataclass(slots=True)
class _Entry:
    evict: Evict
    state: EvictState
    since_s: float
    retry_at_s: float = 0.0
    refusals: int = 0
    kills: int = 0
    by_kernel: bool = False
    by_runtime: bool = False
    error: str = ""


class Evictor:
    """Applier of `Evict`; `book` is what decide learns about it."""

    kind = Evict.kind

    def __init__(
        self,
        host: Host,
        audit: AuditSink,
        count: Count,
        identify: Identify,
        *,
        writer: Write = write_file,
        api: EvictionApi | None = None,
        runtime: Runtime | None = None,
        by: EvictBy = EvictBy.AUTO,
        observe: bool = False,
        attributes: Attributes | None = None,
    ) -> None:
        """attributes: where a group that is frozen for a moment is noted; None keeps it in memory."""
        self._freezer = Freezer(host, attributes or Attributes(None, ""), writer)
        if not observe:
            self._freezer.thaw_all()
        self._host, self._audit, self._count = host, audit, count
        self._identify, self._writer = identify, writer
        self._api, self._runtime, self._by, self._observe = api, runtime, by, observe
        self._reaper = Reaper()
        self._entries: dict[str, _Entry] = {}
        self._book: dict[str, Eviction] = {}
        self._done = self._failed = 0
        self._errors: list[str] = []

    def book(self) -> Mapping[str, Eviction]:
        """By uid. A new object whenever something changed."""
        return self._book

    def apply(self, effects: tuple[Effect, ...], now_s: float) -> EffectReport:
        if not effects and not self._entries:
            return _NOTHING
        self._done = self._failed = 0
        self._errors = []
        wanted = {effect.target: effect for effect in effects if isinstance(effect, Evict)}
        for answer in self._api.answers() if self._api is not None else ():
            self._take(answer, now_s)
        for answer in self._runtime.answers() if self._runtime is not None else ():
            self._take(answer, now_s, by_runtime=True)
        for uid, evict in wanted.items():
            entry = self._entries.get(uid)
            ended = entry is None or (
                entry.state in (EvictState.REFUSED, EvictState.DONE) and now_s >= entry.retry_at_s
            )
            if ended:
                self._start(evict, entry, now_s)
            elif entry is not None and entry.by_kernel and entry.state is EvictState.ACCEPTED:
                self._finish(entry, now_s)
        self._forget(wanted, now_s)
        self._publish()
        state = {entry.evict.key: _line(entry) for entry in self._entries.values()}
        return EffectReport(self._done, 0, self._failed, state, tuple(self._errors))

    def restore_all(self, now_s: float, why: str) -> None:
        """An eviction is a deed: nothing to undo, but for a group that could not be thawed."""
        self._freezer.thaw_all()

    # one pod

    def _start(self, evict: Evict, before: _Entry | None, now_s: float) -> None:
        entry = _Entry(evict, EvictState.ASKED, now_s)
        if before is not None:
            entry.refusals, entry.kills = before.refusals, before.kills
        self._entries[evict.target] = entry
        if self._observe:
            entry.state = EvictState.OBSERVED
            self._tell(entry, "observe", "observed")
            return
        own = evict.tree is Tree.OURS
        if own and self._by is EvictBy.API:
            self._refuse(entry, "--evict-by=api, and no API server knows this workload", now_s)
        elif self._by is EvictBy.CRI and self._runtime is not None and evict.containers:
            entry.by_runtime = True
            if not own and self._api is not None:
                self._api.ask(evict)
            self._runtime.ask(evict)
        elif own or self._by is EvictBy.KILL:
            if not own and self._api is not None:
                self._api.ask(evict)
            self._kill(entry, now_s)
        elif self._api is not None:
            self._api.ask(evict)
        else:
            self._refuse(entry, "no API server to ask; --evict-by=kill or cri ends its processes instead", now_s)

    def _take(self, answer: Answer, now_s: float, by_runtime: bool = False) -> None:
        """Of whom we rely on; the API server may be told beside the kernel or the runtime."""
        entry = self._entries.get(answer.uid)
        if entry is None or entry.by_kernel or entry.by_runtime is not by_runtime:
            return
        if entry.state is not EvictState.ASKED:
            return
        if answer.error and not answer.gone:
            self._refuse(entry, answer.error, now_s)
            return
        entry.state, entry.since_s, entry.error, entry.refusals = EvictState.ACCEPTED, now_s, "", 0
        if not answer.gone:
            self._tell(entry, "write", "evicted")
        if by_runtime:
            entry.kills += 1
            self._over(entry, now_s)

    def _kill(self, entry: _Entry, now_s: float) -> None:
        entry.by_kernel = True
        if not self._identify(entry.evict):
            self._refuse(entry, "the cgroup is gone or belongs to another workload by now", now_s)
            return
        for cgroup in _cgroups(entry.evict):
            killed = kill(self._host, cgroup, self._writer, self._freezer, self._reaper)
            if killed.error:
                self._refuse(entry, killed.error, now_s)
                return
        entry.state, entry.since_s = EvictState.ACCEPTED, now_s
        entry.kills, entry.refusals, entry.error = entry.kills + 1, 0, ""
        self._tell(entry, "write", "evicted")
        self._finish(entry, now_s)

    def _finish(self, entry: _Entry, now_s: float) -> None:
        """Done once nobody is left; until then whoever was forked meanwhile is killed, too."""
        try:
            left = any(members(self._host, cgroup) for cgroup in _cgroups(entry.evict))
        except OSError as error:
            entry.error = f"{error.filename}: {error.strerror}"
            return
        if left and self._identify(entry.evict):
            for cgroup in _cgroups(entry.evict):
                kill(self._host, cgroup, self._writer, self._freezer)
            return
        self._over(entry, now_s)

    def _over(self, entry: _Entry, now_s: float) -> None:
        """Nothing of it runs any more; should it come back (a kubelet restarts containers), it is spared a while."""
        entry.state = EvictState.DONE
        entry.retry_at_s = now_s + min(SPARED_FIRST_S * 2.0 ** (entry.kills - 1), SPARED_MAX_S)

    def _refuse(self, entry: _Entry, error: str, now_s: float) -> None:
        entry.state, entry.error, entry.since_s = EvictState.REFUSED, error, now_s
        entry.retry_at_s = now_s + min(REFUSED_FIRST_S * 2.0 ** min(entry.refusals, 16), REFUSED_MAX_S)
        entry.refusals += 1
        self._failed += 1
        self._errors.append(f"evict {entry.evict.key}: {error}")
        self._tell(entry, "refused", "refused")

    # telling

    def _tell(self, entry: _Entry, mode: str, result: str) -> None:
        evict = entry.evict
        text = f"trigger by koordlet feature {evict.feature}"
        message = f"{result}: {text}; {why_text(evict.why)}" + (f"; {entry.error}" if entry.error else "")
        self._audit(
            AuditRecord(
                level=0,
                kind="pod",
                reason=evict.feature,
                message=message,
                namespace=evict.namespace,
                name=evict.name,
                target=evict.cgroup,
                owner=evict.owner,
                why=evict.why,
                mode=mode,
                error=entry.error,
            )
        )
        self._count(evict, result)
        log.warning("pod.evict", pod=evict.key, result=result, feature=evict.feature, error=entry.error)
        if self._api is not None and mode != "observe" and evict.tree is Tree.KUBELET:
            self._api.tell(evict, "evictPodFail" if entry.error else "evictPodSuccess", message)
        if mode == "write":
            self._done += 1

    def _forget(self, wanted: Mapping[str, Evict], now_s: float) -> None:
        """A pod that nobody wishes gone: gone by now, or needed no more. Back-off is remembered a while longer."""
        for uid, entry in list(self._entries.items()):
            if uid in wanted:
                continue
            over = entry.state in (EvictState.REFUSED, EvictState.DONE)
            if not over or now_s >= entry.retry_at_s + REFUSED_MAX_S or len(self._entries) > KEPT:
                del self._entries[uid]

    def _publish(self) -> None:
        book = {
            uid: Eviction(uid, e.evict.feature, e.state, e.since_s, e.retry_at_s, e.error)
            for uid, e in self._entries.items()
        }
        if book != self._book:
            self._book = book


_NOTHING: Final = EffectReport(until_s=math.inf)


def _cgroups(evict: Evict) -> tuple[str, ...]:
    return evict.parts or (evict.cgroup,)


def _line(entry: _Entry) -> str:
    return f"{entry.state} ({entry.evict.feature})" + (f": {entry.error}" if entry.error else "")
