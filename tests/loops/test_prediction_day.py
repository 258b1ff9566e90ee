"""A day of a node in virtual time: the peaks that the predictor learns, and that it still knows after a restart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from koordlet.model.pod import Pod, PodSet
from koordlet.model.prediction import Peak
from koordlet.model.qos import KubeQos
from koordlet.store.histogram import CPU, MEMORY, Scale
from koordlet.store.predictor import Predictor, PredictorConfig
from koordlet.store.rings import RingStore

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
GI = 2.0**30
HOUR = 3600.0
DAY = 24 * HOUR
EVERY_S = 15.0
BOOTED_S = 1000.0
PODS = PodSet(
    tuple(
        Pod(name, "online", name, f"kubepods/{name}", KubeQos.BURSTABLE, priority=priority)
        for name, priority in (("web", 9500), ("job", 5500))
    ),
    revision=1,
    at_s=BOOTED_S,
)


def cores(name: str, at_s: float) -> float:
    """web: 1 core, 6 over noon (10-14 h). job: 2 cores by night. The system takes half a core."""
    hour = at_s / HOUR
    web = 6.0 if 10 <= hour < 14 else 1.0
    job = 2.0 if hour < 6 or hour >= 20 else 0.0
    return {"web": web, "job": job, "system": 0.5, "node": web + job + 0.5}[name]


def memory(name: str, at_s: float) -> float:
    """web grows from 2 to 8 GiB over the day, the rest is constant."""
    web = (2 + 6 * at_s / DAY) * GI
    return {"web": web, "job": GI, "system": 3 * GI, "node": web + 4 * GI}[name]


class Day:
    """Samples into real rings; the agent's own clock starts at BOOTED_S, the wall at midnight."""

    def __init__(self) -> None:
        self.rings = RingStore()

    def run(
        self, predictor: Predictor, from_s: float, to_s: float, clock: Callable[[float], float] = lambda at_s: at_s
    ) -> Iterator[float]:
        """clock: what the wall clock shows, counted from midnight."""
        at_s = from_s
        while at_s < to_s:
            for kind, name in (("node", ""), ("pod", "web"), ("pod", "job")):
                for metric, value in (
                    ("cpu", cores(name or "node", at_s) * 1000),
                    ("memory", memory(name or "node", at_s)),
                ):
                    self.rings.push(self.rings.open(kind, name, metric), BOOTED_S + at_s, value)
            if predictor.step(PODS, BOOTED_S + at_s, MIDNIGHT + clock(at_s)):
                yield at_s
            at_s += EVERY_S


def upper(scale: Scale, samples: list[tuple[float, float]], half_life_s: float, share: float) -> float:
    """Percentile by the definition: every sample kept and weighed against the last moment."""
    end_s = samples[-1][0]
    weights: dict[int, float] = {}
    for at_s, value in samples:
        index = scale.index(value)
        weights[index] = weights.get(index, 0.0) + math.exp2((at_s - end_s) / half_life_s)
    reached, total = 0.0, sum(weights.values())
    for index in sorted(weights):
        reached += weights[index]
        if reached >= share * total * (1 - 1e-12):
            return scale.start(index + 1)
    raise AssertionError("no sample")


MODELS = {
    "web": "web",
    "__node-koord-prod__": "web",
    "__node-koord-batch__": "job",
    "__node__": "node",
    "__node-sys__": "system",
}
"""Model -> whose usage it learns."""


def expected(model: str, moments: list[float]) -> tuple[int, int]:
    """p95 of CPU and p98 of memory, in milli-CPU and bytes."""
    name = MODELS[model]
    # The 90th percentile of a minute's five samples is the last but one, of a usage that grows or stays.
    seen = [max(at_s - EVERY_S, 0.0) for at_s in moments]
    cpu = upper(CPU, [(at_s, cores(name, at_s)) for at_s in seen], 12 * HOUR, 0.95)
    size = upper(MEMORY, [(at_s, memory(name, at_s)) for at_s in seen], 24 * HOUR, 0.98)
    return int(cpu * 1000), int(size)


def config(directory: Path | None) -> PredictorConfig:
    return PredictorConfig(directory=directory)


def peaks(predictor: Predictor) -> dict[str, tuple[int, int]]:
    found = predictor.peaks(MODELS)
    return {name: (peak.used.mcpu, peak.used.bytes) for name, peak in found.items()}


def test_a_day_gives_the_peaks_of_the_definition() -> None:
    day = Day()
    predictor = Predictor(day.rings, config(None))
    moments = list(day.run(predictor, 0.0, DAY))
    assert len(moments) == 1440
    assert peaks(predictor) == {name: expected(name, moments) for name in MODELS}
    assert predictor.peak("web").used.mcpu == pytest.approx(6000, rel=0.05)  # the noon peak holds at midnight


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_restart_in_the_middle_forgets_nothing_that_counts(tmp_path: Path, clean: bool) -> None:
    day = Day()
    first = Predictor(day.rings, config(tmp_path))
    before = list(day.run(first, 0.0, 15 * HOUR))
    if clean:
        first.save_all(MIDNIGHT + 15 * HOUR)

    day = Day()  # a new process: empty rings
    second = Predictor(day.rings, config(tmp_path))
    after = list(day.run(second, 15 * HOUR + 60, DAY))

    assert peaks(second) == {name: expected(name, [*before, *after]) for name in MODELS}


@pytest.mark.parametrize("step_s", [HOUR, -HOUR])
def test_a_step_of_the_clock_costs_no_model_and_hardly_any_weight(step_s: float) -> None:
    """At noon by an hour, and at 18 h back again. Rounds and the life of models go by the monotonic clock."""

    def clock(at_s: float) -> float:
        return at_s + step_s if 12 * HOUR <= at_s < 18 * HOUR else at_s

    day, plain = Day(), Day()
    stepped, steady = (Predictor(one.rings, config(None)) for one in (day, plain))
    moments = list(day.run(stepped, 9 * HOUR, 19 * HOUR, clock))
    assert moments == list(plain.run(steady, 9 * HOUR, 19 * HOUR))
    assert len(moments) == 600
    for name, (mcpu, size) in peaks(steady).items():
        found = peaks(stepped)[name]
        assert found[0] == pytest.approx(mcpu, rel=0.051)  # one bucket
        assert found[1] == pytest.approx(size, rel=0.051)
    assert peaks(stepped)["web"][0] == pytest.approx(6000, rel=0.05)


def test_without_checkpoints_the_noon_peak_would_be_forgotten() -> None:
    day = Day()
    predictor = Predictor(day.rings, config(None))
    list(day.run(predictor, 15 * HOUR + 60, DAY))
    found = predictor.peak("web")
    assert isinstance(found, Peak)
    assert found.used.mcpu < 1100
