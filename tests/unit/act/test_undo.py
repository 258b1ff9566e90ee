import os

import pytest

from koordlet.act.undo import Action, undo
from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from tests.hosts.act_node import MakeNode, Node, want
from tests.hosts.fake_kernel import Crash

QUOTA, IDLE, SHARES, CPUSET = Knob.CPU_QUOTA, Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.CPUSET


def crashed(node: Node) -> None:
    """kill -9 and a new process."""
    node.stop()
    node.start()


def run_undo(node: Node, *, force: bool = False) -> dict[tuple[str, str], Action]:
    report = undo(node.tree.host, node.journal, node.audit.append, force=force, writer=node.kernel)
    return {(row.target, row.knob.value): row.action for row in report.rows}


def test_after_a_crash_every_first_byte_is_back(node: Node) -> None:
    node.path("be", SHARES).write_text("512\n")
    before = {
        key: node.path(*key).read_bytes() for key in (("be", QUOTA), ("be", SHARES), ("be", IDLE), ("be", CPUSET))
    }
    node.apply(
        want("be", QUOTA, 50_000),
        want("be/pod", QUOTA, 20_000),
        want("be", IDLE, 1),
        *(want(target, CPUSET, CpuSet([1, 2])) for target in ("be", "be/pod", "be/pod/c")),
    )
    crashed(node)
    actions = run_undo(node)
    assert set(actions.values()) == {Action.RESTORED}
    assert len(actions) == 7
    assert {key: node.path(*key).read_bytes() for key in before} == before
    assert (node.kernel.refused, node.journal.live()) == ([], ())
    assert run_undo(node) == {}


def test_foreign_values_are_kept_unless_forced(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000), want("be/pod", SHARES, 2))
    node.foreign("be", QUOTA, "70000")
    crashed(node)
    assert run_undo(node) == {
        ("be", "cpu.cfs_quota_us"): Action.KEPT,
        ("be/pod", "cpu.shares"): Action.RESTORED,
    }
    assert node.read("be", QUOTA) == "70000"
    assert run_undo(node, force=True) == {("be", "cpu.cfs_quota_us"): Action.RESTORED}
    assert node.read("be", QUOTA) == "-1"


def test_already_original_and_gone(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000), want("be/pod", SHARES, 2), want("be/pod/c", SHARES, 2))
    node.foreign("be", QUOTA, "-1")
    path = node.path("be/pod", SHARES)
    fresh = path.with_name("x")
    fresh.write_text("2\n")
    os.rename(fresh, path)  # made again: same name, another inode
    node.path("be/pod/c", SHARES).unlink()
    crashed(node)
    assert run_undo(node) == {
        ("be", "cpu.cfs_quota_us"): Action.ORIGINAL,
        ("be/pod", "cpu.shares"): Action.GONE,
        ("be/pod/c", "cpu.shares"): Action.GONE,
    }
    assert node.read("be/pod", SHARES) == "2"
    assert node.journal.live() == ()


def test_refused_stays_for_another_try(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000), want("be/pod", SHARES, 2))
    node.kernel.deny["cpu/be/cpu.cfs_quota_us"] = 16
    crashed(node)
    report = undo(node.tree.host, node.journal, node.audit.append, writer=node.kernel)
    assert (report.restored, report.failed) == (1, 1)
    assert [row.error for row in report.rows if row.action is Action.FAILED] == [os.strerror(16)]
    node.kernel.deny.clear()
    crashed(node)
    assert run_undo(node) == {("be", "cpu.cfs_quota_us"): Action.RESTORED}


def test_another_boot_has_nothing_to_undo(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000))
    node.stop()
    node.boot = "boot-2"
    node.start()
    assert run_undo(node) == {}
    assert node.read("be", QUOTA) == "50000"


def test_an_agent_that_starts_without_undo_still_knows_the_first_bytes(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000))
    crashed(node)
    node.apply(want("be", QUOTA, 30_000))
    assert node.held("be", QUOTA).original == "-1"
    node.apply()
    assert node.read("be", QUOTA) == "-1"


def test_groups_born_just_before_the_crash_are_widened(node: Node) -> None:
    node.apply(*(want(target, CPUSET, CpuSet([1])) for target in ("be", "be/pod", "be/pod/c")))
    node.tree.cgroup("be/pod/new", {"cpuset.cpus": "1\n"})
    crashed(node)
    run_undo(node)
    assert node.read("be/pod/new", CPUSET) == "0-7"


@pytest.mark.parametrize("crash_at", range(1, 5))
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_while_undoing_is_undone_by_the_next(node: Node, crash_at: int, after: bool) -> None:
    node.path("be", SHARES).write_text("512\n")
    node.apply(want("be", QUOTA, 50_000), want("be", IDLE, 1), want("be/pod", SHARES, 7))
    crashed(node)
    node.kernel.crash_at, node.kernel.crash_after = node.kernel.calls + crash_at, after
    with pytest.raises(Crash):
        run_undo(node)
    crashed(node)
    run_undo(node)
    assert [node.read("be", knob) for knob in (QUOTA, IDLE, SHARES)] == ["-1", "0", "512"]
    assert node.read("be/pod", SHARES) == "1024"


def test_v2(make_node: MakeNode) -> None:
    node = make_node(CgroupVersion.V2)
    node.tree.cgroup("be", {"cpu.weight": "42\n"})
    keys = [("be", knob) for knob in (QUOTA, IDLE, SHARES, CPUSET, Knob.MEMORY_HIGH, Knob.FREEZE)]
    before = {key: node.path(*key).read_bytes() for key in keys}
    node.apply(
        want("be", QUOTA, 20_000),
        want("be", IDLE, 1),
        want("be", CPUSET, CpuSet([0, 1])),
        want("be", Knob.MEMORY_HIGH, 1 << 30),
        want("be", Knob.FREEZE, 1),
    )
    assert {key: node.path(*key).read_bytes() for key in keys} != before
    crashed(node)
    assert set(run_undo(node).values()) == {Action.RESTORED}
    assert {key: node.path(*key).read_bytes() for key in keys} == before


def test_neighbouring_weights_are_not_the_same(make_node: MakeNode) -> None:
    """By way of shares 100 and 101 would be: found by a crash between clearing cpu.idle and writing the weight."""
    node = make_node(CgroupVersion.V2)
    node.tree.cgroup("be", {"cpu.weight": "101\n"})
    node.apply(want("be", IDLE, 1))
    node.kernel.crash_at = 3
    with pytest.raises(Crash):
        run_undo(node)
    assert node.read("be", SHARES) == "100"
    crashed(node)
    run_undo(node)
    assert node.read("be", SHARES) == "101"


def test_a_list_that_cannot_be_emptied_yet_is_lifted(make_node: MakeNode) -> None:
    node = make_node(CgroupVersion.V2)
    node.tree.cgroup("be", {"cpuset.cpus": "\n"})
    possible = node.tree.host.sys_root / "devices/system/cpu/possible"
    possible.parent.mkdir(parents=True, exist_ok=True)
    possible.write_text("0-7\n")
    node.apply(want("be", CPUSET, CpuSet([1, 2])))
    node.kernel.populated = True
    for _ in range(2):  # also when tried again
        crashed(node)
        assert run_undo(node) == {("be", "cpuset.cpus"): Action.LIFTED}
        assert node.read("be", CPUSET) == "0-7"
    node.apply(want("be", CPUSET, CpuSet([3])))
    assert node.apply().restored == 1
    assert node.read("be", CPUSET) == "0-7"
    node.kernel.populated = False
    assert run_undo(node) == {("be", "cpuset.cpus"): Action.RESTORED}
    assert (node.path("be", CPUSET).read_bytes(), node.journal.live()) == (b"\n", ())


def test_the_next_agent_takes_over_what_it_wants_and_gives_back_the_rest(node: Node) -> None:
    node.path("be", SHARES).write_text("512\n")
    node.apply(want("be", QUOTA, 50_000), want("be/pod", QUOTA, 20_000), want("be", SHARES, 2))
    crashed(node)
    written = len(node.kernel.writes)
    assert node.executor.owes
    report = node.apply(want("be", QUOTA, 50_000))
    assert (report.written, report.restored) == (0, 0)
    assert node.read("be/pod", QUOTA) == "20000", "nothing is given back before everybody was asked"
    node.executor.give_back_left()
    assert {name for name, _ in node.kernel.writes[written:]} == {"cpu/be/pod/cpu.cfs_quota_us", "cpu/be/cpu.shares"}
    assert (node.read("be/pod", QUOTA), node.read("be", SHARES), node.read("be", QUOTA)) == ("-1", "512", "50000")
    assert not node.executor.owes
    assert [(entry.target, entry.knob) for entry in node.journal.live()] == [("be", QUOTA)]
    node.apply()
    assert (node.read("be", QUOTA), node.journal.live()) == ("-1", ())


def test_what_was_refused_because_of_a_value_left_behind_is_tried_again_at_once(node: Node) -> None:
    node.apply(want("be", QUOTA, 20_000))
    crashed(node)
    assert node.apply(want("be/pod", QUOTA, 50_000)).failed == 1
    node.executor.give_back_left()
    assert node.apply(want("be/pod", QUOTA, 50_000), after_s=0.01).written == 1
    assert node.read("be/pod", QUOTA) == "50000"


def test_nothing_is_owed_after_a_clean_stop_or_by_an_observer(node: Node) -> None:
    assert not node.executor.owes
    node.apply(want("be", QUOTA, 50_000))
    node.executor.restore_all(node.now_s, "clean stop")
    crashed(node)
    assert not node.executor.owes
    node.executor.give_back_left()
    assert node.journal.live() == ()


def test_the_audit_of_an_undo_names_who_had_changed_the_file_and_why(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000, owner="suppress"))
    crashed(node)
    undo(node.tree.host, node.journal, node.audit.append, writer=node.kernel, why="left by a previous run")
    (told,) = [row for row in node.audit if row.mode == "restore"]
    assert (told.reason, told.owner) == ("suppressBECPU", "suppress")
    assert "left by a previous run; set by suppress: " in told.message


def test_a_journal_without_names_is_undone_as_before(node: Node) -> None:
    node.apply(want("be", QUOTA, 50_000, owner="suppress"))
    (entry,) = node.journal.live()
    entry.owner = entry.reason = ""
    undo(node.tree.host, node.journal, node.audit.append, writer=node.kernel)
    told = node.audit[-1]
    assert (told.mode, told.owner, told.reason) == ("restore", "undo", "UpdateCgroups")
