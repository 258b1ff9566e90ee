"""`cpuBurstStrategy` and the annotation `koordinator.sh/cpuBurst`."""

from __future__ import annotations

import json

import pytest

from koordlet.config.errors import PolicyError
from koordlet.config.nodeslo import decode
from koordlet.config.slo_burst import ANNOTATION, read_burst
from koordlet.model.burst import BurstPolicy, BurstSettings, CpuBurst
from koordlet.sources.settings import read_settings


def nowhere(name: str, qos: str, path: dict[str, str] | None) -> str:
    return name


def test_defaults() -> None:
    expected = CpuBurst(BurstPolicy.NONE, 1000, 300, -1, 50)
    assert decode(None, host_app_dir=nowhere).burst == decode({}, host_app_dir=nowhere).burst == expected


def test_given_values() -> None:
    spec = {"cpuBurstStrategy": {"policy": "auto", "cfsQuotaBurstPercent": 10**9, "sharePoolThresholdPercent": 80}}
    assert decode(spec, host_app_dir=nowhere).burst == CpuBurst(BurstPolicy.AUTO, 1000, 100_000, -1, 80)


@pytest.mark.parametrize(
    "section", [{"policy": "always"}, {"cfsQuotaBurstPercent": 99}, {"cfsQuotaBurstPeriodSeconds": -2}]
)
def test_out_of_range_is_refused(section: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match="cpuBurstStrategy"):
        decode({"cpuBurstStrategy": section}, host_app_dir=nowhere)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"cpuBurstPercent": 30}', BurstSettings(cpu_burst_percent=30)),
        ('{"policy": "none"}', BurstSettings(policy=BurstPolicy.NONE)),
        ('{"policy": "sometimes"}', BurstSettings(policy=BurstPolicy.NONE, unknown_policy="sometimes")),
        ('{"policy": "", "cfsQuotaBurstPeriodSeconds": 0}', BurstSettings(quota_burst_period_s=0)),
        ("{}", BurstSettings()),
    ],
)
def test_annotation(text: str, expected: BurstSettings) -> None:
    found = read_settings({}, {ANNOTATION: text})
    assert found.cpu_burst == expected
    assert not found.faults


@pytest.mark.parametrize(
    "text",
    [
        '{"policy":',
        '{"cpuBurstPercent":"20"}',
        '{"cpuBurstPercent":-1}',
        '{"cfsQuotaBurstPercent":100000000000}',
        "[]",
        '"auto"',
        '{"policy": "' + "x" * 65 + '"}',
    ],
)
def test_a_malformed_annotation_is_absent_and_named(text: str) -> None:
    found = read_settings({}, {ANNOTATION: text})
    assert found.cpu_burst is None
    assert found.fault(ANNOTATION)


def test_the_pods_fields_win_one_by_one() -> None:
    node = CpuBurst(BurstPolicy.AUTO, 1000, 300, -1, 80)
    wish = read_burst(json.loads('{"cfsQuotaBurstPercent": 150}'))
    assert wish.over(node) == CpuBurst(BurstPolicy.AUTO, 1000, 150, -1, 80)
