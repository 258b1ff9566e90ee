"""`cpuBurstStrategy`, typed, and the annotation `koordinator.sh/cpuBurst` (spec/qos 7)."""

from __future__ import annotations

from typing import Any, Final

from koordlet.config.schema import At, Int, Record, Text
from koordlet.model.burst import BurstPolicy, BurstSettings, CpuBurst

ANNOTATION: Final = "koordinator.sh/cpuBurst"
MAX_PERCENT: Final = 100_000
"""A thousand times the limit; the reference has no bound, and a larger quota is no quota."""
MAX_PERIOD_S: Final = 10 * 365 * 86_400


def typed_burst(section: dict[str, Any]) -> CpuBurst:
    return CpuBurst(
        policy=BurstPolicy(section["policy"]),
        cpu_burst_percent=section["cpuBurstPercent"],
        quota_burst_percent=min(section["cfsQuotaBurstPercent"], MAX_PERCENT),
        quota_burst_period_s=min(section["cfsQuotaBurstPeriodSeconds"], MAX_PERIOD_S),
        share_pool_threshold_percent=section["sharePoolThresholdPercent"],
    )


def read_burst(document: object) -> BurstSettings:
    """A decoded annotation. Raises PolicyError.

    compat: an unknown policy is not malformed but no policy at all, so such a pod does not burst.
    """
    found = _ANNOTATION.check(document, At(ANNOTATION))
    text = found.get("policy", "")
    known = text in _POLICIES
    return BurstSettings(
        policy=None if text == "" else BurstPolicy(text) if known else BurstPolicy.NONE,
        cpu_burst_percent=found.get("cpuBurstPercent"),
        quota_burst_percent=found.get("cfsQuotaBurstPercent"),
        quota_burst_period_s=found.get("cfsQuotaBurstPeriodSeconds"),
        unknown_policy="" if known else text,
    )


_POLICIES: Final = frozenset(policy.value for policy in BurstPolicy)
_ANNOTATION: Final = Record(
    {
        "policy": Text(longest=64),
        "cpuBurstPercent": Int(0, 10_000),
        "cfsQuotaBurstPercent": Int(0, MAX_PERCENT),
        "cfsQuotaBurstPeriodSeconds": Int(-1, MAX_PERIOD_S),
        "sharePoolThresholdPercent": Int(0, 100),
    }
)
