"""Writes to schemata: what the kernel accepts, what it answers, and what is in force afterwards.

Sources beside the rules in schemata.py. Each row: shape, era, what is written to a fresh group g, errno,
last_cmd_status without its newline, and a line of g/schemata afterwards.
"""

from __future__ import annotations

import pytest

from tests.labs.resctrl.helpers import values, write
from tests.labs.resctrl.lab import Lab

pytestmark = pytest.mark.lab_resctrl

L3, MB = "0=7ff;1=7ff", "0=100;1=100"
HOLES = "The mask f7 has non-consecutive 1-bits"
ROWS = {
    # accepted
    "one domain, the other stays": ("intel", "6.18", "L3:0=f\n", "", "ok", "L3:0=f;1=7ff"),
    "several lines": ("intel", "6.18", "L3:0=f;1=f0\nMB:1=50\n", "", "ok", "MB:0=100;1=50"),
    "semicolon at the end": ("intel", "6.18", "L3:0=f;1=f0;\n", "", "ok", "L3:0=f;1=f0"),
    "blanks before the name and around the value": ("intel", "6.18", "   MB:0=  20 ;1= 30\n", "", "ok", "MB:0=20;1=30"),
    "0x and capitals": ("intel", "6.18", "L3:0=0x1F;1=0XF0\n", "", "ok", "L3:0=1f;1=f0"),
    "percent rounded up to the step": ("intel", "6.18", "MB:0=31;1=90\n", "", "ok", "MB:0=40;1=90"),
    "all and the lowest mask": ("intel", "6.18", "L3:0=7ff;1=1\n", "", "ok", "L3:0=7ff;1=1"),
    "two lines of one resource": ("intel", "6.18", "L3:0=f\nL3:1=f0\n", "", "ok", "L3:0=f;1=f0"),
    "holes where sparse_masks is 1": ("intel-sparse", "6.18", "L3:0=f0f\n", "", "ok", "L3:0=f0f;1=7fff"),
    "AMD takes a mask of no bits": ("amd-smba", "6.18", "L3:0=0\n", "", "ok", "L3:0=0;1=ffff;2=ffff;3=ffff"),
    "AMD takes holes": ("amd-smba", "6.18", "L3:1=5\n", "", "ok", "L3:0=ffff;1=5;2=ffff;3=ffff"),
    "AMD bandwidth has a step of 1 and no minimum": (
        *("amd-smba", "6.18", "SMBA:0=64\nMB:1=0;2=17\n", "", "ok"),
        "MB:0=2048;1=0;2=17;3=2048",
    ),
    "code and data apart": ("intel-cdp", "6.18", "L3CODE:0=3\nL3DATA:0=7fc\n", "", "ok", "L3CODE:0=3;1=7ff"),
    "L2": ("intel-l2", "6.18", "L2:3=f\n", "", "ok", "L2:0=ff;1=ff;2=ff;3=f"),
    "MBps of any size": ("intel-mbps", "6.18", "MB:0=12345\n", "", "ok", "MB:0=12345;1=4294967295"),
    # refused
    "hole": ("intel", "6.18", "L3:0=f7\n", "EINVAL", HOLES, f"L3:{L3}"),
    "no bits": ("intel", "6.18", "L3:0=0\n", "EINVAL", "Mask out of range", f"L3:{L3}"),
    "a bit too many": ("intel", "6.18", "L3:0=fff\n", "EINVAL", "Mask out of range", f"L3:{L3}"),
    "no hex": ("intel", "6.18", "L3:0=xyz\n", "EINVAL", "Non-hex character in the mask xyz", f"L3:{L3}"),
    "too few bits": ("haswell", "6.18", "L3:0=1\n", "EINVAL", "Need at least 2 bits in the mask", "L3:0=fffff;1=fffff"),
    "below the minimum": ("intel", "6.18", "MB:0=9\n", "EINVAL", "MB value 9 out of range [10,100]", f"MB:{MB}"),
    "above the maximum": ("intel", "6.18", "MB:0=101\n", "EINVAL", "MB value 101 out of range [10,100]", f"MB:{MB}"),
    "AMD above the maximum": (
        *("amd-smba", "6.18", "MB:0=2049\n", "EINVAL", "MB value 2049 out of range [0,2048]"),
        "MB:0=2048;1=2048;2=2048;3=2048",
    ),
    "bandwidth in hex": ("intel", "6.18", "MB:0=0x20\n", "EINVAL", "Invalid MB value 0x20", f"MB:{MB}"),
    "negative bandwidth": ("intel", "6.18", "MB:0=-10\n", "EINVAL", "Invalid MB value -10", f"MB:{MB}"),
    "duplicate": ("intel", "6.18", "L3:0=f;0=f\n", "EINVAL", "Duplicate domain 0", f"L3:{L3}"),
    "duplicate over two lines": ("intel", "6.18", "L3:0=f\nL3:0=f\n", "EINVAL", "Duplicate domain 0", f"L3:{L3}"),
    "unknown domain leaves no text": ("intel", "6.18", "L3:2=f\n", "EINVAL", "ok", f"L3:{L3}"),
    "ids 0-15 where there are 0-7 and 16-23": ("amd-two-sockets", "6.18", "MB:8=16\n", "EINVAL", "ok", ""),
    "unknown resource": ("intel", "6.18", "L2:0=f\n", "EINVAL", "Unknown or unsupported resource name 'L2'", ""),
    "L3 under CDP": ("intel-cdp", "6.18", "L3:0=f\n", "EINVAL", "Unknown or unsupported resource name 'L3'", ""),
    "no colon": ("intel", "6.18", "L3\n", "EINVAL", "Missing ':'", f"L3:{L3}"),
    "empty line": ("intel", "6.18", "L3:0=f\n\n", "EINVAL", "Missing ':'", f"L3:{L3}"),
    "nothing after the colon": ("intel", "6.18", "L3:\n", "EINVAL", "Missing 'L3' value", f"L3:{L3}"),
    "no equals sign": ("intel", "6.18", "L3:0\n", "EINVAL", "Missing '=' or non-numeric domain", f"L3:{L3}"),
    "blank before the id": ("intel", "6.18", "L3: 0=f\n", "EINVAL", "Missing '=' or non-numeric domain", f"L3:{L3}"),
    "no newline": ("intel", "6.18", "L3:0=f", "EINVAL", "ok", f"L3:{L3}"),
    "longer than a page": ("intel", "6.18", "L3:0=f;" * 600 + "\n", "E2BIG", "ok", f"L3:{L3}"),
    # one bad line and nothing changes, except MBps values before it
    "good line before a bad one": ("intel", "6.18", "MB:0=10\nL3:0=f7\n", "EINVAL", HOLES, f"MB:{MB}"),
    "good domain before a bad one": ("intel", "6.18", "L3:0=f;1=f7\n", "EINVAL", HOLES, f"L3:{L3}"),
    "MBps before a bad line": ("intel-mbps", "6.18", "MB:0=5\nL3:0=f7\n", "EINVAL", HOLES, "MB:0=5;1=4294967295"),
    "MBps before a bad line on an old kernel": (
        *("intel-mbps", "4.19", "MB:0=5\nL3:0=f7\n", "EINVAL", "mask f7 has non-consecutive 1-bits"),
        "MB:0=4294967295;1=4294967295",
    ),
    # older kernels: wording and filled-up values
    "old: hole": ("intel", "4.19", "L3:0=f7\n", "EINVAL", "mask f7 has non-consecutive 1-bits", f"L3:{L3}"),
    "old: range": ("intel", "4.19", "L3:0=0\n", "EINVAL", "mask out of range", f"L3:{L3}"),
    "old: resource": ("intel", "4.19", "L2:0=f\n", "EINVAL", "unknown/unsupported resource name 'L2'", f"L3:{L3}"),
    "old: bits": ("haswell", "4.19", "L3:0=1\n", "EINVAL", "Need at least 2 bits in mask", "L3:0=fffff;1=fffff"),
    "old: bandwidth": ("intel", "4.19", "MB:0=x\n", "EINVAL", "Non-decimal digit in MB value x", f"MB:{MB}"),
    "padded with zeros and blanks": ("intel", "6.6", "L3:0=f\nMB:1=50\n", "", "ok", "L3:0=00f;1=7ff"),
    "padded bandwidth": ("intel", "6.6", "L3:0=f\nMB:1=50\n", "", "ok", "MB:0=100;1= 50"),
}


@pytest.mark.parametrize(("shape", "era", "text", "code", "status", "line"), ROWS.values(), ids=ROWS)
def test_a_write(resctrl: Lab, shape: str, era: str, text: str, code: str, status: str, line: str) -> None:
    resctrl.reset(shape, era)
    group = resctrl.mount / "g"
    group.mkdir()
    before = (group / "schemata").read_text()
    assert write(group / "schemata", text) == code
    assert resctrl.status() == f"{status}\n"
    if line:
        name, _, expected = line.partition(":")
        assert values(group / "schemata")[name] == expected
    else:
        assert (group / "schemata").read_text() == before


def test_the_status_stays_until_the_next_command(resctrl: Lab) -> None:
    write(resctrl.mount / "schemata", "L3:0=f7\n")
    assert resctrl.status() == resctrl.status() == f"{HOLES}\n"
    (resctrl.mount / "schemata").read_text()
    assert resctrl.status() == f"{HOLES}\n"
    write(resctrl.mount / "schemata", "L3:0=f\n")
    assert resctrl.status() == "ok\n"


def test_what_is_read_can_be_written_back(resctrl: Lab) -> None:
    for shape, era in [("amd-smba", "6.6"), ("intel-cdp", "6.18"), ("intel-l2cdp", "4.19"), ("intel-mbps", "6.6")]:
        resctrl.reset(shape, era)
        text = (resctrl.mount / "schemata").read_text()
        assert write(resctrl.mount / "schemata", text) == ""
        assert (resctrl.mount / "schemata").read_text() == text


def test_size_counts_bytes_of_the_ways(resctrl: Lab) -> None:
    write(resctrl.mount / "schemata", "L3:0=f\nMB:1=50\n")
    way_bytes = 3 << 20
    assert values(resctrl.mount / "size") == {"L3": f"0={4 * way_bytes};1={11 * way_bytes}", "MB": "0=100;1=50"}


def test_lines_are_aligned_for_the_longest_name_with_cdp(resctrl: Lab) -> None:
    assert (resctrl.mount / "schemata").read_text() == "    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n"
    resctrl.reset("intel-cdp")
    assert (resctrl.mount / "schemata").read_text() == "    MB:0=100;1=100\nL3DATA:0=7ff;1=7ff\nL3CODE:0=7ff;1=7ff\n"
    resctrl.reset("intel-cdp", "4.19")
    assert (resctrl.mount / "schemata").read_text() == "L3DATA:0=7ff;1=7ff\nL3CODE:0=7ff;1=7ff\n    MB:0=100;1=100\n"
