"""`Interference`: each online workload against its own past, and which best-effort work explains it.

Method: CPI2 (Zhang, Tune, Hagmann, Jnagal, Gokhale, Wilkes: "CPI2: CPU performance isolation for shared compute
clusters", EuroSys 2013), section 4, with three changes for a single node: the past is the node's own, not the fleet's;
any signal that is worse when larger may stand in for cycles per instruction; a suspect's activity is its memory
bandwidth where the machine tells it, else its CPU use.

Baseline. The median of the workload's quiet samples (best effort idle); until there are MIN_SAMPLES of them, the
lower fifth of all samples, which is the best that was seen beside best effort.
Correlation. Over the window, with a suspect's activities normalised to sum 1 and a threshold at two standard deviations
above the baseline: each sample over the threshold adds activity x (1 - threshold / value), each sample below adds
activity x (value / threshold - 1). So 1 is "active exactly when it hurts", -1 "active exactly when it does not".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median, pstdev
from typing import Final

from koordlet.model.hardware import Online, Pair, Suspect

MIN_SAMPLES: Final = 8
KEPT: Final = 240
WINDOW: Final = 60
SUSPECTS: Final = 5
QUIET_MCPU: Final = 50.0
"""Best effort that uses less altogether is idle."""
MIN_SPREAD: Final = 0.05
"""Least standard deviation, as a share of the baseline, so that a very steady past does not make noise an alarm."""
FLOOR: Final = {"psi_cpu": 0.2}
"""Signals that are near 0 when all is well are compared with this instead of with a smaller baseline."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of an online workload."""

    name: str
    signal: str
    value: float
    llc_bytes: int | None = None
    bandwidth_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What a best-effort workload did in the same time: milli-CPU, and bytes per second where known."""

    mcpu: float
    bandwidth_rate: float | None = None


@dataclass(slots=True)
class _Meeting:
    """Sums of one pair's samples with and without the suspect's activity."""

    together: int = 0
    apart: int = 0
    sum_together: float = 0.0
    sum_apart: float = 0.0


@dataclass(slots=True)
class _Past:
    quiet: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    every: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    window: deque[tuple[float, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    meetings: dict[str, _Meeting] = field(default_factory=dict)
    samples: int = 0
    seen_s: float = 0.0

    def baseline(self, signal: str) -> tuple[float, float] | None:
        """(baseline, threshold), None while too little is known."""
        if len(self.quiet) >= MIN_SAMPLES:
            values, middle = list(self.quiet), median(self.quiet)
        elif len(self.every) >= MIN_SAMPLES:
            values = sorted(self.every)[: max(2, len(self.every) // 5)]
            middle = median(values)
        else:
            return None
        scale = max(middle, FLOOR.get(signal, 0.0))
        return middle, middle + 2 * max(pstdev(values), MIN_SPREAD * scale)


class Interference:
    """forget_s: a workload that was not seen for so long is forgotten."""

    def __init__(self, forget_s: float = 900.0) -> None:
        self._forget_s = forget_s
        self._past: dict[tuple[str, str], _Past] = {}

    def add(
        self, now_s: float, samples: Iterable[Sample], batch: Mapping[str, Activity]
    ) -> tuple[tuple[Online, ...], tuple[Pair, ...]]:
        """Takes one round of samples; answers with every workload of the round and every pair met so far."""
        by_bandwidth = bool(batch) and all(row.bandwidth_rate is not None for row in batch.values())
        active = {name: (row.bandwidth_rate or 0.0) if by_bandwidth else row.mcpu for name, row in batch.items()}
        quiet = sum(row.mcpu for row in batch.values()) < QUIET_MCPU
        online: list[Online] = []
        pairs: list[Pair] = []
        for sample in samples:
            past = self._past.setdefault((sample.name, sample.signal), _Past())
            known = past.baseline(sample.signal)
            self._learn(past, sample.value, quiet, active, batch, now_s)
            suspects = _suspects(past, known[1]) if known else []
            online.append(
                Online(
                    name=sample.name,
                    signal=sample.signal,
                    value=sample.value,
                    at_s=now_s,
                    baseline=known[0] if known else None,
                    excess=_excess(sample, known[0]) if known else None,
                    samples=past.samples,
                    suspects=tuple(suspects[:SUSPECTS]),
                    llc_bytes=sample.llc_bytes,
                    bandwidth_rate=sample.bandwidth_rate,
                )
            )
            found = {row.name: row.correlation for row in suspects}
            pairs += [_pair(sample, name, row, found.get(name, 0.0)) for name, row in past.meetings.items()]
        for key in [key for key, past in self._past.items() if now_s - past.seen_s > self._forget_s]:
            del self._past[key]
        return tuple(online), tuple(pairs)

    def _learn(
        self,
        past: _Past,
        value: float,
        quiet: bool,
        active: Mapping[str, float],
        batch: Mapping[str, Activity],
        now_s: float,
    ) -> None:
        past.samples += 1
        past.seen_s = now_s
        past.every.append(value)
        if quiet:
            past.quiet.append(value)
        past.window.append((value, active))
        for name in [name for name in past.meetings if name not in batch and not _in_window(past, name)]:
            del past.meetings[name]
        for name in {*past.meetings, *batch}:
            meeting = past.meetings.setdefault(name, _Meeting())
            row = batch.get(name)
            if row is not None and row.mcpu >= QUIET_MCPU:
                meeting.together += 1
                meeting.sum_together += value
            elif quiet:  # neither this one nor another in its place
                meeting.apart += 1
                meeting.sum_apart += value


def _suspects(past: _Past, threshold: float) -> list[Suspect]:
    totals: dict[str, float] = {}
    scores: dict[str, float] = {}
    for value, active in past.window:
        weight = (1 - threshold / value if value > threshold else value / threshold - 1) if threshold > 0 < value else 0
        for name, amount in active.items():
            totals[name] = totals.get(name, 0.0) + amount
            scores[name] = scores.get(name, 0.0) + amount * weight
    found = [Suspect(name, scores[name] / total) for name, total in totals.items() if total > 0]
    return sorted(found, key=lambda row: (-row.correlation, row.name))


def _excess(sample: Sample, baseline: float) -> float:
    return (sample.value - baseline) / max(baseline, FLOOR.get(sample.signal, 1e-9))


def _in_window(past: _Past, name: str) -> bool:
    return any(name in active for _, active in past.window)


def _pair(sample: Sample, name: str, row: _Meeting, correlation: float) -> Pair:
    return Pair(
        online=sample.name,
        batch=name,
        signal=sample.signal,
        together=row.together,
        apart=row.apart,
        mean_together=row.sum_together / row.together if row.together else None,
        mean_apart=row.sum_apart / row.apart if row.apart else None,
        correlation=correlation,
    )
