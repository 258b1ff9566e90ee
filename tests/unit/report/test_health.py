"""Alive and ready, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordlet.model.pod import PodSet
from koordlet.model.status import Snapshot, TickStats
from koordlet.model.view import Usage
from koordlet.report.health import liveness, readiness
from tests.unit.report.samples import NOW_S, SNAPSHOT, VIEW, reading


@pytest.mark.parametrize(
    ("snapshot", "now_s", "alive"),
    [
        (None, NOW_S + 29, True),
        (None, NOW_S + 31, False),
        (SNAPSHOT, NOW_S + 5, True),
        (SNAPSHOT, NOW_S + 5.1, False),
        (replace(SNAPSHOT, view=replace(VIEW, interval_s=10.0)), NOW_S + 49, True),
    ],
    ids=["starting", "start-too-slow", "five-intervals", "stuck", "long-interval"],
)
def test_liveness(snapshot: Snapshot | None, now_s: float, alive: bool) -> None:
    assert liveness(snapshot, now_s, started_s=NOW_S).ok is alive


@pytest.mark.parametrize(
    ("snapshot", "ready", "says"),
    [
        (None, False, "tick: waiting"),
        (SNAPSHOT, True, "node: ok"),
        (SNAPSHOT, True, "degraded: psi of cgroups is missing"),
        (replace(SNAPSHOT, view=replace(VIEW, usage=Usage())), False, "no CPU usage yet"),
        (replace(SNAPSHOT, view=replace(VIEW, usage=Usage(node_mcpu=reading(1, 11)))), False, "11.0 s old"),
        (replace(SNAPSHOT, view=replace(VIEW, pods=PodSet())), False, "pods: waiting"),
        (replace(SNAPSHOT, stats=TickStats(strategy_errors={"suppress": "ValueError: x"})), True,
         "suppress: degraded: ValueError: x"),
    ],
    ids=["starting", "ready", "degraded-is-ready", "no-node", "old-node", "no-pods", "strategy-fails"],
)  # fmt: skip
def test_readiness(snapshot: Snapshot | None, ready: bool, says: str) -> None:
    health = readiness(snapshot, NOW_S)
    assert health.ok is ready
    assert says in health.text
