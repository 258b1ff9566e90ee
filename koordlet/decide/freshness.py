"""How old a reading may be before a strategy stops trusting it (spec 18.3 item 5). Pure."""

from __future__ import annotations

from enum import Enum
from typing import Final

FRESH_INTERVALS: Final = 3
FLOOR_AGE_S: Final = 15.0


class Trust(Enum):
    """FRESH: decide. FROZEN: keep what is. FLOOR: move best-effort work to the safe floor."""

    FRESH = "fresh"
    FROZEN = "frozen"
    FLOOR = "floor"


def judge(age_s: float, interval_s: float) -> Trust:
    """Rung of the ladder for a reading of that age, where one is expected every `interval_s`."""
    if age_s <= FRESH_INTERVALS * interval_s:
        return Trust.FRESH
    return Trust.FLOOR if age_s > FLOOR_AGE_S else Trust.FROZEN
