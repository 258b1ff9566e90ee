"""What online (prod) pods requested and will not use, and what they may use at their peak (spec/collect 6.5). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from koordlet.model.pod import Pod
from koordlet.model.prediction import Amount, Peak, ProdPrediction
from koordlet.model.qos import PriorityClass
from koordlet.store.checkpoint import SYSTEM, class_item

RECLAIMABLE: Final = (PriorityClass.PROD, PriorityClass.NONE)


class NotPredictable(Exception):  # noqa: N818 - an answer, not a fault
    """A model is missing; the text says which."""


@dataclass(frozen=True, slots=True)
class ProdConfig:
    """cold_start_s: a younger pod is not predicted. margin_percent: on top of every predicted peak."""

    cold_start_s: float = 24 * 3600.0
    margin_percent: int = 10


def predict_prod(
    pods: Sequence[Pod],
    peak: Callable[[str], Peak | None],
    allocatable: Amount,
    config: ProdConfig,
    wall_s: float,
) -> ProdPrediction:
    """pods: those with figures in the report's window. peak: of a model. Raises NotPredictable."""
    margin = 100 + config.margin_percent
    counted = [pod for pod in pods if pod.priority_class in RECLAIMABLE and not pod.terminating and pod.active]
    unreclaimable, unpredicted, reclaimable, requested = Amount(), Amount(), Amount(), Amount()
    for pod in counted:
        request = _request(pod)
        requested += request
        if pod.created_at_s is not None and wall_s - pod.created_at_s <= config.cold_start_s:
            unpredicted += request
            continue
        found = peak(pod.uid)
        if found is None:
            raise NotPredictable(f"pod {pod.key} has no model yet")
        high = found.used.percent(margin)
        unreclaimable += high
        reclaimable += request.less(high)
    by_pods = reclaimable.lower(allocatable.less(unreclaimable))

    used = Amount()
    for item in (SYSTEM, *map(class_item, RECLAIMABLE)):
        found = peak(item)
        if found is None:
            raise NotPredictable(f"no model {item} yet")
        used += found.used
    high = used.percent(margin)
    by_classes = allocatable.less(high).lower(requested.less(high))
    return ProdPrediction((by_pods, unreclaimable + unpredicted), (by_classes, high))


def _request(pod: Pod) -> Amount:
    return Amount(pod.request.cpu_mcpu or 0, pod.request.memory_bytes or 0)
