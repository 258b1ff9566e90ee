"""Files of many items: a device's line in io.max and blkio.*, a word in the scheduler's features; their targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.knobitems import address, select
from koordlet.kernel.knobs import ensure_target, knob_path
from koordlet.kernel.knobtext import KnobValueError, encode, parse, same
from koordlet.model.knob import Knob
from tests.hosts.tree import HostTree

V1, V2 = CgroupVersion.V1, CgroupVersion.V2
IO_MAX = b"8:16 rbps=1048576 wbps=max riops=max wiops=120\n253:0 rbps=max wbps=5 riops=7 wiops=max\n"

SELECTED = [
    pytest.param(V2, Knob.IO_READ_BPS, "be/8:16", IO_MAX, b"1048576", id="io.max-field"),
    pytest.param(V2, Knob.IO_WRITE_BPS, "be/8:16", IO_MAX, b"max", id="io.max-unlimited-field"),
    pytest.param(V2, Knob.IO_WRITE_BPS, "be/253:0", IO_MAX, b"5", id="io.max-second-line"),
    pytest.param(V2, Knob.IO_READ_BPS, "be/8:1", IO_MAX, b"max", id="io.max-no-line-is-unlimited"),
    pytest.param(V2, Knob.IO_READ_BPS, "be/8:16", b"", b"max", id="io.max-empty"),
    pytest.param(V1, Knob.IO_READ_BPS, "be/8:16", b"8:16 1048576\n8:0 5\n", b"1048576", id="v1-line"),
    pytest.param(V1, Knob.IO_READ_BPS, "be/8:1", b"8:16 1048576\n", b"0", id="v1-no-line-is-unlimited"),
    pytest.param(V2, Knob.IO_WEIGHT, "be/8:0", b"default 100\n8:0 4000\n", b"4000", id="io.weight-line"),
    pytest.param(V2, Knob.IO_WEIGHT, "be/8:1", b"default 100\n8:0 4000\n", b"default", id="io.weight-default"),
    pytest.param(V1, Knob.IO_WEIGHT, "be/8:1", b"8:0 60\n", b"100", id="blkio.cost.weight-no-line"),
    pytest.param(V2, Knob.IO_COST_QOS, "8:0", b"8:0 enable=1 ctrl=user rpct=95.00\n", b"enable=1 ctrl=user rpct=95.00",
                 id="io.cost.qos"),
    pytest.param(V2, Knob.IO_COST_QOS, "8:0", b"\n", b"enable=0", id="io.cost.qos-off"),
    pytest.param(V2, Knob.SCHED_FEATURE, "system/NEXT_BUDDY", b"GENTLE NO_NEXT_BUDDY\n", b"0", id="feature-off"),
    pytest.param(V2, Knob.SCHED_FEATURE, "system/GENTLE", b"GENTLE NO_NEXT_BUDDY\n", b"1", id="feature-on"),
    pytest.param(V2, Knob.SCHED_FEATURE, "system/BUDDY", b"GENTLE NO_NEXT_BUDDY\n", None, id="feature-unknown"),
    pytest.param(V2, Knob.CPU_QUOTA, "be", b"max 100000\n", b"max 100000\n", id="ordinary-file"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "knob", "target", "raw", "expected"), SELECTED)
def test_select(version: CgroupVersion, knob: Knob, target: str, raw: bytes, expected: bytes | None) -> None:
    assert select(version, knob, target, raw) == expected


WRITTEN = [
    (V2, Knob.IO_READ_BPS, "be/8:16", 1_048_576, b"8:16 rbps=1048576"),
    (V2, Knob.IO_WRITE_IOPS, "be/8:16", -1, b"8:16 wiops=max"),
    (V1, Knob.IO_READ_BPS, "be/8:16", 1_048_576, b"8:16 1048576"),
    (V1, Knob.IO_READ_BPS, "be/8:16", -1, b"8:16 0"),
    (V2, Knob.IO_WEIGHT, "be/8:16", 60, b"8:16 6000"),
    (V1, Knob.IO_WEIGHT, "be/8:16", 60, b"8:16 60"),
    (V1, Knob.IO_BFQ_WEIGHT, "be/8:16", 60, b"8:16 600"),
    (V2, Knob.SCHED_FEATURE, "system/NEXT_BUDDY", 1, b"NEXT_BUDDY"),
    (V2, Knob.SCHED_FEATURE, "system/NEXT_BUDDY", 0, b"NO_NEXT_BUDDY"),
    (V2, Knob.IO_COST_QOS, "8:16", "enable=1 ctrl=user", b"8:16 enable=1 ctrl=user"),
]


@pytest.mark.parametrize(("version", "knob", "target", "value", "expected"), WRITTEN)
def test_encode_and_address(version: CgroupVersion, knob: Knob, target: str, value: int, expected: bytes) -> None:
    data = encode(version, knob, value)
    assert address(version, knob, target, data) == expected
    assert same(version, knob, value, data.decode())


def test_what_the_kernel_spells_its_own_way_is_the_same() -> None:
    text = "enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=3000 min=1.00 max=10000.00"
    assert same(V2, Knob.IO_COST_QOS, "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000", text)
    assert not same(V2, Knob.IO_COST_QOS, "enable=1 ctrl=user rpct=90", text)
    assert same(V2, Knob.IO_READ_BPS, -1, "max")
    assert same(V1, Knob.IO_READ_BPS, -1, "0")
    assert not same(V2, Knob.IO_WEIGHT, 1, "150"), "not the same weight although the same percent"


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (Knob.IO_READ_BPS, 0),
        (Knob.IO_READ_BPS, -2),
        (Knob.IO_WEIGHT, 101),
        (Knob.IO_COST_QOS, "enable=1\n8:0 enable=0"),
        (Knob.IO_COST_QOS, 5),
        (Knob.VM_MIN_FREE_KBYTES, 1000),
        (Knob.SCHED_FEATURE, 2),
    ],
)
def test_illegal_values_are_refused(knob: Knob, value: int | str) -> None:
    with pytest.raises(KnobValueError):
        encode(V2, knob, value)


@pytest.mark.parametrize(
    ("knob", "target"),
    [
        (Knob.IO_READ_BPS, "8:0"),  # would be the root cgroup
        (Knob.IO_READ_BPS, "/8:0"),
        (Knob.IO_READ_BPS, "be"),
        (Knob.IO_READ_BPS, "be/sda"),
        (Knob.IO_READ_BPS, "be/8:0\n8:16"),
        (Knob.IO_READ_BPS, "../8:0"),
        (Knob.IO_COST_QOS, "be/8:0"),
        (Knob.IO_COST_QOS, ""),
        (Knob.VM_MIN_FREE_KBYTES, "kubepods"),
        (Knob.VM_MIN_FREE_KBYTES, "system/x"),
        (Knob.SCHED_FEATURE, "system"),
        (Knob.SCHED_FEATURE, "system/NO_NEXT_BUDDY"),
        (Knob.SCHED_FEATURE, "system/next"),
        (Knob.CPU_QUOTA, ""),
    ],
)
def test_other_targets_are_refused(knob: Knob, target: str) -> None:
    with pytest.raises(ValueError, match="not written"):
        ensure_target(target, knob)


@pytest.mark.parametrize(
    ("knob", "target"),
    [(Knob.IO_READ_BPS, "be/8:0"), (Knob.IO_COST_QOS, "8:0"), (Knob.VM_MIN_FREE_KBYTES, "system"),
     (Knob.SCHED_FEATURE, "system/NEXT_BUDDY"), (Knob.CPU_QUOTA, "be")],
)  # fmt: skip
def test_legal_targets(knob: Knob, target: str) -> None:
    assert ensure_target(f"/{target}/", knob) == target


def test_paths(tmp_path: Path) -> None:
    one, two = HostTree(tmp_path / "1", V1), HostTree(tmp_path / "2", V2)
    assert knob_path(one.host, "be/8:0", Knob.IO_READ_BPS) == (
        tmp_path / "1/cgroup/blkio/be/blkio.throttle.read_bps_device"
    )
    assert knob_path(two.host, "be/8:0", Knob.IO_READ_BPS) == tmp_path / "2/cgroup/be/io.max"
    assert knob_path(two.host, "8:0", Knob.IO_COST_QOS) == tmp_path / "2/cgroup/io.cost.qos"
    assert knob_path(two.host, "system", Knob.VM_MIN_FREE_KBYTES) == tmp_path / "2/proc/sys/vm/min_free_kbytes"
    assert knob_path(two.host, "system/A", Knob.SCHED_FEATURE) == tmp_path / "2/sys/kernel/debug/sched/features"
    two.put("sys/kernel/debug/sched_features", "A\n")
    assert knob_path(two.host, "system/A", Knob.SCHED_FEATURE) == tmp_path / "2/sys/kernel/debug/sched_features"


def test_absent_lines_parse_as_unlimited() -> None:
    assert parse(V2, Knob.IO_READ_BPS, "max") == parse(V1, Knob.IO_READ_BPS, "0") == -1
