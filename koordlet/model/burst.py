"""CPU burst: `cpuBurstStrategy` of the NodeSLO and a pod's own wishes (annotation `koordinator.sh/cpuBurst`). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BurstPolicy(StrEnum):
    NONE = "none"
    KERNEL_ONLY = "cpuBurstOnly"  # cpu.max.burst: use in one period what was saved in earlier ones
    QUOTA_ONLY = "cfsQuotaBurstOnly"  # a larger quota while the node has room
    AUTO = "auto"

    @property
    def kernel(self) -> bool:
        return self in (BurstPolicy.KERNEL_ONLY, BurstPolicy.AUTO)

    @property
    def quota(self) -> bool:
        return self in (BurstPolicy.QUOTA_ONLY, BurstPolicy.AUTO)


@dataclass(frozen=True, slots=True)
class CpuBurst:
    """Percents are of a container's limit, share_pool_threshold_percent of the CPUs that no LSE/LSR pod asked for.

    quota_burst_period_s: how long a container may use the most it may; -1 without end.
    """

    policy: BurstPolicy = BurstPolicy.NONE
    cpu_burst_percent: int = 1000
    quota_burst_percent: int = 300
    quota_burst_period_s: int = -1
    share_pool_threshold_percent: int = 50


@dataclass(frozen=True, slots=True)
class BurstSettings:
    """A pod's fields, None where it says nothing. unknown_policy: a text that is no policy and so counts as none."""

    policy: BurstPolicy | None = None
    cpu_burst_percent: int | None = None
    quota_burst_percent: int | None = None
    quota_burst_period_s: int | None = None
    unknown_policy: str = ""

    def over(self, node: CpuBurst) -> CpuBurst:
        """The pod's fields over the node's."""
        return CpuBurst(
            policy=node.policy if self.policy is None else self.policy,
            cpu_burst_percent=_or(self.cpu_burst_percent, node.cpu_burst_percent),
            quota_burst_percent=_or(self.quota_burst_percent, node.quota_burst_percent),
            quota_burst_period_s=_or(self.quota_burst_period_s, node.quota_burst_period_s),
            share_pool_threshold_percent=node.share_pool_threshold_percent,
        )


def _or(own: int | None, node: int) -> int:
    return node if own is None else own
