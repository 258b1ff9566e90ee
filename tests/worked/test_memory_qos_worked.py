"""Memory QoS and system settings: the worked examples 49-55 and 60 (spec/qos 16.6, 16.7)."""

from __future__ import annotations

import pytest

from koordlet.decide.memory_values import page_cache, protected, throttle_at, watermarks
from koordlet.decide.system import SYSTEM_CONFIG, min_free_kib
from koordlet.model.knob import Knob
from koordlet.model.memory_qos import MemoryQos
from koordlet.model.slo import NodeSlo
from koordlet.model.system import SystemStrategy
from koordlet.model.view import NodeInfo, NodeView, Policy

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("request_bytes", "limit", "percent", "expected"),
    [
        pytest.param(512 * MIB, 2 * GIB, 80, 1_825_357_824, id="W-49"),
        pytest.param(0, 10**9, 90, 899_997_696, id="W-50"),
        pytest.param(3 * 10**8, 10**9, 77, 838_995_968, id="W-51"),
        pytest.param(3 * 10**8, 10**9, 0, -1, id="W-53"),
        pytest.param(0, -1, 50, 4 * GIB, id="no-limit-node-memory"),
    ],
)
def test_throttling(request_bytes: int, limit: int, percent: int, expected: int) -> None:
    assert throttle_at(request_bytes, limit, 8 * GIB, MemoryQos(throttling_percent=percent)) == expected


def test_throttling_is_not_below_the_protection_and_needs_an_upper_end() -> None:
    assert throttle_at(GIB, GIB, 0, MemoryQos(throttling_percent=1, min_percent=100)) == GIB
    assert throttle_at(0, -1, 0, MemoryQos(throttling_percent=50)) is None
    assert throttle_at(0, GIB, 0, MemoryQos()) is None


def test_protection_w52() -> None:
    assert protected(1000 * MIB, MemoryQos(min_percent=30, low_percent=20)) == (314_572_800, 314_572_800)
    assert protected(1000 * MIB, MemoryQos(min_percent=30, low_percent=0)) == (314_572_800, 0)
    assert protected(1000 * MIB, MemoryQos(low_percent=20)) == (None, 209_715_200)


@pytest.mark.parametrize(
    ("limit", "qos", "expected"),
    [
        pytest.param(4 * GIB, MemoryQos(pagecache_percent=50), (1, 2_147_483_648, 0), id="W-54"),
        pytest.param(GIB, MemoryQos(pagecache_bytes=2 * GIB), (1, GIB, 0), id="W-55-size"),
        pytest.param(GIB, MemoryQos(pagecache_bytes=0), (0, 0, None), id="W-55-zero"),
        pytest.param(GIB, MemoryQos(pagecache_enable=True), (1, None, None), id="W-55-enable-only"),
        pytest.param(GIB, MemoryQos(pagecache_bytes=MIB, pagecache_sync=True), (1, MIB, 1), id="sync"),
        pytest.param(GIB, MemoryQos(pagecache_bytes=MIB, pagecache_enable=False), (0, MIB, 0), id="switched-off"),
        pytest.param(-1, MemoryQos(pagecache_percent=50), (None, None, None), id="percent-of-no-limit"),
        pytest.param(-1, MemoryQos(pagecache_bytes=MIB), (1, MIB, 0), id="size-without-limit"),
    ],
)
def test_page_cache(limit: int, qos: MemoryQos, expected: tuple[int | None, int | None, int | None]) -> None:
    assert page_cache(limit, qos) == expected


def test_watermarks_mean_what_the_vendor_kernel_does() -> None:
    qos = MemoryQos(wmark_ratio=95, wmark_scale_permill=20)
    assert watermarks(1000 * MIB, None, qos) == (950 * MIB, 930 * MIB)
    assert watermarks(1000 * MIB, 500 * MIB, qos) == (475 * MIB, 465 * MIB)
    assert watermarks(-1, None, qos) is None
    assert watermarks(GIB, None, MemoryQos(wmark_ratio=0)) is None


@pytest.mark.parametrize(
    ("capacity", "factor", "kib", "accepted"),
    [
        pytest.param(256 * GIB, 100, 2_684_354, True, id="W-60-256G"),
        pytest.param(8 * GIB, 100, 83_886, True, id="W-60-8G"),
        pytest.param(2048 * GIB, 100, 21_474_836, False, id="W-60-2T-rejected"),
        pytest.param(64 * GIB, 150, 1_006_632, True, id="W-60-64G"),
        pytest.param(24 * GIB, 50, 125_829, True, id="seen-system-strategy"),
        pytest.param(24 * GIB, 1, 2516, False, id="seen-out-of-range"),
    ],
)
def test_min_free(capacity: int, factor: int, kib: int, accepted: bool) -> None:
    assert min_free_kib(capacity, factor) == kib
    view = NodeView(0.0, node=NodeInfo(capacity_bytes=capacity))
    rule = Policy(slo=NodeSlo(system=SystemStrategy(min_free_factor=factor)), gates=frozenset({"SystemConfig"}))
    outcome = SYSTEM_CONFIG.decide(view, rule, SYSTEM_CONFIG.initial(), 0.0)
    wanted = {(d.target, d.knob, d.value) for d in outcome.decisions}
    assert wanted == ({("system", Knob.VM_MIN_FREE_KBYTES, kib)} if accepted else set())
    assert bool(outcome.notes) is not accepted
