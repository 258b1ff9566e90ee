"""All phases, round after round in alternating order, and the medians over the rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from koordlet.demo.layout import cpu_count
from koordlet.demo.options import Options
from koordlet.demo.phase import WORK_US, Measured, Phase, measure
from koordlet.load.batch import BatchKind
from koordlet.load.cgroups import ScratchTree
from koordlet.load.online import calibrate


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds. to_alone, to_unmanaged: median of the p99 ratios within each round."""

    phase: Phase
    antagonist: BatchKind | None
    p50_us: float
    p99_us: float
    p999_us: float
    to_alone: float
    to_unmanaged: float | None
    given_up: int
    online_cpus: float
    batch_cpus: float
    other_cpus: float
    work: float
    idle_share: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """rounds: what was measured, in the order of running. rows: in the order of the phases."""

    rounds: tuple[tuple[Measured, ...], ...]
    rows: tuple[Row, ...]


def run_rounds(tree: ScratchTree, options: Options, progress: Callable[[str], None]) -> Outcome:
    """Every second round runs backwards, so that slow changes of the machine hit the phases alike."""
    calibrated = calibrate(WORK_US)
    rounds = []
    for number in range(options.rounds):
        plan = cells(options) if number % 2 == 0 else cells(options)[::-1]
        done = []
        for phase, kind in plan:
            done.append(measure(tree, options, phase, kind, calibrated, seed=number + 1))
            progress(f"round {number + 1}/{options.rounds} {_told(done[-1])}")
        rounds.append(tuple(done))
    return Outcome(tuple(rounds), tuple(make_row(rounds, phase, kind) for phase, kind in cells(options)))


def cells(options: Options) -> list[tuple[Phase, BatchKind | None]]:
    """Alone once, the other phases per antagonist."""
    others = [phase for phase in Phase if phase is not Phase.ALONE]
    return [(Phase.ALONE, None), *((phase, kind) for kind in options.antagonists for phase in others)]


def make_row(rounds: list[tuple[Measured, ...]], phase: Phase, kind: BatchKind | None) -> Row:
    found = [_pick(done, phase, kind) for done in rounds]
    alone = [_pick(done, Phase.ALONE, None).online.p99_us for done in rounds]
    p99 = [one.online.p99_us for one in found]
    to_unmanaged = None
    if kind is not None:
        unmanaged = [_pick(done, Phase.UNMANAGED, kind).online.p99_us for done in rounds]
        to_unmanaged = _ratio(p99, unmanaged)
    shares = [one.idle_share for one in found if one.idle_share is not None]
    return Row(
        phase=phase,
        antagonist=kind,
        p50_us=median(one.online.p50_us for one in found),
        p99_us=median(p99),
        p999_us=median(one.online.p999_us for one in found),
        to_alone=_ratio(p99, alone),
        to_unmanaged=to_unmanaged,
        given_up=sum(one.online.given_up for one in found),
        online_cpus=median(one.online_cpus for one in found),
        batch_cpus=median(one.batch_cpus for one in found),
        other_cpus=median(one.other_cpus for one in found),
        work=median(one.work for one in found),
        idle_share=median(shares) if shares else None,
    )


def _pick(done: tuple[Measured, ...], phase: Phase, kind: BatchKind | None) -> Measured:
    return next(one for one in done if (one.phase, one.antagonist) == (phase, kind))


def _ratio(these: list[float], those: list[float]) -> float:
    return median(a / b for a, b in zip(these, those, strict=True))


def _told(one: Measured) -> str:
    name = f"{one.phase}" + (f", {one.antagonist}" if one.antagonist else "")
    batch = f", batch {one.batch_cpus:.2f} of {cpu_count()} CPUs" if one.antagonist else ""
    return f"{name}: online p99 {one.online.p99_us / 1000:.2f} ms{batch}"
