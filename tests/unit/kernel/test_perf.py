"""Scaling of multiplexed counters."""

from __future__ import annotations

from koordlet.kernel.perf import CycleCounts, GroupReading, sum_scaled
from tests.hosts.cases import case_json

CASE = "perf-multiplex-scaling"


def test_case_perf_multiplex_scaling() -> None:
    readings = [
        GroupReading(r["cpu"], r["cycles"], r["instructions"], r["time_enabled"], r["time_running"])
        for r in case_json(CASE, "readings.json")
    ]
    expected = case_json(CASE)
    found = sum_scaled(readings)
    assert found == CycleCounts(expected["cycles"], expected["instructions"], cpus=2)
    assert found is not None
    assert found.cpi == expected["cpi"]


def test_nothing_counted_is_no_reading() -> None:
    assert sum_scaled([GroupReading(0, 5, 5, 100, 0)]) is None
    assert sum_scaled([]) is None


def test_no_instruction_gives_no_cpi() -> None:
    found = sum_scaled([GroupReading(0, 5, 0, 100, 100)])
    assert found is not None
    assert found.cpi is None
