"""`Predictor`: how much pods, priority classes, the system and the node use at their peaks (spec/collect 6.3, 6.4).

Every training round adds one sample, the 90th percentile of the last minute, to each model's CPU and memory histogram.
A round without fresh figures of the node is left out as a whole: nothing is learnt from what was not measured. Models
nobody feeds any more are dropped with their file; files are read once, when the pods of the node are known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from koordlet.model.pod import Pod, PodSet
from koordlet.model.prediction import Peak
from koordlet.model.qos import PriorityClass
from koordlet.store import checkpoint
from koordlet.store.aggregate import Aggregate
from koordlet.store.checkpoint import NODE, NODE_ITEMS, SYSTEM, Checkpoint, class_item
from koordlet.store.histogram import CPU, MEMORY, Histogram

log = structlog.get_logger(__name__)

EMPTY_LIST_S: Final = 60.0
"""So long an empty list of pods is taken for a kubelet that has just started: no file is judged by it."""
EARLY: Final = 0.05
"""Of an interval: who calls has a pace of its own, and a round a little early is better than one a step late."""
_PERCENTILES: Final = (0.6, 0.9, 0.95, 0.98, 1.0)
_NAME_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """Seconds, as the flags --prediction-... say. directory None: nothing is kept over a restart."""

    directory: Path | None = None
    training_interval_s: float = 60.0
    cpu_half_life_s: float = 12 * 3600.0
    memory_half_life_s: float = 24 * 3600.0
    expiration_s: float = 30 * 60.0
    checkpoint_interval_s: float = 600.0
    checkpoints_per_step: int = 12


class Windows(Protocol):
    """Aggregates of what was measured (store.rings.RingStore): milli-CPU and bytes."""

    def window(self, kind: str, ident: str, metric: str, seconds: float, now_s: float) -> Aggregate | None: ...


class _Model:
    __slots__ = ("cpu", "fed_s", "memory", "saved_s")

    def __init__(self, config: PredictorConfig, now_s: float) -> None:
        self.cpu = Histogram(CPU, config.cpu_half_life_s)
        self.memory = Histogram(MEMORY, config.memory_half_life_s)
        self.fed_s = now_s
        self.saved_s = float("-inf")


class Predictor:
    """now_s: monotonic, wall_s: of the same moment. Any thread may ask while one trains.

    error: why checkpoints cannot be written, "" when they can.
    """

    def __init__(self, windows: Windows, config: PredictorConfig) -> None:
        self._windows, self._config = windows, config
        self._models: dict[str, _Model] = {}
        self._lock = threading.Lock()
        self._started_s: float | None = None
        self._restored = False
        self._trained_s = float("-inf")
        self.error = ""

    def step(self, pods: PodSet, now_s: float, wall_s: float) -> bool:
        """One round when it is due: restore (once), train, drop what expired, save. True when it trained."""
        if pods.at_s is None:
            return False
        if now_s - self._trained_s < (1 - EARLY) * self._config.training_interval_s:
            self._begin(pods.pods, now_s, wall_s)
            return False
        self._started_s = now_s if self._started_s is None else self._started_s
        if not self._restored:
            if not pods.pods and now_s - self._started_s < EMPTY_LIST_S:
                return False
            self._restore({pod.uid for pod in pods.pods}, now_s)
            self._restored = True
        node = self._p90("node", "", now_s)
        if node is None:
            return False
        self._trained_s = now_s
        with self._lock:
            self._train(pods.pods, node, now_s, wall_s)
            expired = [name for name, model in self._models.items() if now_s - model.fed_s > self._config.expiration_s]
            for name in expired:
                del self._models[name]
        self._save(expired, now_s, wall_s)
        return True

    def peak(self, name: str) -> Peak | None:
        """Of a pod's uid or a node item; None without a model."""
        with self._lock:
            model = self._models.get(name)
            return None if model is None else _peak(model)

    def peaks(self, names: Iterable[str]) -> dict[str, Peak]:
        """Those of `names` that have a model."""
        with self._lock:
            return {name: _peak(self._models[name]) for name in names if name in self._models}

    def save_all(self, wall_s: float) -> None:
        """Every model, for a clean stop."""
        with self._lock:
            names = list(self._models)
        for name in names:
            self._write(name, wall_s)

    def _train(self, pods: tuple[Pod, ...], node: tuple[float, float], now_s: float, wall_s: float) -> None:
        sums = dict.fromkeys(PriorityClass, (0.0, 0.0))
        for pod in pods:
            used = self._p90("pod", pod.uid, now_s)
            if used is None:
                continue
            self._feed(pod.uid, used, now_s, wall_s)
            before = sums[pod.priority_class]
            sums[pod.priority_class] = (before[0] + used[0], before[1] + used[1])
        for priority, used in sums.items():
            self._feed(class_item(priority), used, now_s, wall_s)
        cpu, memory = (sum(used[index] for used in sums.values()) for index in (0, 1))
        self._feed(NODE, node, now_s, wall_s)
        self._feed(SYSTEM, (max(node[0] - cpu, 0.0), max(node[1] - memory, 0.0)), now_s, wall_s)

    def _begin(self, pods: tuple[Pod, ...], now_s: float, wall_s: float) -> None:
        """A model for pods that had no figures yet in the last round: without it nothing could be said of the node."""
        with self._lock:
            for pod in pods:
                if (
                    pod.active
                    and pod.uid not in self._models
                    and (used := self._p90("pod", pod.uid, now_s)) is not None
                ):
                    self._feed(pod.uid, used, now_s, wall_s)

    def _p90(self, kind: str, ident: str, now_s: float) -> tuple[float, float] | None:
        """Cores and bytes."""
        window_s = self._config.training_interval_s
        cpu = self._windows.window(kind, ident, "cpu", window_s, now_s)
        memory = self._windows.window(kind, ident, "memory", window_s, now_s)
        return None if cpu is None or memory is None else (cpu.p90 / 1000, memory.p90)

    def _feed(self, name: str, used: tuple[float, float], now_s: float, wall_s: float) -> None:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(self._config, now_s)
        model.cpu.add(used[0], wall_s)
        model.memory.add(used[1], wall_s)
        model.fed_s = now_s

    def _restore(self, uids: set[str], now_s: float) -> None:
        if self._config.directory is None:
            return
        try:
            found = checkpoint.restore(self._config.directory, uids)
        except OSError as error:
            self._fault(error)
            return
        with self._lock:
            for name, saved in found.items():
                self._models[name] = self._restored_model(saved, now_s)
        log.info("prediction.restored", models=len(found))

    def _restored_model(self, saved: Checkpoint, now_s: float) -> _Model:
        model = _Model(self._config, now_s)
        for histogram, said in ((model.cpu, saved.cpu), (model.memory, saved.memory)):
            histogram.restore(said.weights, said.total_weight, said.reference_s)
        model.saved_s = now_s
        return model

    def _save(self, expired: list[str], now_s: float, wall_s: float) -> None:
        config = self._config
        if config.directory is None:
            return
        for name in expired:
            with suppress(OSError):
                checkpoint.remove(config.directory, name)
        waiting = sorted(
            (model.saved_s, name)
            for name, model in self._models.items()
            if now_s - model.saved_s >= (1 - EARLY) * config.checkpoint_interval_s
        )
        for _, name in waiting[: config.checkpoints_per_step]:
            if not self._write(name, wall_s):
                return  # a full disk is full for all of them; next round again
            self._models[name].saved_s = now_s

    def _write(self, name: str, wall_s: float) -> bool:
        directory, model = self._config.directory, self._models[name]
        if directory is None or not _is_file_name(name):
            return True
        try:
            checkpoint.save(directory, name, model.cpu, model.memory, wall_s)
        except OSError as error:
            self._fault(error)
            return False
        self.error = ""
        return True

    def _fault(self, error: OSError) -> None:
        text = f"prediction checkpoints in {self._config.directory}: {error.strerror or error}"
        if text != self.error:
            log.warning("prediction.checkpoint_failed", error=text)
        self.error = text


def _is_file_name(name: str) -> bool:
    """Pod uids come from outside."""
    return name in NODE_ITEMS or (len(name) <= _NAME_MAX and name.replace("-", "").isalnum() and name.isascii())


def _peak(model: _Model) -> Peak:
    cpu, memory = ([h.percentile(share) for share in _PERCENTILES] for h in (model.cpu, model.memory))
    return Peak(tuple(int(cores * 1000) for cores in cpu), tuple(int(size) for size in memory))
