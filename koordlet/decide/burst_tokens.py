"""How long a container may burst: use above its limit takes tokens, use below 60 % gives them back. Pure. (7.5)"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Final

from koordlet.model.burst import CpuBurst

CONSUMES_PERCENT: Final = 100
SAVES_PERCENT: Final = 60


@dataclass(frozen=True, slots=True)
class Tokens:
    """left: within [-capacity, capacity]; one is one percent of the limit for one second. at_s: last account."""

    capacity: float
    left: float
    at_s: float

    @property
    def allowed(self) -> bool:
        return self.left > 0


def capacity_of(config: CpuBurst) -> float:
    """Tokens of a full account; 0 never allows."""
    return float(config.quota_burst_period_s * max(config.quota_burst_percent - 100, 0))


def begin(key: str, config: CpuBurst, now_s: float) -> Tokens:
    """A new account, filled to somewhere below half, the same for the same container: after a start of the agent not
    all containers may burst at once."""
    capacity = capacity_of(config)
    share = zlib.crc32(key.encode("utf-8", "surrogatepass")) % 4096 / 8192
    return Tokens(capacity, capacity * share, now_s)


def account(tokens: Tokens, usage_percent: int, now_s: float) -> Tokens:
    """After `usage_percent` of the limit was used since the last account. beyond: fractions of a second count."""
    elapsed_s = max(now_s - tokens.at_s, 0.0)
    left = tokens.left
    if usage_percent >= CONSUMES_PERCENT or usage_percent < SAVES_PERCENT:
        left -= (usage_percent - 100) * elapsed_s
    return replace(tokens, left=max(-tokens.capacity, min(left, tokens.capacity)), at_s=now_s)
