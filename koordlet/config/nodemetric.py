"""A NodeMetric's spec -> `MetricPolicy`: over the built-in defaults, field by field (spec/api 1.1.1)."""

from __future__ import annotations

from typing import Any, Final

from koordlet.config.gosyntax import parse_duration_ns
from koordlet.config.schema import At, Int, ListOf, Record, Text
from koordlet.model.nodemetric import MemoryKind, MetricPolicy

MIN_WINDOW_S: Final = 60.0
MIN_INTERVAL_S: Final = 30.0
MAX_S: Final = 86_400
MAX_DURATIONS: Final = 16


def read_metric_policy(spec: object) -> MetricPolicy:
    """spec: as the API server has it, None for none. An unknown memory policy counts as the default one.

    Raises PolicyError.
    """
    at = At("NodeMetric").below("spec")
    found: dict[str, Any] = ({} if spec is None else _SPEC.check(spec, at)).get("metricCollectPolicy", {})
    at = at.below("metricCollectPolicy")
    default = MetricPolicy()
    texts = found.get("nodeAggregatePolicy", {}).get("durations")
    return MetricPolicy(
        window_s=_seconds(found.get("aggregateDurationSeconds", default.window_s), MIN_WINDOW_S),
        interval_s=_seconds(found.get("reportIntervalSeconds", default.interval_s), MIN_INTERVAL_S),
        durations=default.durations if texts is None else _durations(texts, at.below("nodeAggregatePolicy")),
        memory=_memory(found.get("nodeMemoryCollectPolicy", "")),
    )


def _seconds(value: float, low: float) -> float:
    return float(min(max(value, low), MAX_S))


def _durations(texts: list[str], at: At) -> tuple[tuple[float, str], ...]:
    here = at.below("durations")
    if len(texts) > MAX_DURATIONS:
        raise here.error(len(texts), f"at most {MAX_DURATIONS} durations")
    made: list[tuple[float, str]] = []
    for index, text in enumerate(texts):
        try:
            seconds = parse_duration_ns(text) / 1e9
        except ValueError as error:
            raise here.below(index).error(text, str(error)) from error
        if not 0 < seconds <= MAX_S:
            raise here.below(index).error(text, "a duration above 0, up to 24h")
        made.append((seconds, format_duration(seconds)))
    return tuple(made)


def format_duration(seconds: float) -> str:
    """As Go prints it: 300 -> "5m0s", 3600 -> "1h0m0s", 1.5 -> "1.5s", 0.25 -> "250ms"."""
    if seconds < 1:
        return f"{seconds * 1000:.6f}".rstrip("0").rstrip(".") + "ms"
    whole, rest = divmod(round(seconds * 1e9), 60 * 10**9)
    hours, minutes = divmod(whole, 60)
    text = f"{rest / 1e9:.9f}".rstrip("0").rstrip(".") + "s"
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text


def _memory(text: str) -> MemoryKind:
    return MemoryKind(text) if text in set(MemoryKind) else MemoryKind.WITHOUT_CACHE


_SPEC: Final = Record(
    {
        "metricCollectPolicy": Record(
            {
                "aggregateDurationSeconds": Int(),
                "reportIntervalSeconds": Int(),
                "nodeAggregatePolicy": Record({"durations": ListOf(Text())}),
                "nodeMemoryCollectPolicy": Text(),
            }
        )
    }
)
