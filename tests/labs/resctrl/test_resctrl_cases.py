"""The lab shows what was seen in the field (tests/cases/resctrl-*), and every shape says what its machine says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.labs.resctrl.helpers import outcome, values, write
from tests.labs.resctrl.lab import Lab
from tests.labs.resctrl.shapes import ERAS, SHAPES

pytestmark = pytest.mark.lab_resctrl

CASES = Path(__file__).resolve().parents[2] / "cases"


def load(case: str, name: str) -> Any:
    return json.loads((CASES / case / name).read_text())


def info(lab: Lab, resource: str) -> dict[str, str]:
    return {p.name: p.read_text().strip() for p in (lab.mount / "info" / resource).iterdir()}


SAYS = {  # shape, resource: some of its info files
    ("intel", "L3"): {"num_closids": "16", "cbm_mask": "7ff", "min_cbm_bits": "1", "sparse_masks": "0"},
    ("intel", "MB"): {"num_closids": "8", "min_bandwidth": "10", "bandwidth_gran": "10", "delay_linear": "1"},
    ("intel", "L3_MON"): {"num_rmids": "224"},
    ("intel-16", "MB"): {"num_closids": "16", "thread_throttle_mode": "per-thread"},
    ("intel-cdp", "L3CODE"): {"num_closids": "8", "cbm_mask": "7ff"},
    ("intel-sparse", "L3"): {"sparse_masks": "1"},
    ("haswell", "L3"): {"num_closids": "4", "cbm_mask": "fffff", "min_cbm_bits": "2", "shareable_bits": "c0000"},
    ("intel-l2", "L2"): {"num_closids": "4", "bit_usage": "0=SSSSSSSS;1=SSSSSSSS;2=SSSSSSSS;3=SSSSSSSS"},
    ("amd-smba", "SMBA"): {"num_closids": "16", "min_bandwidth": "0", "bandwidth_gran": "1", "delay_linear": "0"},
    ("amd-smba", "L3_MON"): {"mbm_local_bytes_config": "0=0x15;1=0x15;2=0x15;3=0x15"},
}


@pytest.mark.parametrize(("shape", "resource"), SAYS, ids="-".join)
def test_info(resctrl: Lab, shape: str, resource: str) -> None:
    resctrl.reset(shape)
    assert SAYS[shape, resource].items() <= info(resctrl, resource).items()


def test_amd_has_no_throttle_mode_and_old_kernels_no_sparse_masks(resctrl: Lab) -> None:
    resctrl.reset("amd-smba", "6.6")
    assert "thread_throttle_mode" not in info(resctrl, "MB")
    assert "sparse_masks" not in info(resctrl, "L3")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_file_of_every_shape_can_be_read(resctrl: Lab, shape: str, era: str) -> None:
    resctrl.reset(shape, era)
    for directory, _, files in os.walk(resctrl.mount):
        for name in files:
            text = Path(directory, name).read_text()
            assert text.endswith("\n") or (shape == "monitor-only" and not text)


def test_noncontiguous_cache_ids(resctrl: Lab) -> None:
    case = "resctrl-noncontiguous-cache-ids"
    resctrl.reset("amd-two-sockets", "6.6")
    assert (resctrl.mount / "schemata").read_text().rstrip() == (CASES / case / "schemata").read_text().rstrip()
    assert write(resctrl.mount / "schemata", load(case, "expected.json")["l3_line"] + "\n") == ""
    old_way = "L3:" + ";".join(f"{n}=1f" for n in range(16))
    assert write(resctrl.mount / "schemata", old_way + "\n") == "EINVAL"


def test_amd_padded_smba(resctrl: Lab) -> None:
    resctrl.reset("amd-smba", "6.6")
    assert write(resctrl.mount / "schemata", "SMBA:2=64\nMB:1=16\n") == ""
    recorded = (CASES / "resctrl-amd-padded-smba/schemata").read_text()
    assert (resctrl.mount / "schemata").read_text().rstrip() == recorded.rstrip()


def test_cdp(resctrl: Lab) -> None:
    case = CASES / "resctrl-cdp-schemata"
    resctrl.reset("intel-cdp", "4.19")
    assert values(resctrl.mount / "schemata") == values(case / "schemata")
    for path in (p for p in (case / "info").rglob("*") if p.is_file()):
        assert (resctrl.mount / path.relative_to(case)).read_text().strip() == path.read_text().strip()
    for line in load("resctrl-cdp-schemata", "expected.json")["lines"]:
        assert write(resctrl.mount / "schemata", line + "\n") == ""


def test_mba_mbps(resctrl: Lab) -> None:
    case = CASES / "resctrl-mba-mbps"
    resctrl.reset("intel-mbps")
    assert (resctrl.mount / "schemata").read_text().rstrip() == (case / "schemata").read_text().rstrip()
    assert "mba_MBps" in (case / "mounts").read_text()
    assert resctrl.mounts.read_text() == (case / "mounts").read_text().replace("/sys/fs/resctrl", str(resctrl.mount))
    assert (resctrl.mount / "mba_MBps_event").read_text() == "mbm_local_bytes\n"
    assert write(resctrl.mount / "mba_MBps_event", "mbm_total_bytes\n") == ""
    assert write(resctrl.mount / "mba_MBps_event", "llc_occupancy\n") == "EINVAL"
    assert resctrl.status() == "Unsupported event id 'llc_occupancy'\n"


def test_last_cmd_status_of_an_old_kernel(resctrl: Lab) -> None:
    """The texts in the record's order: ok, a hole, overlap, exclusive group, no class left."""
    rows = load("resctrl-last-cmd-status", "status.json")
    resctrl.reset("haswell", "4.19")
    a, b = resctrl.mount / "a", resctrl.mount / "b"
    seen = [("", resctrl.status())]
    seen.append((write(resctrl.mount / "schemata", "L3:0=f7\n"), resctrl.status()))
    a.mkdir()
    seen.append((write(a / "mode", "exclusive\n"), resctrl.status()))
    write(resctrl.mount / "schemata", "L3:0=ff;1=ff\n")
    write(a / "schemata", "L3:0=f00;1=f00\n")
    assert write(a / "mode", "exclusive\n") == ""
    b.mkdir()
    seen.append((write(b / "schemata", "L3:0=f00\n"), resctrl.status()))
    (resctrl.mount / "c").mkdir()
    seen.append((outcome((resctrl.mount / "d").mkdir), resctrl.status()))
    assert seen == [(row["errno"] or "", row["text"]) for row in rows if row["op"] != "status_file_missing"]


def test_mon_data_words(resctrl: Lab) -> None:
    case = CASES / "resctrl-mon-data-newline-unavailable"
    (resctrl.mount / "g").mkdir()
    for reading in ("t1", "t2"):
        recorded = [p for p in (case / reading).rglob("*") if p.is_file()]
        for path in recorded:
            word = path.read_text().strip()
            resctrl.counter("g", int(path.parent.name[-2:]), path.name, int(word) if word.isdigit() else word)
        for path in recorded:
            shown = resctrl.mount / "g/mon_data" / path.relative_to(case / reading)
            assert shown.read_text() == path.read_text().strip() + "\n"


def test_dead_task(resctrl: Lab) -> None:
    case, expected = load("resctrl-dead-task", "scenario.json"), load("resctrl-dead-task", "expected.json")
    (resctrl.mount / "BE").mkdir()
    for tid in case["cgroup_tasks"]:
        resctrl.fork(tid)
    for tid in case["group_tasks"]:
        assert write(resctrl.mount / "BE/tasks", f"{tid}\n") == ""
    for tid in case["dead"]:
        resctrl.exit(tid)
    codes = {tid: write(resctrl.mount / "BE/tasks", f"{tid}\n") for tid in expected["attempted"]}
    assert [tid for tid, code in codes.items() if code == "ESRCH"] == case["dead"]
    assert [int(t) for t in (resctrl.mount / "BE/tasks").read_text().split()] == expected["group_after"]


def test_foreign_groups_use_up_classes(resctrl: Lab) -> None:
    present = set(os.listdir(resctrl.mount))
    for name in load("resctrl-foreign-groups", "tree.json")["dirs"]:
        if name not in present:
            (resctrl.mount / name).mkdir()
    assert outcome((resctrl.mount / "another").mkdir) == "ENOSPC"
