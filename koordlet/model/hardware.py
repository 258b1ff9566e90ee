"""What the hardware's counters and partitions say at one moment: part of a `NodeView`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordlet.model.resctrl import CacheReadings, Resctrl


@dataclass(frozen=True, slots=True)
class Counts:
    """Scaled counts of one cgroup over one window of `window_s` that ended at `at_s`.

    None: this machine does not count it, or it counted nothing in the window. cpu_clock_ns: CPU time.
    """

    at_s: float
    window_s: float
    cycles: int | None = None
    instructions: int | None = None
    llc_misses: int | None = None
    cpu_clock_ns: int | None = None
    task_clock_ns: int | None = None
    context_switches: int | None = None
    page_faults: int | None = None

    @property
    def cpi(self) -> float | None:
        return self.cycles / self.instructions if self.cycles is not None and self.instructions else None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A best-effort workload and how well its activity explains an online one's slowness: -1..1, suspected from 0.35
    (CPI2, Zhang et al., EuroSys 2013)."""

    name: str
    correlation: float


@dataclass(frozen=True, slots=True)
class Online:
    """One online workload against its own past. signal: "p99_ms", "cpi" or "psi_cpu" (share of time). excess: how far
    the signal is above its baseline, 0.1 is a tenth; None while there is no baseline. suspects: the worst first."""

    name: str
    signal: str
    value: float
    at_s: float
    baseline: float | None = None
    excess: float | None = None
    samples: int = 0
    suspects: tuple[Suspect, ...] = ()
    llc_bytes: int | None = None
    bandwidth_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """An online and a best-effort workload: mean signal in windows with and without the latter's activity."""

    online: str
    batch: str
    signal: str
    together: int
    apart: int
    mean_together: float | None
    mean_apart: float | None
    correlation: float

    @property
    def change(self) -> float | None:
        """Relative change of the signal when both run."""
        if not self.mean_apart or self.mean_together is None:
            return None
        return self.mean_together / self.mean_apart - 1


@dataclass(frozen=True, slots=True)
class Hardware:
    """resctrl: None where it is not mounted. counts: by container cgroup."""

    resctrl: Resctrl | None = None
    cache: CacheReadings | None = None
    counts: Mapping[str, Counts] = field(default_factory=dict)
    online: tuple[Online, ...] = ()
    pairs: tuple[Pair, ...] = ()
