"""How many milli-CPUs best-effort work may use: the split of the node's usage and the target S. Pure.

S = capacity x threshold - non-BE pods - non-BE host applications - max(system, reservation)   (spec 2 and 3.2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordlet.model.slo import Threshold
from koordlet.model.view import Reading, Usage

EWMA_ALPHA: Final = 0.5


@dataclass(frozen=True, slots=True)
class Demand:
    """What is not lent, in whole milli-CPU, each part truncated on its own as the reference does.

    system_mcpu is already raised to the reservation. at_s: time of the oldest reading used; the sum is no
    younger than its oldest part.
    """

    nonbe_pods_mcpu: int
    nonbe_hosts_mcpu: int
    system_mcpu: int
    at_s: float

    @property
    def total_mcpu(self) -> int:
        return self.nonbe_pods_mcpu + self.nonbe_hosts_mcpu + self.system_mcpu


def read_demand(usage: Usage, reserved_mcpu: int) -> Demand | None:
    """The split of one pass, None without a node reading.

    A part that was not read is billed to the system, which protects the online side; pods whose class is
    unknown count as non-BE for the same reason.
    """
    if usage.node_mcpu is None:
        return None
    nonbe_pods = usage.nonbe_pods_mcpu or usage.pods_mcpu
    nonbe_hosts = usage.nonbe_hosts_mcpu or usage.hosts_mcpu
    used = [r for r in (usage.node_mcpu, nonbe_pods, nonbe_hosts, usage.system_mcpu) if r is not None]
    return Demand(
        nonbe_pods_mcpu=int(_value(nonbe_pods)),
        nonbe_hosts_mcpu=int(_value(nonbe_hosts)),
        system_mcpu=max(int(_system_mcpu(usage, usage.node_mcpu)), reserved_mcpu),
        at_s=min(r.at_s for r in used),
    )


def _system_mcpu(usage: Usage, node: Reading) -> float:
    """Usage that nobody claims. Samples of pods and node differ in time, so it is never below 0.

    beyond: BE work that no known pod claims (a pod just gone, one that could not be read) is not billed to
    the system, where the reference would suppress BE because of BE's own use (F-09): the BE roots'
    counters have it.
    """
    if usage.system_mcpu is not None:
        system = usage.system_mcpu.value
    else:
        system = max(node.value - _value(usage.pods_mcpu) - _value(usage.hosts_mcpu), 0.0)
    if usage.be_mcpu is None:
        return system
    claimed = _claimed_be(usage.pods_mcpu, usage.nonbe_pods_mcpu) + _claimed_be(
        usage.hosts_mcpu, usage.nonbe_hosts_mcpu
    )
    return max(system - max(usage.be_mcpu.value - claimed, 0.0), 0.0)


def _claimed_be(everything: Reading | None, nonbe: Reading | None) -> float:
    return everything.value - nonbe.value if everything is not None and nonbe is not None else 0.0


def _value(reading: Reading | None) -> float:
    return 0.0 if reading is None else reading.value


def ewma_mcpu(before: float | None, now_mcpu: int) -> float:
    """Short average; the first value is the value itself."""
    return float(now_mcpu) if before is None else EWMA_ALPHA * now_mcpu + (1 - EWMA_ALPHA) * before


def margin_mcpu(capacity_mcpu: int) -> int:
    """By how much non-BE use must stand above what the allowance assumes to count as a surge."""
    return max(capacity_mcpu // 10, 200)


def surge_mcpu(
    surge: Reading | None, average_mcpu: int, capacity_mcpu: int, now_s: float, interval_s: float
) -> int | None:
    """Non-BE use of the sentinel's short window, if it is young and clearly above the last average."""
    if surge is None or surge.age_s(now_s) > 2 * interval_s:
        return None
    value = int(surge.value)
    return value if value > average_mcpu + margin_mcpu(capacity_mcpu) else None


def ceiling_mcpu(capacity_mcpu: int, threshold: Threshold) -> int:
    return capacity_mcpu * threshold.cpu_suppress_threshold_percent // 100


def floored_mcpu(target_mcpu: int, capacity_mcpu: int, threshold: Threshold) -> int:
    """The target raised to cpuSuppressMinPercent, if one is set. May be negative otherwise; policies clamp."""
    percent = threshold.cpu_suppress_min_percent
    return target_mcpu if percent is None else max(target_mcpu, capacity_mcpu * percent // 100)
