"""Groups: making, removing, moving and running out of them; modes and CPUs. Sources beside the rules in model.py."""

from __future__ import annotations

import os

import pytest

from tests.labs.resctrl.helpers import outcome, values, write
from tests.labs.resctrl.lab import Lab

pytestmark = pytest.mark.lab_resctrl

CTRL_FILES = {"cpus", "cpus_list", "tasks", "schemata", "mode", "size"}


def test_a_new_group_has_its_files_at_once(resctrl: Lab) -> None:
    group = resctrl.mount / "g"
    group.mkdir()
    assert set(os.listdir(group)) == CTRL_FILES | {"mon_groups", "mon_data"}
    assert values(group / "schemata") == {"L3": "0=7ff;1=7ff", "MB": "0=100;1=100"}
    assert (group / "tasks").read_text() == ""
    assert (group / "mode").read_text() == "shareable\n"
    assert (group / "cpus").read_text() == "00\n"
    assert (group / "cpus_list").read_text() == "\n"
    (group / "mon_groups/m").mkdir()
    assert set(os.listdir(group / "mon_groups/m")) == {"cpus", "cpus_list", "tasks", "mon_data"}
    assert set(os.listdir(group / "mon_data/mon_L3_01")) == {"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("info", "EEXIST"),
        ("mon_groups", "EEXIST"),
        ("schemata", "EEXIST"),
        ("g", "EEXIST"),
        ("info/x", "ENODEV"),
        ("info/L3/x", "ENODEV"),
        ("mon_data/x", "EPERM"),
        ("g/x", "EPERM"),
        ("g/mon_groups/mon_groups", "EPERM"),
        ("g/mon_groups/m/x", "EPERM"),
        ("mon_groups/m/mon_data/x", "ENOENT"),
        ("a\nb", "EINVAL"),
        ("schemata/x", "ENOTDIR"),
    ],
)
def test_groups_are_made_only_where_they_belong(resctrl: Lab, path: str, code: str) -> None:
    (resctrl.mount / "g").mkdir()
    (resctrl.mount / "g/mon_groups/m").mkdir()
    assert outcome((resctrl.mount / path).mkdir) == code


@pytest.mark.parametrize("path", ["info", "info/L3", "mon_groups", "mon_data", "g/mon_data", "g/mon_data/mon_L3_00"])
def test_automatic_directories_cannot_be_removed(resctrl: Lab, path: str) -> None:
    (resctrl.mount / "g").mkdir()
    assert outcome((resctrl.mount / path).rmdir) == "EPERM"


def test_files_are_neither_made_nor_removed(resctrl: Lab) -> None:
    assert outcome(lambda: os.open(resctrl.mount / "x", os.O_CREAT | os.O_WRONLY)) == "EACCES"
    assert outcome((resctrl.mount / "schemata").unlink) == "EPERM"
    assert outcome(lambda: os.symlink("a", resctrl.mount / "b")) == "EPERM"


@pytest.mark.parametrize(
    "path", ["size", "info/last_cmd_status", "info/L3/cbm_mask", "mon_data/mon_L3_00/llc_occupancy"]
)
def test_read_only_files_bind_root_too(resctrl: Lab, path: str) -> None:
    assert write(resctrl.mount / path, "1\n") == "EACCES"


@pytest.mark.parametrize(
    ("shape", "groups"), [("intel", 7), ("intel-16", 15), ("haswell", 3), ("intel-cdp", 7), ("intel-l2cdp", 1)]
)
def test_classes_run_out_at_the_smallest_resource(resctrl: Lab, shape: str, groups: int) -> None:
    """The default group has one; CDP halves them; MB's number counts where it is smaller."""
    resctrl.reset(shape)
    for n in range(groups):
        (resctrl.mount / f"g{n}").mkdir()
    assert outcome((resctrl.mount / "more").mkdir) == "ENOSPC"
    assert resctrl.status() == "Out of CLOSIDs\n"
    assert not (resctrl.mount / "more").exists()
    (resctrl.mount / "g0").rmdir()
    (resctrl.mount / "more").mkdir()
    assert resctrl.status() == "ok\n"


def test_a_reused_class_starts_with_everything_again(resctrl: Lab) -> None:
    group = resctrl.mount / "g"
    group.mkdir()
    write(group / "schemata", "L3:0=f\nMB:0=10\n")
    group.rmdir()
    group.mkdir()
    assert values(group / "schemata") == {"L3": "0=7ff;1=7ff", "MB": "0=100;1=100"}


def test_rmids_run_out_and_rest_in_limbo(resctrl: Lab) -> None:
    resctrl.reset("few-rmids")  # four, one of them the default group's
    (resctrl.mount / "a").mkdir()
    (resctrl.mount / "b").mkdir()
    (resctrl.mount / "b/mon_groups/m").mkdir()
    for path in ("c", "b/mon_groups/n"):
        assert outcome((resctrl.mount / path).mkdir) == "ENOSPC"
        assert resctrl.status() == "Out of RMIDs\n"
    resctrl.counter("a", 0, "llc_occupancy", 32 << 20)
    (resctrl.mount / "a").rmdir()
    assert outcome((resctrl.mount / "c").mkdir) == "EBUSY"  # its lines are still in the cache
    assert resctrl.status() == "Out of RMIDs\n"
    resctrl.drain()
    (resctrl.mount / "c").mkdir()


def test_a_removed_group_is_gone_for_open_files(resctrl: Lab) -> None:
    (resctrl.mount / "g").mkdir()
    (resctrl.mount / "g/mon_groups/m").mkdir()
    fds = [os.open(resctrl.mount / p, os.O_RDWR) for p in ("g/schemata", "g/mon_groups/m/tasks")]
    assert os.pread(fds[0], 100, 0)
    (resctrl.mount / "g").rmdir()
    assert [outcome(lambda fd=fd: os.pread(fd, 100, 0)) for fd in fds] == ["ENODEV"] * 2
    assert [outcome(lambda fd=fd: os.pwrite(fd, b"1\n", 0)) for fd in fds] == ["ENODEV"] * 2
    (resctrl.mount / "g").mkdir()  # the same name is another group
    assert outcome(lambda: os.pread(fds[0], 100, 0)) == "ENODEV"
    for fd in fds:
        os.close(fd)


def test_a_kept_descriptor_sees_the_present(resctrl: Lab) -> None:
    fd = os.open(resctrl.mount / "schemata", os.O_RDONLY)
    before = os.pread(fd, 4096, 0)
    write(resctrl.mount / "schemata", "MB:0=50\n")
    assert os.pread(fd, 4096, 0) == before.replace(b"0=100", b"0=50")
    assert os.pread(fd, 8, 4) == before[4:12].replace(b"0=100", b"0=50;")
    os.close(fd)


# MON groups


def test_a_mon_group_moves_to_another_class(resctrl: Lab) -> None:
    for name in ("a", "b"):
        (resctrl.mount / name).mkdir()
    (resctrl.mount / "a/mon_groups/m").mkdir()
    resctrl.fork(5_000_001)
    for path in ("a/tasks", "a/mon_groups/m/tasks"):
        assert write(resctrl.mount / path, "5000001\n") == ""
    resctrl.counter("a/mon_groups/m", 0, "mbm_total_bytes", 77)
    os.rename(resctrl.mount / "a/mon_groups/m", resctrl.mount / "b/mon_groups/n")
    assert (resctrl.mount / "a/tasks").read_text() == ""
    assert (
        (resctrl.mount / "b/tasks").read_text() == (resctrl.mount / "b/mon_groups/n/tasks").read_text() == "5000001\n"
    )
    assert (resctrl.mount / "b/mon_groups/n/mon_data/mon_L3_00/mbm_total_bytes").read_text() == "77\n"


@pytest.mark.parametrize(
    ("old", "new", "code", "status"),
    [
        ("a", "b", "EPERM", "Source must be a MON group\n"),
        ("a/mon_groups/m", "a/m", "EPERM", "Destination must be a mon_groups subdirectory\n"),
        ("a/mon_data", "a/x", "EPERM", "Source must be a MON group\n"),
        ("a/tasks", "a/x", "EPERM", "Source and destination must be directories"),
        ("info", "x", "ENOENT", "ok\n"),
        ("a/mon_groups/m", "mon_groups/m", "EPERM", "Cannot move a MON group that monitors CPUs\n"),
    ],
)
def test_other_moves_are_refused(resctrl: Lab, old: str, new: str, code: str, status: str) -> None:
    (resctrl.mount / "a").mkdir()
    (resctrl.mount / "a/mon_groups/m").mkdir()
    assert write(resctrl.mount / "a/cpus_list", "1\n") == write(resctrl.mount / "a/mon_groups/m/cpus_list", "1\n") == ""
    assert outcome(lambda: os.rename(resctrl.mount / old, resctrl.mount / new)) == code
    assert resctrl.status() == status


# modes


def test_an_exclusive_group_keeps_others_out(resctrl: Lab) -> None:
    """The documentation's example, "Example of exclusive mode"."""
    root, p0, p1 = resctrl.mount, resctrl.mount / "p0", resctrl.mount / "p1"
    resctrl.reset("intel-l2")
    p0.mkdir()
    assert write(p0 / "schemata", "L2:0=0x3;1=0x3;2=3;3=3\n") == ""
    assert write(p0 / "mode", "exclusive\n") == "EINVAL"
    assert resctrl.status() == "Schemata overlaps\n"
    assert write(root / "schemata", "L2:0=0xfc;1=0xfc;2=fc;3=fc\n") == ""
    assert write(p0 / "mode", "exclusive\n") == ""
    p1.mkdir()
    assert values(p1 / "schemata")["L2"] == "0=fc;1=fc;2=fc;3=fc"
    assert (root / "info/L2/bit_usage").read_text() == "0=SSSSSSEE;1=SSSSSSEE;2=SSSSSSEE;3=SSSSSSEE\n"
    assert write(p1 / "schemata", "L2:0=0x1;1=0x1\n") == "EINVAL"
    assert resctrl.status() == "Overlaps with exclusive group\n"
    assert write(p0 / "schemata", "L2:0=7\n") == "EINVAL"
    assert resctrl.status() == "Overlaps with other group\n"


def test_a_group_cannot_be_exclusive_on_ways_shared_with_io(resctrl: Lab) -> None:
    (resctrl.mount / "g").mkdir()
    write(resctrl.mount / "schemata", "L3:0=ff;1=ff\n")
    write(resctrl.mount / "g/schemata", "L3:0=700;1=700\n")  # the top two bits are info/L3/shareable_bits
    assert write(resctrl.mount / "g/mode", "exclusive\n") == "EINVAL"
    assert write(resctrl.mount / "g/schemata", "L3:0=100;1=100\n") == ""
    assert write(resctrl.mount / "g/mode", "exclusive\n") == ""
    assert (resctrl.mount / "info/L3/bit_usage").read_text() == "0=HHESSSSSSSS;1=HHESSSSSSSS\n"


def test_no_room_for_another_group(resctrl: Lab) -> None:
    resctrl.reset("intel-l2")
    (resctrl.mount / "g").mkdir()
    write(resctrl.mount / "schemata", "L2:0=1;1=1;2=1;3=1\n")
    write(resctrl.mount / "g/schemata", "L2:0=fe;1=fe;2=fe;3=fe\n")
    assert write(resctrl.mount / "mode", "exclusive\n") == write(resctrl.mount / "g/mode", "exclusive\n") == ""
    assert outcome((resctrl.mount / "h").mkdir) == "ENOSPC"
    assert resctrl.status() == "No space on L2:0\n"
    assert not (resctrl.mount / "h").exists()


@pytest.mark.parametrize(
    ("shape", "group", "mode", "status"),
    [
        ("intel", "g", "quiet\n", "Unknown or unsupported mode\n"),
        ("intel", "g", "exclusive", "ok\n"),
        ("intel", "g", "pseudo-locksetup\n", "Pseudo-locking not supported\n"),
        ("intel-cdp", "g", "pseudo-locksetup\n", "CDP enabled\n"),
        ("intel-l2", "", "pseudo-locksetup\n", "Cannot pseudo-lock default group\n"),
    ],
)
def test_modes_refused(resctrl: Lab, shape: str, group: str, mode: str, status: str) -> None:
    resctrl.reset(shape)
    (resctrl.mount / "g").mkdir()
    assert write(resctrl.mount / group / "mode", mode) == "EINVAL"
    assert resctrl.status() == status


def test_a_pseudo_locked_region_is_off_limits(resctrl: Lab) -> None:
    """The documentation's "Example of Cache Pseudo-Locking"; there is no device node and nothing is loaded."""
    resctrl.reset("intel-l2")
    lock = resctrl.mount / "newlock"
    assert write(resctrl.mount / "schemata", "L2:1=0xfc\n") == ""
    lock.mkdir()
    assert write(lock / "mode", "pseudo-locksetup\n") == ""
    assert (lock / "schemata").read_text() == "L2:uninitialized\n"
    assert write(lock / "tasks", "1\n") == "EACCES"
    assert write(lock / "schemata", "L2:1=0x3\n") == ""
    assert (lock / "mode").read_text() == "pseudo-locked\n"
    assert (lock / "schemata").read_text() == "L2:1=3\n"
    assert (resctrl.mount / "info/L2/bit_usage").read_text().split(";")[1] == "1=SSSSSSPP"
    assert write(lock / "schemata", "L2:1=0x1\n") == "EINVAL"
    assert resctrl.status() == "Resource group is pseudo-locked\n"
    assert write(resctrl.mount / "schemata", "L2:1=1\n") == "EINVAL"
    assert resctrl.status() == "CBM overlaps with pseudo-locked region\n"
    lock.rmdir()
    assert write(resctrl.mount / "schemata", "L2:1=1\n") == ""


# CPUs


def test_a_cpu_belongs_to_one_class(resctrl: Lab) -> None:
    root, a, m = resctrl.mount, resctrl.mount / "a", resctrl.mount / "a/mon_groups/m"
    a.mkdir()
    m.mkdir()
    assert (root / "cpus_list").read_text() == "0-7\n"
    assert write(a / "cpus_list", "1-2,5\n") == ""
    assert write(m / "cpus", "4\n") == ""  # CPU 2
    assert [(p / "cpus_list").read_text() for p in (root, a, m)] == ["0,3-4,6-7\n", "1-2,5\n", "2\n"]
    assert write(root / "cpus_list", "0,2-4,6-7\n") == ""
    assert [(p / "cpus").read_text() for p in (root, a, m)] == ["dd\n", "22\n", "00\n"]
    a.rmdir()
    assert (root / "cpus").read_text() == "ff\n"


@pytest.mark.parametrize(
    ("file", "text", "code", "status"),
    [
        ("a/cpus", "xyz\n", "EINVAL", "Bad CPU list/mask\n"),
        ("a/cpus", "1ff\n", "EOVERFLOW", "Bad CPU list/mask\n"),
        ("a/cpus_list", "8\n", "ERANGE", "Bad CPU list/mask\n"),
        ("a/cpus_list", "3-1\n", "EINVAL", "Bad CPU list/mask\n"),
        ("cpus_list", "0-3\n", "EINVAL", "Can't drop CPUs from default group\n"),
        ("a/mon_groups/m/cpus", "1\n", "EINVAL", "Can only add CPUs to mongroup that belong to parent\n"),
        ("a/cpus_list", "1", "", "ok\n"),
        ("a/cpus_list", "\n", "", "ok\n"),
    ],
)
def test_cpu_writes(resctrl: Lab, file: str, text: str, code: str, status: str) -> None:
    (resctrl.mount / "a").mkdir()
    (resctrl.mount / "a/mon_groups/m").mkdir()
    assert write(resctrl.mount / file, text) == code
    assert resctrl.status() == status


def test_masks_of_large_machines_come_in_groups_of_32_bits(resctrl: Lab) -> None:
    resctrl.reset("amd-two-sockets")
    (resctrl.mount / "g").mkdir()
    assert write(resctrl.mount / "g/cpus", "1,00000002\n") == ""
    assert (resctrl.mount / "g/cpus_list").read_text() == "1,32\n"
    assert (resctrl.mount / "cpus").read_text() == "fffffffe,fffffffd\n"
