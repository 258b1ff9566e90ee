"""Knobs that hang together: parents and children, quota and burst, idle and weight, groups born meanwhile."""

import errno

from tests.hosts.act_node import BURST, CPUSET, IDLE, QUOTA, SHARES, Node, cpus, want
from tests.hosts.cases import case_json


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
