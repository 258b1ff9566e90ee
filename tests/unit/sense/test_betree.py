"""Directories below the BE roots, and the roots' knobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import Tree as Owner
from koordlet.sense.betree import BeTree, RootReader
from tests.native.trees import Tree

ROOT = "kubepods/besteffort"


@pytest.fixture(params=list(CgroupVersion), ids=str)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(tmp_path, request.param)


def test_levels_are_root_pods_and_containers(tree: Tree) -> None:
    for cgroup in ("", "/podb", "/podb/c2", "/podb/c1", "/podb/c1/deeper", "/poda"):
        tree.make(f"{ROOT}{cgroup}")
    assert BeTree(tree.host).levels(ROOT) == (
        (ROOT,),
        (f"{ROOT}/poda", f"{ROOT}/podb"),
        (f"{ROOT}/podb/c1", f"{ROOT}/podb/c2"),
    )


def test_a_root_that_is_not_there_has_no_levels(tree: Tree) -> None:
    below = BeTree(tree.host)
    assert below.levels(ROOT) == ()
    below.refresh(0.0)
    tree.make(ROOT)
    below.refresh(1.0)
    assert below.levels(ROOT) == ((ROOT,), (), ())
    tree.remove(ROOT)
    below.refresh(2.0)
    assert below.levels(ROOT) == ()


def test_pods_are_seen_at_once_and_containers_within_thirty_refreshes(tree: Tree) -> None:
    for i in range(25):
        tree.make(f"{ROOT}/pod{i:02}")
    below = BeTree(tree.host)
    assert len(below.levels(ROOT)[1]) == 25
    for i in range(25):
        tree.make(f"{ROOT}/pod{i:02}/c")
    tree.make(f"{ROOT}/new/c")
    below.refresh(0.0)
    levels = below.levels(ROOT)
    assert f"{ROOT}/new/c" in levels[2]
    assert len(levels[2]) <= 4
    tree.remove(f"{ROOT}/pod07")
    below.refresh(1.0)
    assert f"{ROOT}/pod07" not in below.levels(ROOT)[1]
    for second in range(60):
        below.refresh(float(second))
    assert len(below.levels(ROOT)[2]) == 25


def test_all_are_looked_at_when_the_pods_have_changed(tree: Tree) -> None:
    for i in range(25):
        tree.make(f"{ROOT}/pod{i:02}")
    below = BeTree(tree.host)
    below.levels(ROOT)
    below.refresh(0.0)
    for i in range(25):
        tree.make(f"{ROOT}/pod{i:02}/c")
    below.hurry()
    below.refresh(1.0)
    assert len(below.levels(ROOT)[2]) == 25


@pytest.mark.parametrize(("old", "new"), [("pod7", "newpod"), ("pod7/old", "pod7/new")], ids=["pod", "container"])
def test_one_in_the_place_of_another_is_seen_within_sixty_refreshes(tree: Tree, old: str, new: str) -> None:
    for i in range(25):
        tree.make(f"{ROOT}/pod{i}/old")
    below = BeTree(tree.host)
    below.levels(ROOT)
    tree.remove(f"{ROOT}/{old}")
    tree.make(f"{ROOT}/{new}")
    for second in range(70):
        below.refresh(float(second))
    listed = below.levels(ROOT)[1 if old == "pod7" else 2]
    assert len(listed) == 25
    assert f"{ROOT}/{new}" in listed
    assert f"{ROOT}/{old}" not in listed


def test_nothing_new_keeps_the_same_tuple(tree: Tree) -> None:
    tree.make(f"{ROOT}/pod/c")
    below = BeTree(tree.host)
    first = below.levels(ROOT)
    below.refresh(0.0)
    assert below.levels(ROOT) is first


def test_invalidate_lists_anew(tree: Tree) -> None:
    tree.make(f"{ROOT}/pod")
    below = BeTree(tree.host)
    below.levels(ROOT)
    tree.make(f"{ROOT}/pod/c")
    assert below.levels(ROOT)[2] == ()
    below.invalidate()
    assert below.levels(ROOT)[2] == (f"{ROOT}/pod/c",)


def test_roots_not_kept_are_forgotten(tree: Tree) -> None:
    tree.make("a")
    tree.make("b")
    below = BeTree(tree.host)
    below.levels("a")
    below.levels("b")
    tree.make("a/new")
    tree.make("b/new")
    below.keep(("b",))
    below.refresh(0.0)
    assert below.levels("b")[1] == ("b/new",)
    assert below.levels("a")[1] == ("a/new",)  # listed anew


def set_knobs(tree: Tree, cgroup: str) -> None:
    tree.make(cgroup)
    tree.quota(cgroup, 350_000)
    if tree.version is CgroupVersion.V1:
        tree.put("cpu", cgroup, "cpu.shares", "2\n")
        tree.put("cpuset", cgroup, "cpuset.cpus", "0-2,5\n")
    else:
        tree.put("cpu", cgroup, "cpu.weight", "1\n")
        tree.put("cpuset", cgroup, "cpuset.cpus", "\n")
        tree.put("cpuset", cgroup, "cpuset.cpus.effective", "0-2,5\n")
    tree.put("cpu", cgroup, "cpu.idle", "1\n")


def test_root_knobs(tree: Tree) -> None:
    set_knobs(tree, ROOT)
    reader = RootReader(tree.host)
    found = reader.read(ROOT, Owner.KUBELET, levels=((ROOT,), (), ()), request_mcpu=4000)
    assert (found.path, found.tree, found.levels, found.request_mcpu) == (ROOT, Owner.KUBELET, ((ROOT,), (), ()), 4000)
    assert (found.quota_us, found.period_us, found.shares, found.idle) == (350_000, 100_000, 2, 1)
    assert found.cpuset == CpuSet.parse("0-2,5")
    tree.quota(ROOT, -1)
    tree.put("cpu", ROOT, "cpu.idle", "0\n")
    found = reader.read(ROOT, Owner.KUBELET)
    assert (found.quota_us, found.idle) == (-1, 0)
    reader.close()


def test_absent_and_senseless_knobs_are_none(tree: Tree) -> None:
    reader = RootReader(tree.host)
    found = reader.read(ROOT, Owner.OURS)
    assert (found.quota_us, found.period_us, found.cpuset, found.shares, found.idle) == (None,) * 5
    tree.make(ROOT)
    tree.put("cpu", ROOT, "cpu.idle", "perhaps\n")
    for _ in range(2):
        found = reader.read(ROOT, Owner.OURS)
        assert (found.idle, found.quota_us) == (None, -1)
    reader.keep(())
