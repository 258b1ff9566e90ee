"""NodeMetric: what is sampled for it beside the tick, the prediction of peaks, and its publication."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from koordlet.config.flags import Flags
from koordlet.decide import coldpages
from koordlet.kernel import kidled
from koordlet.kernel.host import Host
from koordlet.kernel.nvml import Nvml
from koordlet.kube.objects import MetricObject
from koordlet.model.device import Device, Gpu
from koordlet.model.nodemetric import MemoryKind
from koordlet.model.pod import Pod
from koordlet.model.prediction import Amount, ProdPrediction
from koordlet.model.status import Snapshot
from koordlet.report.nodemetric_publication import MetricSpec, NodeMetricPublication
from koordlet.sense.gpu import GpuMeter
from koordlet.sense.numa import STEP_S, NumaMeter
from koordlet.store.predictor import Predictor, PredictorConfig
from koordlet.store.prodpeak import NotPredictable, ProdConfig, predict_prod
from koordlet.store.rings import RingStore

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
"""Until the first round; then a step of the meter sets the pace."""


class NodeMetricReport:
    """Parts that live as long as the agent. One thread of its own samples NUMA nodes and GPUs and trains; files and
    driver may be slow. nvml: None where GPUs are not measured. devices: GPUs with their health, by minor number."""

    def __init__(
        self,
        flags: Flags,
        host: Host,
        rings: RingStore,
        metric: Callable[[], MetricObject | None],
        nvml: Nvml | None = None,
        devices: Callable[[], Mapping[int, Device]] = dict,
    ) -> None:
        self._page_cache = flags.enable_pagecache_collector
        self._no_cold = ""
        if coldpages.GATE not in flags.gates.enabled:
            self._no_cold = f"gate {coldpages.GATE} is off"
        elif not kidled.is_there(host):
            self._no_cold = "this kernel has no kidled"
        self._told = False
        self._prod = ProdConfig(flags.prediction_cold_start_s, flags.prediction_safety_margin_percent)
        self.spec = MetricSpec(metric)
        self.predictor = Predictor(rings, predictor_config(flags))
        self.numa = NumaMeter(host, rings)
        self.gpu = None if nvml is None else GpuMeter(nvml, host, rings)
        self._devices = devices
        self.publication = NodeMetricPublication(
            self.spec, rings, self._predict, flags.node_name, lambda: tuple(self.numa.ids), self.gpus
        )
        self._snapshot: Callable[[], Snapshot | None] = lambda: None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodemetric", daemon=True)
        self._waiting = ""
        self.predicted: ProdPrediction | None = None
        """The last one asked for; None before, and where a model is missing."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Those that are measured, with what is known of their health."""
        health = {device.id: device.healthy for device in self._devices().values()}
        measured = self.gpu.gpus if self.gpu is not None else ()
        return tuple(replace(gpu, healthy=health.get(gpu.id, True)) for gpu in measured)

    def page_cache(self) -> bool:
        """Whether memory with page cache is to be sampled."""
        policy = self.spec.current
        return self._page_cache or (policy is not None and policy.memory is MemoryKind.WITH_CACHE)

    def hot_cache(self) -> bool:
        """Whether the cold part of the page cache is to be told from it: where it is asked for, and known."""
        return not self._no_cold and self._wants_hot()

    def notes(self) -> tuple[str, ...]:
        if not (self._no_cold and self._wants_hot()):
            self._told = False
            return ()
        what = f"{MemoryKind.WITH_HOT_CACHE.value} is asked for, but {self._no_cold}: memory is reported without cache"
        if not self._told:
            self._told = True
            log.warning("nodemetric.no_cold_pages", reason=self._no_cold, reported=MemoryKind.WITHOUT_CACHE.value)
        return (f"NodeMetric: {what}",)

    def _wants_hot(self) -> bool:
        policy = self.spec.current
        return policy is not None and policy.memory is MemoryKind.WITH_HOT_CACHE

    def start(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and saves every model."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self.predictor.save_all(time.time())

    def errors(self) -> tuple[str, ...]:
        reasons = (self.predictor.error, self.spec.error, self.publication.clock_error)
        missing = self.publication.error
        return tuple(
            reason for reason in (*reasons, f"NodeMetric not reported: {missing}" if missing else "") if reason
        )

    def step(self, snapshot: Snapshot) -> bool:
        """Samples and trains for one snapshot; False while there are no figures of the node yet."""
        view = snapshot.view
        if view.usage.node_mcpu is None:
            return False
        if view.node.topology is not None:
            self.numa.step(view.node.topology.nodes, view.pods.pods, view.now_s)
        if self.gpu is not None:
            self.gpu.step(view.pods.pods, view.now_s, snapshot.wall_s)
        self.predictor.step(view.pods, view.now_s, snapshot.wall_s)
        return True

    def _run(self) -> None:
        wait_s = LOOK_EVERY_S
        while not self._stop.wait(wait_s):
            snapshot = self._snapshot()
            try:
                if snapshot is not None and self.step(snapshot):
                    wait_s = STEP_S
            except Exception:  # reports must not die of one bad round
                log.exception("nodemetric.step_failed")
                wait_s = STEP_S

    def _predict(self, snapshot: Snapshot, pods: list[Pod]) -> ProdPrediction | None:
        self.predicted = self._found(snapshot, pods)
        return self.predicted

    def _found(self, snapshot: Snapshot, pods: list[Pod]) -> ProdPrediction | None:
        node = snapshot.view.node
        cpu = _first(node.raw_allocatable.cpu_mcpu, node.allocatable.cpu_mcpu)
        memory = _first(node.raw_allocatable.memory_bytes, node.allocatable.memory_bytes)
        if cpu is None or memory is None:
            self._not_predicted("the Node's allocatable is not known")
            return None
        try:
            found = predict_prod(pods, self.predictor.peak, Amount(cpu, memory), self._prod, snapshot.wall_s)
        except NotPredictable as missing:
            self._not_predicted(str(missing))
            return None
        self._waiting = ""
        return found

    def _not_predicted(self, reason: str) -> None:
        if reason != self._waiting:
            log.info("prediction.waiting", reason=reason)
        self._waiting = reason


def predictor_config(flags: Flags) -> PredictorConfig:
    return PredictorConfig(
        directory=flags.prediction_checkpoint_filepath,
        training_interval_s=flags.prediction_training_interval_s,
        cpu_half_life_s=flags.prediction_cpu_half_life_s,
        memory_half_life_s=flags.prediction_memory_half_life_s,
        expiration_s=flags.prediction_model_expiration_s,
        checkpoint_interval_s=flags.prediction_checkpoint_interval_s,
        checkpoints_per_step=flags.prediction_checkpoints_per_step,
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
