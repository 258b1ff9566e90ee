"""CPU burst: the worked examples 39-48 and the field case (spec/qos 7, 16.5)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from koordlet.decide.base_quota import base_quota_us
from koordlet.decide.burst import Op, asked, step_us
from koordlet.decide.burst_plan import wanted_burst_us
from koordlet.decide.burst_room import Room, room
from koordlet.decide.burst_tokens import Tokens, account, begin, capacity_of
from koordlet.model.burst import BurstPolicy, CpuBurst
from koordlet.model.knob import Knob
from tests.unit.decide.build import case
from tests.unit.decide.burst_build import burst, container, decide, pod, view, wanted


@pytest.mark.parametrize(
    ("limit_mcpu", "percent", "expected"), [(4000, 1000, 4_000_000), (1500, 50, 75_000)], ids=["W-39a", "W-39b"]
)
def test_kernel_burst_w39(limit_mcpu: int, percent: int, expected: int) -> None:
    assert wanted_burst_us(limit_mcpu, percent) == expected


def walk(start: int, op: Op, base: int, ceiling: int) -> list[int]:
    found = [start]
    while (after := step_us(found[-1], base, ceiling, op)) != found[-1]:
        found.append(after)
    return found[1:]


def test_repeated_up_w40() -> None:
    expected = [480_000, 576_000, 691_200, 829_440, 995_328, 1_194_393, 1_200_000]
    assert walk(400_000, Op.UP, 400_000, 1_200_000) == expected


def test_repeated_down_w41() -> None:
    assert walk(1_200_000, Op.DOWN, 400_000, 1_200_000) == [960_000, 768_000, 614_400, 491_520, 400_000]


@pytest.mark.parametrize(
    ("base", "ceiling", "current", "expected"),
    [(50_000, 150_000, -1, 50_000), (150_000, 450_000, 600_000, 450_000)],
    ids=["W-42", "W-43"],
)
def test_remain_w42_w43(base: int, ceiling: int, current: int, expected: int) -> None:
    assert step_us(current, base, ceiling, Op.REMAIN) == expected


@pytest.mark.parametrize(
    ("period", "percent", "left", "usage", "seconds", "after", "allowed"),
    [
        pytest.param(100, 150, 5000, 150, 10, 4500, True, id="W-44"),
        pytest.param(100, 150, 50, 200, 10, -950, False, id="W-45"),
        pytest.param(60, 300, 3000, 250, 10, 1500, True, id="W-46"),
        pytest.param(60, 300, -11_000, 300, 20, -12_000, False, id="W-47-clamp"),
        pytest.param(60, 300, 700, 80, 100, 700, True, id="W-47-between"),
        # The reference loses fractions of a second (18.3 item 9); here they count.
        pytest.param(60, 300, 1000, 200, 0.99, 901, True, id="W-47-fraction"),
    ],
)
def test_tokens(
    period: int, percent: int, left: float, usage: int, seconds: float, after: float, allowed: bool
) -> None:
    config = CpuBurst(quota_burst_period_s=period, quota_burst_percent=percent)
    found = account(Tokens(capacity_of(config), left, 100.0), usage, 100.0 + seconds)
    assert found.left == pytest.approx(after)
    assert found.allowed is allowed


def test_a_new_account_is_less_than_half_full_and_never_allows_without_capacity() -> None:
    config = CpuBurst(quota_burst_period_s=60, quota_burst_percent=300)
    filled = [begin(f"containerd://{n}", config, 0.0).left for n in range(200)]
    assert all(0 <= left < 6000 for left in filled)
    assert len(set(filled)) > 100
    for none in (CpuBurst(quota_burst_period_s=0), CpuBurst(quota_burst_period_s=60, quota_burst_percent=100)):
        assert not begin("containerd://a", none, 0.0).allowed


@pytest.mark.parametrize(
    ("used", "total", "expected"),
    [
        pytest.param(22_000, 48_000, Room.COOLING, id="W-48"),
        pytest.param(24_000, 48_000, Room.OVERLOAD, id="at-the-threshold"),
        pytest.param(21_599, 48_000, Room.IDLE, id="below-0.45"),
        pytest.param(0, 0, Room.OVERLOAD, id="no-cpus"),
        pytest.param(None, 48_000, Room.UNKNOWN, id="no-reading"),
    ],
)
def test_room(used: float | None, total: float, expected: Room) -> None:
    assert room(used, total, 50) is expected


def test_w48_on_a_whole_view() -> None:
    """64 CPUs, LSR request 16, node 40, LSR used 10, BE used 8: cooling, so a throttled container stays."""
    online, other = pod("a", container("main", 4000, throttled=0.5)), pod("b", container("main", 4000, throttled=0.5))
    lsr = pod("lsr", container("main", 16_000), qos="LSR")
    seen = view(0.0, 64, node=40, be=8, pods=(online, other, lsr), used={"lsr": 10})
    outcome = decide(seen, burst(BurstPolicy.QUOTA_ONLY))
    assert outcome.state.pool.average_mcpu() == 22_000
    assert not outcome.decisions


@pytest.mark.parametrize(
    ("throttled", "allowed", "pool", "expected"),
    [
        (0.1, True, Room.IDLE, Op.UP),
        (0.0, True, Room.IDLE, Op.REMAIN),
        (None, True, Room.IDLE, Op.REMAIN),
        (0.1, False, Room.IDLE, Op.DOWN),
        (0.1, True, Room.COOLING, Op.REMAIN),
        (0.1, True, Room.UNKNOWN, Op.REMAIN),
        (0.0, True, Room.OVERLOAD, Op.DOWN),
        (0.1, True, Room.OVERLOAD, Op.DOWN),
        (0.1, False, Room.UNKNOWN, Op.DOWN),
    ],
)
def test_operation(throttled: float | None, allowed: bool, pool: Room, expected: Op) -> None:
    assert asked(throttled, allowed, pool) is expected


@pytest.mark.parametrize("number", [0, 1])
def test_cpu_burst_above_quota(number: int) -> None:
    given = case("cpu-burst-above-quota", "scenario.json")
    expected = case("cpu-burst-above-quota", "expected.json")[number]
    spec = given["pods"][number]
    made = pod("p", *(container(c["name"], c["limit_milli"]) for c in spec["containers"]))
    percent = given["cpuBurstPercent"]
    computed = [wanted_burst_us(c["limit_milli"], percent) for c in spec["containers"]]
    assert computed == expected["computed"]
    outcome = decide(view(0.0, 4, pods=(made,)), burst(BurstPolicy.KERNEL_ONLY, cpu_burst_percent=percent))
    # 0 is what the kernel has: nothing to write.
    written = [wanted(outcome, Knob.CPU_BURST, f"p/{c['name']}") or 0 for c in spec["containers"]]
    assert written == expected["write"]
    assert wanted(outcome, Knob.CPU_BURST, "p") == expected.get("pod_write")


NORMALISED = [
    pytest.param(1000, 1.5, 66_667, id="W-5"),
    pytest.param(4000, 1.2, 333_334, id="W-6"),
    pytest.param(1000, 1.0, 100_000, id="one-changes-nothing"),
    pytest.param(1000, 0.5, 100_000, id="never-up"),
    pytest.param(1000, None, 100_000, id="off"),
]


@pytest.mark.parametrize(("limit_mcpu", "ratio", "expected"), NORMALISED)
def test_base_quota(limit_mcpu: int, ratio: float | None, expected: int) -> None:
    assert base_quota_us(limit_mcpu, ratio) == expected


def test_base_quota_without_a_limit() -> None:
    assert [base_quota_us(limit) for limit in (None, 0, -5, 5, 1500)] == [-1, -1, -1, 1000, 150_000]


def test_burst_multiplies_the_normalised_base_and_settles() -> None:
    """The reference lets two loops flap and ratchet here (normalization-burst); ours has one owner, a fixed point."""
    made = pod("a", container("main", 1000, throttled=0.5))
    seen = view(0.0, 8, pods=(made,), cpu_normalization_ratio=1.5)
    rule = burst(BurstPolicy.AUTO, gates=("CPUBurst", "CPUNormalization"))
    states: list[Any] = [decide(seen, rule)]
    for second in range(1, 12):
        states.append(decide(view(second, 8, pods=(made,), cpu_normalization_ratio=1.5), rule, states[-1].state))
    quotas = [wanted(outcome, Knob.CPU_QUOTA, "a/main") for outcome in states]
    assert quotas[0] == 80_000  # 66667 * 1.2
    assert quotas[-1] == quotas[-2] == 200_001
    assert all(b >= a for a, b in pairwise(quotas))
    assert wanted(states[-1], Knob.CPU_BURST, "a/main") == 66_667
    assert states[-1].decisions is states[-2].decisions
