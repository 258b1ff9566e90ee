"""What the peak predictor says, and what follows from it for online (prod) pods. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PERCENTILES = ("p60", "p90", "p95", "p98", "max")


@dataclass(frozen=True, slots=True)
class Peak:
    """Of one model: milli-CPU and bytes at p60, p90, p95, p98 and max."""

    mcpu: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def used(self) -> Amount:
        """What counts as its peak: p95 of CPU, p98 of memory (spec/api 1.1.4)."""
        return Amount(self.mcpu[2], self.bytes[3])


@dataclass(frozen=True, slots=True)
class Amount:
    mcpu: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.mcpu + other.mcpu, self.bytes + other.bytes)

    def less(self, other: Amount) -> Amount:
        """The rest, at least 0 each."""
        return Amount(max(self.mcpu - other.mcpu, 0), max(self.bytes - other.bytes, 0))

    def lower(self, other: Amount) -> Amount:
        return Amount(min(self.mcpu, other.mcpu), min(self.bytes, other.bytes))

    def higher(self, other: Amount) -> Amount:
        return Amount(max(self.mcpu, other.mcpu), max(self.bytes, other.bytes))

    def percent(self, percent: int) -> Amount:
        """Rounded down."""
        return Amount(self.mcpu * percent // 100, self.bytes * percent // 100)


@dataclass(frozen=True, slots=True)
class ProdPrediction:
    """reclaimable: what prod pods requested and will not use. peak: what they and the system may use.

    by_pods, by_classes: the two opinions, of which the lower reclaimable and the higher peak hold.
    """

    by_pods: tuple[Amount, Amount]
    by_classes: tuple[Amount, Amount]

    @property
    def reclaimable(self) -> Amount:
        return self.by_pods[0].lower(self.by_classes[0])

    @property
    def peak(self) -> Amount:
        return self.by_pods[1].higher(self.by_classes[1])
