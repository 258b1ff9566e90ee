import errno
import os
import shutil

import pytest
from structlog.testing import capture_logs

from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import RESTORE, Knob
from koordlet.model.status import HeldState
from tests.hosts.act_node import MakeNode, Node, want
from tests.hosts.cases import case_json

QUOTA, BURST, IDLE, SHARES, CPUSET = Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.CPUSET


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def test_write_hold_restore(node: Node) -> None:
    wish = want("be", QUOTA, 50_000)
    report = node.apply(wish)
    assert (report.written, report.failed, node.read("be", QUOTA)) == (1, 0, "50000")
    held = node.held("be", QUOTA)
    assert (held.wanted, held.original, held.state, held.owner) == ("50000", "-1", HeldState.HELD, "suppress")
    report = node.apply()
    assert (report.restored, report.held, node.read("be", QUOTA)) == (1, (), "-1")
    assert node.journal.live() == ()


def test_a_quiet_tick_writes_nothing_and_gives_the_same_book(node: Node) -> None:
    wishes = {"suppress": (want("be", QUOTA, 50_000, hot=True), want("be/pod/c", CPUSET, cpus("0-3")))}
    first = node.executor.apply(wishes, 1.0)
    calls, size = node.kernel.calls, node.journal_path.stat().st_size
    again = node.executor.apply(wishes, 2.0)
    copies = tuple(want(wish.target, wish.knob, wish.value, hot=wish.hot) for wish in wishes["suppress"])
    equal = node.executor.apply({"suppress": copies}, 3.0)
    assert (first.written, again.written, equal.written) == (2, 0, 0)
    assert again.held == first.held
    assert (node.kernel.calls, node.journal_path.stat().st_size) == (calls, size)


def test_a_first_write_that_fails_is_told_since_it_was_tried(node: Node) -> None:
    node.apply(want("be", QUOTA, 999))  # the kernel takes no less than 1000
    assert node.held("be", QUOTA).state is HeldState.FAILED
    assert node.held("be", QUOTA).since_s == node.now_s


def test_a_new_reason_for_the_same_value_is_shown_but_not_written(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000))
    calls = node.kernel.calls
    fresh = want("be", QUOTA, 50_000)
    fresh = type(fresh)(fresh.target, fresh.knob, fresh.value, (("n", 2),), fresh.owner)
    node.apply(fresh)
    assert node.held("be", QUOTA).why == (("n", 2),)
    assert node.kernel.calls == calls


def test_hot_drift_is_repaired_in_the_same_tick(node: Node) -> None:
    wish = want("be", QUOTA, 50_000, hot=True)
    node.apply(wish)
    node.foreign("be", QUOTA, "-1")
    report = node.apply(wish)
    assert (report.drifted, report.written, node.read("be", QUOTA)) == (1, 1, "50000")
    assert "drift" in node.audit[-1].message
    assert (node.audit[-1].before, node.audit[-1].after) == ("-1", "50000")
    assert node.apply(wish).written == 0


def test_a_fight_is_repaired_each_time_and_logged_once_a_minute(node: Node) -> None:
    wish = want("be", QUOTA, 50_000, hot=True)
    node.apply(wish)
    with capture_logs() as logs:
        for _ in range(90):
            node.foreign("be", QUOTA, "-1")
            assert node.apply(wish).written == 1
    assert [line["event"] for line in logs] == ["knob.drift"] * 2


def test_other_drift_is_repaired_within_the_forced_interval_spread_over_it(node: Node) -> None:
    pods = [f"be/p{n}" for n in range(60)]
    for pod in pods:
        node.tree.cgroup(pod, {"cpuset.cpus": "0-7\n"})
    wishes = tuple(want(pod, SHARES, 2) for pod in pods)
    node.apply(*wishes)
    for pod in pods:
        node.foreign(pod, SHARES, "1024")
    repaired = [node.apply(*wishes).drifted for _ in range(61)]
    assert sum(repaired) == 60
    assert max(repaired) < 20, "a twelfth at a time, more or less"


def test_a_cgroup_made_again_under_the_same_name_is_a_new_one(node: Node) -> None:
    wish = want("be/pod", SHARES, 2, hot=True)
    node.foreign("be/pod", SHARES, "500")
    node.apply(wish)
    shutil.rmtree(node.path("be/pod", SHARES).parent)
    node.apply(wish, after_s=61)
    assert node.state("be/pod", SHARES) is HeldState.GONE
    assert node.journal.live() == ()
    node.tree.cgroup("be/pod", {"cpu.shares": "700\n"})
    assert node.apply(wish).written == 1
    node.apply()
    assert node.read("be/pod", SHARES) == "700"


def test_gone_on_release_is_no_failure(node: Node) -> None:
    node.apply(want("be/pod", SHARES, 2))
    shutil.rmtree(node.path("be/pod", SHARES).parent)
    report = node.apply()
    assert (report.failed, report.restored, report.held, node.journal.live()) == (0, 0, (), ())


def test_foreign_value_is_kept_on_release(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000))
    node.foreign("be", QUOTA, "70000")
    report = node.apply()
    assert (report.restored, report.held, node.read("be", QUOTA)) == (0, (), "70000")
    assert "foreign value kept" in node.audit[-1].message
    assert node.journal.live() == ()


def test_wish_for_the_original(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000))
    node.apply(want("be", QUOTA, 50_000), want("be", QUOTA, RESTORE, "undo"))
    assert node.read("be", QUOTA) == "-1"
    node.apply(want("be", QUOTA, 50_000))
    assert node.read("be", QUOTA) == "50000"


def test_what_was_never_written_is_not_restored(node: Node) -> None:
    node.apply(want("be", SHARES, 1024))
    assert (node.kernel.calls, node.journal.live()) == (0, ())
    node.foreign("be", SHARES, "2")
    node.apply()
    assert node.read("be", SHARES) == "2"


def test_repair_of_an_equal_value_restores_what_stood_there_at_first(node: Node) -> None:
    node.foreign("be", SHARES, "2")
    wish = want("be", SHARES, 2, hot=True)
    node.apply(wish)
    node.foreign("be", SHARES, "1024")
    assert node.apply(wish).drifted == 1
    node.apply()
    assert node.read("be", SHARES) == "2"


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


def test_no_needless_write_on_v2(make_node: MakeNode) -> None:
    node = make_node(CgroupVersion.V2)
    knobs = {"cpu.max": QUOTA, "cpuset.cpus": CPUSET, "memory.max": Knob.MEMORY_LIMIT}
    rows = case_json("cpu-max-no-needless-write", "pairs.json")
    for n, (row, expected) in enumerate(zip(rows, case_json("cpu-max-no-needless-write"), strict=True)):
        node.tree.cgroup(f"g{n}", {row["file"]: row["current"]})
        value = cpus(row["want"]) if row["file"] == "cpuset.cpus" else int(row["want"])
        wish = want(f"g{n}", knobs[row["file"]], value)
        written = [node.apply(wish, after_s=61).written for _ in range(3)]
        assert written == [int(expected), 0, 0]


def test_v2_quota_restores_quota_and_period(make_node: MakeNode) -> None:
    node = make_node(CgroupVersion.V2)
    node.tree.cgroup("be", {"cpu.max": "max 50000\n"})
    node.apply(want("be", QUOTA, 20_000))
    assert node.read("be", QUOTA) == "20000 50000"
    node.apply()
    assert node.read("be", QUOTA) == "max 50000"


def test_sideways_move_of_a_whole_tree_is_never_refused(node: Node) -> None:
    tree, expected = (case_json("be-suppress-none-policy-write-order", name) for name in ("tree.json", "expected.json"))
    node.kernel.online = cpus(tree["cpus"])
    node.tree.cgroup("kubepods.slice", {"cpuset.cpus": tree["cpus"] + "\n"})
    for target in tree["dirs"]:
        node.tree.cgroup(target, {"cpuset.cpus": tree["old"] + "\n"})
    wishes = tuple(want(target, CPUSET, cpus(tree["target"])) for target in tree["dirs"])
    report = node.apply(*wishes)
    assert {target: node.read(target, CPUSET) for target in tree["dirs"]} == expected["final"]
    assert (report.written, len(node.kernel.refused)) == (6, expected["refused_writes"])
    assert [text for _, text in node.kernel.writes] == ["0-11"] * 6 + ["4-11"] * 6
    node.apply()
    assert {node.read(target, CPUSET) for target in tree["dirs"]} == {tree["old"]}
    assert node.kernel.refused == []


def test_static_policy_write_side(node: Node) -> None:
    tree, expected = (case_json("be-suppress-static-policy-paths", name) for name in ("tree.json", "expected.json"))
    node.kernel.online = cpus(tree["cpus"])
    node.tree.cgroup("kubepods.slice", {"cpuset.cpus": tree["cpus"] + "\n"})
    for target in tree["dirs"]:
        node.tree.cgroup(target, {"cpuset.cpus": tree["old"] + "\n"})
    node.apply(*(want(target, CPUSET, cpus(text)) for target, text in expected.items()))
    assert {target: node.read(target, CPUSET) for target in tree["dirs"]} == expected
    assert node.kernel.refused == []


def test_unlimited_goes_pod_first(node: Node) -> None:
    expected = case_json("lsr-cpuset-quota-unset")["default"]["lsr"]
    for target in ("be/pod", "be/pod/c"):
        node.foreign(target, QUOTA, "400000")
    node.apply(
        want("be/pod/c", QUOTA, expected["container_quota"], "podrules"),
        want("be/pod", QUOTA, expected["pod_quota"], "podrules"),
    )
    assert node.kernel.writes == [("cpu/be/pod/cpu.cfs_quota_us", "-1"), ("cpu/be/pod/c/cpu.cfs_quota_us", "-1")]


def test_quota_lowered_below_a_burst_takes_the_burst_along_and_gives_it_back(node: Node) -> None:
    node.foreign("be", QUOTA, "100000")
    node.foreign("be", BURST, "50000")
    for quota, burst in ((20_000, "20000"), (10_000, "10000"), (30_000, "30000"), (90_000, "50000")):
        report = node.apply(want("be", QUOTA, quota))
        assert (report.failed, node.read("be", QUOTA), node.read("be", BURST)) == (0, str(quota), burst)
    node.apply(want("be", QUOTA, 20_000))
    report = node.apply()
    assert (report.failed, node.read("be", QUOTA), node.read("be", BURST)) == (0, "100000", "50000")
    assert (node.kernel.refused, report.held) == ([], ())


def test_burst_wish_ends_while_the_quota_stays_low(node: Node) -> None:
    node.foreign("be", QUOTA, "100000")
    node.foreign("be", BURST, "50000")
    node.apply(want("be", QUOTA, 20_000), want("be", BURST, 5000, "identity"))
    node.apply(want("be", QUOTA, 20_000))
    assert node.read("be", BURST) == "20000"
    node.apply()
    assert node.read("be", BURST) == "50000"
    assert node.kernel.refused == []


def test_idle_remembers_the_weight(node: Node) -> None:
    node.foreign("be", SHARES, "512")
    node.apply(want("be", IDLE, 1, "identity"))
    assert (node.read("be", IDLE), node.read("be", SHARES)) == ("1", "3")
    report = node.apply()
    assert (node.read("be", IDLE), node.read("be", SHARES), report.restored) == ("0", "512", 2)
    assert node.journal.live() == ()
    assert node.kernel.refused == []


def test_weight_wish_waits_for_idle_and_comes_back_after_it(node: Node) -> None:
    node.foreign("be", SHARES, "512")
    weight = want("be", SHARES, 100, "podrules")
    node.apply(weight)
    report = node.apply(weight, want("be", IDLE, 1, "identity"))
    assert [lost.decision for lost in report.shadowed] == [weight]
    assert (node.read("be", IDLE), node.read("be", SHARES)) == ("1", "3")
    node.apply(weight)
    assert (node.read("be", IDLE), node.read("be", SHARES)) == ("0", "100")
    node.apply()
    assert node.read("be", SHARES) == "512"
    assert (node.kernel.refused, node.journal.live()) == ([], ())


def test_idle_cleared_by_somebody_else_still_gives_the_weight_back(node: Node) -> None:
    node.foreign("be", SHARES, "512")
    node.apply(want("be", IDLE, 1, "identity"))
    node.foreign("be", IDLE, "0")
    assert node.read("be", SHARES) == "1024"
    node.apply()
    node.apply()
    assert node.read("be", SHARES) == "512"


def test_idle_wanted_off_by_decision(node: Node) -> None:
    node.apply(want("be", SHARES, 300, "podrules"))
    node.foreign("be", IDLE, "1")
    node.apply(want("be", SHARES, 300, "podrules"), want("be", IDLE, 0, "identity"))
    assert (node.read("be", IDLE), node.read("be", SHARES)) == ("0", "300")
    node.apply()
    assert (node.read("be", IDLE), node.kernel.refused) == ("1", [])


def test_group_born_inside_a_narrowed_parent_gets_the_wide_original(node: Node) -> None:
    node.apply(
        want("be", CPUSET, cpus("0-1")), want("be/pod", CPUSET, cpus("0-1")), want("be/pod/c", CPUSET, cpus("0-1"))
    )
    node.tree.cgroup("be/new", {"cpuset.cpus": "0-1\n"})  # the runtime copied the parent's
    grown = [want(target, CPUSET, cpus("0-3")) for target in ("be", "be/pod", "be/pod/c", "be/new")]
    node.apply(*grown)
    assert node.held("be/new", CPUSET).original == "0-7"
    node.apply()
    assert {node.read(target, CPUSET) for target in ("be", "be/pod", "be/pod/c", "be/new")} == {"0-7"}


def test_group_born_narrow_and_never_written_is_widened_with_its_parent(node: Node) -> None:
    node.apply(
        want("be", CPUSET, cpus("0-1")), want("be/pod", CPUSET, cpus("0-1")), want("be/pod/c", CPUSET, cpus("0-1"))
    )
    node.tree.cgroup("be/new", {"cpuset.cpus": "0-1\n"})
    node.tree.cgroup("be/new/inner", {"cpuset.cpus": "0-1\n"})
    node.tree.cgroup("be/own", {"cpuset.cpus": "1\n"})  # somebody's choice
    node.apply()
    assert {node.read(target, CPUSET) for target in ("be", "be/new", "be/new/inner")} == {"0-7"}
    assert node.read("be/own", CPUSET) == "1"
    assert node.journal.live() == ()


def test_relatives_refused_for_the_order_are_tried_again_when_it_is_mended(node: Node) -> None:
    node.foreign("be/pod", QUOTA, "50000")
    node.kernel.deny["cpu/be/pod/cpu.cfs_quota_us"] = errno.EBUSY
    wishes = (want("be", QUOTA, 20_000), want("be/pod", QUOTA, 10_000))
    assert node.apply(*wishes).failed == 2
    node.kernel.deny.clear()
    for _ in range(4):
        node.apply(*wishes)
    assert (node.read("be", QUOTA), node.read("be/pod", QUOTA)) == ("20000", "10000")


def test_observe_touches_nothing(make_node: MakeNode) -> None:
    node = make_node(observe=True)
    node.tree.cgroup("be")
    for _ in range(130):
        report = node.apply(want("be", QUOTA, 50_000, hot=True), want("be", SHARES, 1024))
    assert node.state("be", QUOTA) is HeldState.OBSERVED
    node.apply(want("be", QUOTA, 60_000))
    assert [(record.mode, record.before, record.after) for record in node.audit] == [
        ("observe", "-1", "50000"),
        ("observe", "-1", "60000"),
    ]
    assert (report.written, node.kernel.calls, node.journal.live()) == (0, 0, ())
    node.apply()
    assert node.executor.held() == ()


def test_audit_words(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000), want("be", IDLE, 1, "identity"), want("be/pod", SHARES, 5, "other"))
    node.apply()
    words = [(record.owner, record.mode, record.reason, record.level) for record in node.audit]
    assert words[:3] == [
        ("suppress", "write", "AdjustBEByNodeCPUUsage", 3),
        ("identity", "write", "GroupIdentity", 3),
        ("other", "write", "UpdateCgroups", 3),
    ]
    assert ("suppress", "restore", "suppressBECPU", 3) in words
    assert node.audit[0].message == "write be/cpu.cfs_quota_us: -1 -> 50000; n=1"


def test_stop_restores_everything(node: Node) -> None:
    node.foreign("be", SHARES, "512")
    node.apply(
        want("be", QUOTA, 50_000, hot=True),
        want("be", IDLE, 1, "identity"),
        want("be/pod/c", CPUSET, cpus("2-3")),
    )
    report = node.executor.restore_all(node.now_s, "stop")
    assert (report.restored, report.failed, report.held) == (4, 0, ())
    found = [node.read(*key) for key in (("be", QUOTA), ("be", IDLE), ("be", SHARES), ("be/pod/c", CPUSET))]
    assert found == ["-1", "0", "512", "0-7"]
    assert node.journal.live() == ()


def test_writes_that_do_not_stick_are_failures(node: Node) -> None:
    node.executor.close()
    node.executor = type(node.executor)(node.tree.host, node.journal, node.audit.append, writer=lambda path, data: None)
    report = node.apply(want("be", QUOTA, 50_000))
    assert report.failed == 1
    assert "reads back as '-1'" in report.errors[0]


def test_shadowed_is_reported_until_it_ends(node: Node) -> None:
    first, second = want("be/pod/c", CPUSET, cpus("0-1"), "podrules"), want("be/pod/c", CPUSET, cpus("0-3"))
    report = node.apply(first, second)
    assert [(lost.decision, lost.winner) for lost in report.shadowed] == [(second, "podrules")]
    assert node.read("be/pod/c", CPUSET) == "0-1"
    assert node.apply(second).shadowed == ()
    assert node.read("be/pod/c", CPUSET) == "0-3"


def test_a_burst_over_a_normalised_quota_ends_at_it_and_then_at_the_original(node: Node) -> None:
    """Pod and container, with a kernel burst beside; v1 refuses any wrong order (seen 10 and 13)."""
    for target in ("be/pod", "be/pod/c"):
        node.foreign(target, QUOTA, "100000")
    base = [want(target, QUOTA, 66_667, "podrules") for target in ("be/pod", "be/pod/c")]
    kernel = [want(target, BURST, 66_667, "burst") for target in ("be/pod", "be/pod/c")]
    above = [want(target, QUOTA, 133_334, "burst") for target in ("be/pod", "be/pod/c")]
    rounds = [
        (base, 66_667),
        ([*base, *kernel], 66_667),
        ([*base, *kernel, *above], 133_334),
        ([*base, *kernel], 66_667),
    ]
    for wishes, expected in [*rounds, (base, 66_667), ([], 100_000)]:
        node.apply(*wishes)
        assert node.apply(*wishes).written == 0
        assert {node.read(target, QUOTA) for target in ("be/pod", "be/pod/c")} == {str(expected)}
    assert node.read("be/pod/c", BURST) == "0"
    assert node.kernel.refused == []
    assert node.journal.live() == ()
