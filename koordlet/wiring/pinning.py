"""Declared workloads with their own CPUs: a source over the local one that places them and remembers where."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from koordlet.decide.pinning.assign import assign
from koordlet.loops import Source
from koordlet.model.pod import Pod, PodSet
from koordlet.model.view import NodeInfo
from koordlet.store.pins import PinFile

log = structlog.get_logger(__name__)


class PinnedSource:
    """`inner`'s pods with CPUs for those that ask.

    file: None remembers nothing (an agent that only observes). others: pods that another scheduler pinned here.
    refused: workloads that asked in vain.
    """

    def __init__(
        self,
        inner: Source,
        node: Callable[[float], NodeInfo],
        file: PinFile | None,
        others: Callable[[], tuple[Pod, ...]] = tuple,
    ) -> None:
        self._inner, self._node, self._file, self._others = inner, node, file, others
        self._held = file.load() if file is not None else {}
        self._key: tuple[object, ...] = ()
        self._known = PodSet()
        self.refused: tuple[str, ...] = ()

    def poll(self, now_s: float) -> PodSet:
        answer, node, others = self._inner.poll(now_s), self._node(now_s), self._others()
        if answer.at_s is None:
            return answer
        key = (answer.revision, node, others)
        if key == self._key:
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
        changed = placed.pods != self._known.pods or self._known.at_s is None
        self._key = key
        self._known = PodSet(placed.pods, self._known.revision + changed, answer.at_s)
        return self._known

    def errors(self) -> tuple[str, ...]:
        return (self._file.error,) if self._file is not None and self._file.error else ()
