"""The executor: writing, holding, repairing drift, giving back."""

import shutil

from structlog.testing import capture_logs

from koordlet.kernel.host import CgroupVersion
from koordlet.model.knob import RESTORE, Knob
from koordlet.model.status import HeldState
from tests.hosts.act_node import CPUSET, IDLE, QUOTA, SHARES, MakeNode, Node, cpus, want
from tests.hosts.cases import case_json


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


def test_shadowed_is_reported_until_it_ends(node: Node) -> None:
    first, second = want("be/pod/c", CPUSET, cpus("0-1"), "podrules"), want("be/pod/c", CPUSET, cpus("0-3"))
    report = node.apply(first, second)
    assert [(lost.decision, lost.winner) for lost in report.shadowed] == [(second, "podrules")]
    assert node.read("be/pod/c", CPUSET) == "0-1"
    assert node.apply(second).shadowed == ()
    assert node.read("be/pod/c", CPUSET) == "0-3"
