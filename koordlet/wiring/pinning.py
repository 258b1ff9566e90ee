"""Declared workloads with their own CPUs: a source over the local one that places them and remembers where.

Somebody may ask, from another thread, to have them placed anew: `plan` says what that would do, `ask` wants it done,
and the loop's next tick does it, all at once. Nothing else ever moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from koordlet.decide.pinning.assign import assign
from koordlet.decide.pinning.defragment import Plan, basis_of, make_plan
from koordlet.model.pinning import Allocation
from koordlet.model.pod import Pod, PodSet
from koordlet.model.view import NodeInfo
from koordlet.parts import Source
from koordlet.store.pins import PinFile

log = structlog.get_logger(__name__)

_Placed = tuple[tuple[Pod, ...], Mapping[str, Allocation], NodeInfo, tuple[Pod, ...]]
"""What `assign` was given last, with the CPUs that were held afterwards."""


class PinnedSource:
    """`inner`'s pods with CPUs for those that ask.

    file: None remembers nothing (an agent that only observes). others: pods that another scheduler pinned here.
    stays: workloads that must not be moved even then. refused: workloads that asked in vain. answered: id of the last
    plan that was asked for, and why it was not carried out, "" when it was.
    """

    def __init__(
        self,
        inner: Source,
        node: Callable[[float], NodeInfo],
        file: PinFile | None,
        others: Callable[[], tuple[Pod, ...]] = tuple,
        stays: Callable[[Pod], bool] = lambda pod: False,
    ) -> None:
        self._inner, self._node, self._file, self._others, self._stays = inner, node, file, others, stays
        self._held = file.load() if file is not None else {}
        self._key: tuple[object, ...] = ()
        self._known = PodSet()
        self._placed: _Placed | None = None
        self._planned: tuple[_Placed, Plan] | None = None
        self._asked: Plan | None = None
        self._done: tuple[str, str] | None = None
        self.refused: tuple[str, ...] = ()
        self.answered = ("", "")

    def poll(self, now_s: float) -> PodSet:
        if self._done is not None:  # by now the round that moved them has written it all
            self.answered, self._done = self._done, None
        answer, node, others = self._inner.poll(now_s), self._node(now_s), self._others()
        if answer.at_s is None:
            return answer
        key = (answer.revision, node, others)
        if self._asked is not None:
            self._move(answer.pods, node, others)
        elif key == self._key:
            self._known = PodSet(self._known.pods, self._known.revision, answer.at_s)
            return self._known
        placed = assign(answer.pods, self._held, node, others)
        if placed.held != self._held or self.errors():
            for uid in placed.held.keys() - self._held.keys():
                name = next(pod.key for pod in placed.pods if pod.uid == uid)
                log.info("pinned", workload=name, cpus=str(placed.held[uid].cpus))
            self._held = dict(placed.held)
            if self._file is not None:
                self._file.save(self._held)
        if placed.refused != self.refused:
            self.refused = placed.refused
            for text in placed.refused:
                log.warning("pin.refused", why=text)
        self._placed = (answer.pods, self._held, node, others)
        changed = placed.pods != self._known.pods or self._known.at_s is None
        self._key = key
        self._known = PodSet(placed.pods, self._known.revision + changed, answer.at_s)
        return self._known

    @property
    def moves(self) -> bool:
        """A plan is asked for, or was carried out in the round under way."""
        return self._asked is not None or self._done is not None

    def plan(self) -> Plan | None:
        """What placing everybody anew would do now; None before the first round. From any thread."""
        placed, known = self._placed, self._planned
        if placed is None:
            return None
        if known is None or known[0] is not placed:
            pods, held, node, others = placed
            fixed = frozenset(pod.uid for pod in pods if self._stays(pod))
            known = self._planned = (placed, make_plan(pods, held, node, others, fixed=fixed))
        return known[1]

    def ask(self, plan_id: str) -> str:
        """Have that plan carried out by the next tick; "" or why not. From any thread."""
        if self._file is None:
            return "the agent only observes; it moves nobody"
        now = self.plan()
        if now is None or now.id != plan_id:
            return "the workloads have changed since the plan was made; look at the new one"
        self.answered = ("", "")
        self._asked = now
        return ""

    def _move(self, pods: tuple[Pod, ...], node: NodeInfo, others: tuple[Pod, ...]) -> None:
        """Places first go to the file: a crash must not move everybody back."""
        asked, self._asked = self._asked, None
        if asked is None or self._file is None:
            return
        error = ""
        if asked.basis != basis_of(pods, self._held, node, others):
            error = "the workloads have changed since the plan was made; look at the new one"
        elif asked.moves and not self._file.save(asked.held):
            error = self._file.error
        else:
            for move in asked.moves:
                log.info("pinned.moved", workload=move.name, before=str(move.before or ""), cpus=str(move.after or ""))
            self._held = dict(asked.held)
            self._done = (asked.id, "")
        if error:
            log.warning("pins.not_moved", plan=asked.id, why=error)
            self.answered = (asked.id, error)

    def errors(self) -> tuple[str, ...]:
        return (self._file.error,) if self._file is not None and self._file.error else ()
