"""A container's quota without burst: its limit, scaled by CPU normalisation, which is the pod rules' own. Pure.

CPU normalisation sets this base; burst raises it for a while and comes back to it.
"""

from __future__ import annotations

from koordlet.decide.podrules.quota import scale
from koordlet.model.units import UNLIMITED, mcpu_to_quota_us


def base_quota_us(limit_mcpu: int | None, ratio: float | None = None) -> int:
    """Quota in us per 100 ms for a CPU limit, -1 without one. ratio: of CPU normalisation, None where it is off."""
    return UNLIMITED if not limit_mcpu or limit_mcpu < 0 else scale(mcpu_to_quota_us(limit_mcpu), ratio or 1.0)
