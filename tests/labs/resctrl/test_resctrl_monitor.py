"""Counters: sums, failures, limits. Sources beside the rules in monitor.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.labs.resctrl.helpers import write
from tests.labs.resctrl.lab import Lab

pytestmark = pytest.mark.lab_resctrl

TOTAL, LOCAL, LLC = "mbm_total_bytes", "mbm_local_bytes", "llc_occupancy"


def read(lab: Lab, group: str, directory: str = "mon_L3_00", event: str = TOTAL) -> str:
    return (lab.mount / group / "mon_data" / directory / event).read_text()


@pytest.fixture
def groups(resctrl: Lab) -> Lab:
    for path in ("a", "a/mon_groups/m", "a/mon_groups/n"):
        (resctrl.mount / path).mkdir()
    return resctrl


def test_a_class_shows_itself_and_its_mon_groups(groups: Lab) -> None:
    for group, value in (("a", 100), ("a/mon_groups/m", 20), ("a/mon_groups/n", 3)):
        groups.counter(group, 0, TOTAL, value)
    assert [read(groups, g) for g in ("a", "a/mon_groups/m", "")] == ["123\n", "20\n", "0\n"]
    groups.counter("a", 0, TOTAL, 1000, add=True)
    assert read(groups, "a") == "1123\n"
    assert read(groups, "a", "mon_L3_01") == read(groups, "a", event=LOCAL) == "0\n"


def test_removing_a_mon_group_lowers_its_class(groups: Lab) -> None:
    """A counter that goes backwards without a reset: the part's bytes go with the part."""
    groups.counter("a", 0, TOTAL, 100)
    groups.counter("a/mon_groups/m", 0, TOTAL, 20)
    (groups.mount / "a/mon_groups/m").rmdir()
    assert read(groups, "a") == "100\n"


@pytest.mark.parametrize(
    ("own", "m", "n", "shown"),
    [
        ("Unavailable", "Unavailable", "Unavailable", "Unavailable\n"),
        ("Error", "Error", "Error", "Error\n"),
        ("Unassigned", "Unassigned", "Unassigned", "Unassigned\n"),
        ("Unavailable", 20, 3, "23\n"),
        (100, "Error", 3, "103\n"),
        ("Unavailable", "Unavailable", "Error", "Error\n"),
    ],
)
def test_failed_reads_count_for_nothing_unless_all_fail(
    groups: Lab, own: int | str, m: int | str, n: int | str, shown: str
) -> None:
    for group, value in (("a", own), ("a/mon_groups/m", m), ("a/mon_groups/n", n)):
        groups.counter(group, 0, TOTAL, value)
    assert read(groups, "a") == shown


def test_a_new_group_counts_from_zero_on_a_used_rmid(resctrl: Lab) -> None:
    resctrl.reset("few-rmids")
    for name in ("a", "b", "c"):
        (resctrl.mount / name).mkdir()
    resctrl.counter("a", 0, TOTAL, 999)
    resctrl.counter("a", 0, LLC, 65536)  # below the threshold: the RMID is free at once, its lines are still there
    (resctrl.mount / "a").rmdir()
    (resctrl.mount / "d").mkdir()
    assert (read(resctrl, "d"), read(resctrl, "d", event=LLC)) == ("0\n", "65536\n")


def test_sub_numa_clusters(resctrl: Lab) -> None:
    resctrl.reset("intel-snc")
    assert sorted(os.listdir(resctrl.mount / "mon_data")) == ["mon_L3_00", "mon_L3_01"]
    files = {LLC, LOCAL, TOTAL}
    assert set(os.listdir(resctrl.mount / "mon_data/mon_L3_01")) == files | {"mon_sub_L3_02", "mon_sub_L3_03"}
    assert set(os.listdir(resctrl.mount / "mon_data/mon_L3_01/mon_sub_L3_03")) == files
    resctrl.counter("", 2, TOTAL, 5)
    resctrl.counter("", 3, TOTAL, 6)
    assert read(resctrl, "", "mon_L3_01") == "11\n"
    assert read(resctrl, "", "mon_L3_01/mon_sub_L3_03") == "6\n"
    resctrl.counter("", 3, TOTAL, "Error")
    assert read(resctrl, "", "mon_L3_01") == "5\n"
    resctrl.counter("", 2, TOTAL, "Error")
    assert read(resctrl, "", "mon_L3_01") == "Unavailable\n"  # the sum never says Error
    assert read(resctrl, "", "mon_L3_01/mon_sub_L3_02") == "Error\n"


def test_machines_with_less_monitoring(resctrl: Lab) -> None:
    resctrl.reset("haswell")
    assert (resctrl.mount / "info/L3_MON/mon_features").read_text() == f"{LLC}\n"
    assert os.listdir(resctrl.mount / "mon_data/mon_L3_00") == [LLC]
    resctrl.reset("intel-l2")
    assert not {"mon_data", "mon_groups"} & set(os.listdir(resctrl.mount))
    assert "L3_MON" not in os.listdir(resctrl.mount / "info")
    (resctrl.mount / "mon_groups").mkdir()  # nothing special about the name here: a class
    resctrl.reset("monitor-only")
    (resctrl.mount / "mon_groups/m").mkdir()
    with pytest.raises(PermissionError):
        (resctrl.mount / "g").mkdir()


@pytest.mark.parametrize(
    ("text", "code", "after"),
    [("200000\n", "", 196608), ("0x20000\n", "", 131072), ("x\n", "EINVAL", 131072), ("999999999\n", "EINVAL", 131072)],
)
def test_max_threshold_occupancy(resctrl: Lab, text: str, code: str, after: int) -> None:
    path = resctrl.mount / "info/L3_MON/max_threshold_occupancy"
    assert write(path, text) == code
    assert path.read_text() == f"{after}\n"


def test_event_configuration_clears_counters(resctrl: Lab) -> None:
    """Documentation/filesystems/resctrl.rst, "mbm_total_bytes_config"."""
    resctrl.reset("amd-smba")
    path = resctrl.mount / "info/L3_MON/mbm_total_bytes_config"
    resctrl.counter("", 0, TOTAL, 5)
    resctrl.counter("", 1, TOTAL, 6)
    assert write(path, "0=0x33\n") == ""
    assert path.read_text() == "0=0x33;1=0x7f;2=0x7f;3=0x7f\n"
    assert [read(resctrl, "") for _ in range(2)] == ["Unavailable\n", "0\n"]
    assert read(resctrl, "", "mon_L3_01") == "6\n"
    assert write(path, "1=0x80\n") == "EINVAL"
    assert resctrl.status() == "Invalid event configuration: max valid mask is 0x7f\n"


def test_the_lab_refuses_what_cannot_be(resctrl: Lab) -> None:
    for arguments in (("", 7, TOTAL, 1), ("", 0, "misses", 1), ("", 0, TOTAL, "Broken"), ("info", 0, TOTAL, 1)):
        with pytest.raises(ValueError, match=r"counter|group"):
            resctrl.counter(*arguments)
    with pytest.raises(ValueError, match="no machine shape"):
        resctrl.reset("arm")
    assert Path(resctrl.mount / "schemata").exists()
