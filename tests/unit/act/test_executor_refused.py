"""The executor when the kernel refuses, has no such file, or does not keep what was written."""

import errno
import os

import pytest

from koordlet.model.knob import Knob
from koordlet.model.status import HeldState
from tests.hosts.act_node import CPUSET, QUOTA, SHARES, Node, cpus, want
from tests.hosts.cases import case_json


def test_a_first_write_that_fails_is_told_since_it_was_tried(node: Node) -> None:
    node.apply(want("be", QUOTA, 999))  # the kernel takes no less than 1000
    assert node.held("be", QUOTA).state is HeldState.FAILED
    assert node.held("be", QUOTA).since_s == node.now_s


ERRNOS = [errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.EACCES, errno.EPERM]


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
def test_refused_once_loudly_then_back_off(node: Node, number: int) -> None:
    bad, good = want("be/pod", QUOTA, 50_000), want("be", SHARES, 2)
    node.kernel.deny["cpu/be/pod/cpu.cfs_quota_us"] = number
    report = node.apply(bad, good)
    assert (report.failed, report.written, len(report.errors)) == (1, 1, 1)
    assert os.strerror(number) in report.errors[0]
    attempts = [node.apply(bad, good).failed for _ in range(200)]
    tries = [second for second, failed in enumerate(attempts, 1) if failed]
    assert tries == [1, 3, 7, 15, 31, 63, 123, 183]
    assert [record.mode for record in node.audit].count("refused") == 1
    assert node.state("be/pod", QUOTA) is HeldState.FAILED
    node.kernel.deny.clear()
    assert node.apply(want("be/pod", QUOTA, 60_000), good).written == 1
    assert node.apply(good).errors == ()


def test_hot_drift_that_cannot_be_repaired_backs_off_too(node: Node) -> None:
    wish = want("be", QUOTA, 50_000, hot=True)
    node.apply(wish)
    node.foreign("be", QUOTA, "-1")
    node.kernel.deny["cpu/be/cpu.cfs_quota_us"] = errno.EBUSY
    reports = [node.apply(wish) for _ in range(60)]
    assert (sum(report.failed for report in reports), sum(report.drifted for report in reports)) == (6, 1)
    assert [record.mode for record in node.audit].count("refused") == 1
    node.kernel.deny.clear()
    node.apply(wish, after_s=61)
    node.foreign("be", QUOTA, "-1")
    assert node.apply(wish).drifted == 1


def test_release_after_an_illegal_wish_still_restores(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000))
    assert node.apply(want("be", QUOTA, 5)).failed == 1
    node.apply()
    assert (node.read("be", QUOTA), node.executor.held()) == ("-1", ())


def test_value_outside_the_range_is_refused_until_another_is_wanted(node: Node) -> None:
    bad = want("be", QUOTA, 5)
    assert node.apply(bad).failed == 1
    assert sum(node.apply(bad).failed for _ in range(100)) == 0
    assert (node.state("be", QUOTA), node.kernel.calls) == (HeldState.FAILED, 0)
    assert node.apply(want("be", QUOTA, 5000)).written == 1


def test_root_cgroup_is_refused(node: Node) -> None:
    wanted = "kubepods/besteffort/pod3f0c2a7e-91d4-4b6a-8e57-6c1d0f2ab934"
    node.tree.cgroup("kubepods/besteffort", {"cpuset.cpus": "0-7\n"})
    rows = case_json("empty-cgroup-parent", "requests.json")
    node.tree.cgroup(wanted, {"cpuset.cpus": "0-7\n"})
    for row, expected in zip(rows, case_json("empty-cgroup-parent"), strict=True):
        node.kernel.writes.clear()
        report = node.apply(want(row["cgroup_parent"], CPUSET, cpus(row["cpuset"]), "podrules"))
        assert [name for name, _ in node.kernel.writes if "pod" in name] == [
            f"cpuset/{name}" for name in expected["written"]
        ]
        assert bool(report.errors) == expected["error"]
    assert "cpuset/cpuset.cpus" not in dict(node.kernel.writes)


def test_unsupported_is_told_once_and_not_retried(node: Node) -> None:
    names = {"memory.min": Knob.MEMORY_MIN, "memory.high": Knob.MEMORY_HIGH, "memory.limit_in_bytes": Knob.MEMORY_LIMIT}
    expected, scenario = case_json("unsupported-memory-high"), case_json("unsupported-memory-high", "scenario.json")
    wants = case_json("unsupported-memory-high", "want.json")
    wishes = tuple(want(pod, names[name], value) for name, value in wants.items() for pod in ("be/pod", "be/pod/c"))
    failed = [node.apply(*wishes).failed for _ in range(scenario["rounds"])]
    assert sum(failed) == 0
    assert node.read("be/pod", Knob.MEMORY_LIMIT) == str(expected["written"]["memory.limit_in_bytes"])
    refused = [record.knob for record in node.audit if record.mode == "refused"]
    assert sorted(refused) == sorted(expected["unsupported"])
    assert len(refused) == expected["log_lines"]
    assert node.state("be/pod/c", Knob.MEMORY_MIN) is HeldState.UNSUPPORTED
    node.tree.put("cgroup/memory/be/pod/memory.min", "0\n")
    assert node.apply(*wishes).written == 0
    node.executor.reprobe()
    assert node.apply(*wishes).written == 1


def test_writes_that_do_not_stick_are_failures(node: Node) -> None:
    node.executor.close()
    node.executor = type(node.executor)(node.tree.host, node.journal, node.audit.append, writer=lambda path, data: None)
    report = node.apply(want("be", QUOTA, 50_000))
    assert report.failed == 1
    assert "reads back as '-1'" in report.errors[0]
