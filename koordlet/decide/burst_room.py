"""How much of the share pool is free: whether containers may get more quota, must give back, or stay. Pure. (7.2)

The share pool is what no LSE or LSR pod asked for. Its use is averaged over five seconds; what was granted or taken
back within them is not in the average yet and is counted on top, so that a second grant does not spend the same room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

WINDOW_S: Final = 5.0
COOLING: Final = 0.9
"""Share of the threshold up to which quotas may grow."""
RELIEF: Final = 0.95
"""Share of the threshold to which an overload is brought down: above COOLING, so it does not grow again at once."""
CALM_S: Final = 120.0
AGAIN: Final = 0.6
"""After an overload nothing grows for so long, unless the use falls below this share of the threshold: what was too
much a moment ago is too much again, and readings are late and noisy."""


class Room(StrEnum):
    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pool:
    """used: (time, mcpu) of the last five seconds; pending: (time, mcpu) granted (positive) or taken back."""

    used: tuple[tuple[float, float], ...] = ()
    pending: tuple[tuple[float, float], ...] = ()

    def sampled(self, mcpu: float | None, at_s: float, now_s: float) -> Pool:
        kept = tuple(row for row in self.used if now_s - row[0] <= WINDOW_S)
        if mcpu is not None and not any(time_s >= at_s for time_s, _ in kept):
            kept = (*kept, (at_s, mcpu))
        return Pool(kept, tuple(row for row in self.pending if now_s - row[0] < WINDOW_S))

    def granted(self, mcpu: float, now_s: float) -> Pool:
        return replace(self, pending=(*self.pending, (now_s, mcpu))) if mcpu else self

    def expected_mcpu(self, now_s: float) -> float | None:
        """Average use, and what is still to come of the recent grants; None without a sample."""
        if not self.used:
            return None
        average = sum(mcpu for _, mcpu in self.used) / len(self.used)
        return average + sum(mcpu * (1 - (now_s - time_s) / WINDOW_S) for time_s, mcpu in self.pending)

    def average_mcpu(self) -> float | None:
        return sum(mcpu for _, mcpu in self.used) / len(self.used) if self.used else None


def room(used_mcpu: float | None, total_mcpu: float, threshold_percent: int, *, calm: bool = False) -> Room:
    """State of the pool. A pool without CPUs is overloaded. calm: an overload is not long ago."""
    if used_mcpu is None:
        return Room.UNKNOWN
    ratio = used_mcpu / total_mcpu if total_mcpu > 0 else 1.0
    threshold = threshold_percent / 100
    if ratio >= threshold:
        return Room.OVERLOAD
    return Room.COOLING if ratio >= (AGAIN if calm else COOLING) * threshold else Room.IDLE
