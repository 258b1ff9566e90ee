"""The answer of /v1/interference: online workloads against their past, and the matrix online x best effort. Pure."""

from __future__ import annotations

from typing import Any, Final

from koordlet.decide.squeeze import OVER
from koordlet.model.hardware import Online, Pair
from koordlet.model.status import Snapshot
from koordlet.report.rows import Row, age_s

MIN_ROUNDS: Final = 8
"""Rounds on each side before a pair has a verdict."""
SUSPECTED: Final = 0.35
"""Correlation from which CPI2 suspects."""


_NOTHING: Final = (
    "no samples yet; they need gate CPICollector (or -resctrl-dynamic), online pods, and CPU counters (perf.hw in "
    "koordlet check) or the pressure files of cgroup v2"
)


def interference_json(snapshot: Snapshot, now_s: float) -> Row:
    """node, age_s of the snapshot, and

    online  [{name, signal, value, baseline, excess, samples, age_s, llc_bytes, bandwidth_bytes_per_s,
             suspects: [{name, correlation}]}], the slowest first
    pairs   [{online, batch, signal, together, apart, mean_together, mean_apart, change, correlation, verdict}]
    reason  why there is nothing, "" otherwise
    """
    hardware = snapshot.view.hardware
    online = sorted(hardware.online, key=lambda row: (-(row.excess if row.excess is not None else -1.0), row.name))
    pairs = sorted(hardware.pairs, key=lambda row: (row.online, row.signal, -row.correlation, row.batch))
    return {
        "node": snapshot.view.node.name,
        "age_s": age_s(snapshot.view.now_s, now_s),
        "online": [_online(row, now_s) for row in online],
        "pairs": [_pair(row) for row in pairs],
        "reason": "" if online else _NOTHING,
    }


def verdict(pair: Pair) -> str:
    """allowed, suspected (correlated, or clearly slower together), or unknown while there are too few rounds."""
    if pair.correlation >= SUSPECTED:
        return "suspected"
    if pair.together < MIN_ROUNDS or pair.apart < MIN_ROUNDS:
        return "unknown"
    return "suspected" if pair.change is not None and pair.change > OVER else "allowed"


def _online(row: Online, now_s: float) -> Row:
    found: dict[str, Any] = {
        "name": row.name,
        "signal": row.signal,
        "value": round(row.value, 6),
        "baseline": _rounded(row.baseline),
        "excess": _rounded(row.excess),
        "samples": row.samples,
        "age_s": age_s(row.at_s, now_s),
        "llc_bytes": row.llc_bytes,
        "bandwidth_bytes_per_s": None if row.bandwidth_rate is None else round(row.bandwidth_rate),
        "suspects": [{"name": s.name, "correlation": round(s.correlation, 4)} for s in row.suspects],
    }
    return found


def _pair(row: Pair) -> Row:
    return {
        "online": row.online,
        "batch": row.batch,
        "signal": row.signal,
        "together": row.together,
        "apart": row.apart,
        "mean_together": _rounded(row.mean_together),
        "mean_apart": _rounded(row.mean_apart),
        "change": _rounded(row.change),
        "correlation": round(row.correlation, 4),
        "verdict": verdict(row),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
