"""Quotas of the groups below a best-effort root."""

from __future__ import annotations

from itertools import count, pairwise
from pathlib import Path

from koordlet.kernel.host import CgroupVersion
from koordlet.sense.childquota import ChildQuotas
from tests.native.trees import Tree

ROOT = "kubepods/besteffort"
SECONDS = count(1000)


def levels(*pods: str) -> tuple[tuple[str, ...], ...]:
    return ((ROOT,), tuple(f"{ROOT}/{pod}" for pod in pods), ())


def read(quotas: ChildQuotas, listed: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, int], ...]:
    """A second after the last reading."""
    return quotas.read(listed, float(next(SECONDS)))


def make(tree: Tree, *pods: str) -> None:
    for pod in pods:
        tree.make(f"{ROOT}/{pod}")


def test_finite_quotas_are_known_at_once_and_sorted(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    make(tree, "b", "a", "free")
    tree.quota(f"{ROOT}/a", 20_000)
    tree.quota(f"{ROOT}/b", 70_000)
    assert read(ChildQuotas(tree.host), levels("b", "a", "free")) == ((f"{ROOT}/a", 20_000), (f"{ROOT}/b", 70_000))


def test_the_same_tuple_while_nothing_changed(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    make(tree, "a")
    tree.quota(f"{ROOT}/a", 20_000)
    quotas, listed = ChildQuotas(tree.host), levels("a")
    first = read(quotas, listed)
    assert all(read(quotas, listed) is first for _ in range(25))


def test_a_known_quota_is_followed_within_ten_seconds(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    make(tree, "a")
    tree.quota(f"{ROOT}/a", 20_000)
    quotas, listed = ChildQuotas(tree.host), levels("a")
    read(quotas, listed)
    tree.quota(f"{ROOT}/a", -1)
    assert [read(quotas, listed) for _ in range(10)][-1] == ()


def test_a_new_group_gets_its_quota_a_moment_after_it_was_made(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    make(tree, "a")
    quotas = ChildQuotas(tree.host)
    read(quotas, levels("a"))
    make(tree, "new")
    both = levels("a", "new")
    assert read(quotas, both) == ()
    tree.quota(f"{ROOT}/new", 30_000)
    assert [read(quotas, both) for _ in range(10)][-1] == ((f"{ROOT}/new", 30_000),)


def test_an_old_group_that_gets_a_quota_is_noticed_within_five_minutes(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    pods = [f"p{number:03}" for number in range(100)]
    make(tree, *pods)
    quotas, listed = ChildQuotas(tree.host), levels(*pods)
    read(quotas, listed)
    for pod in pods:
        tree.quota(f"{ROOT}/{pod}", 10_000)
    known = [len(read(quotas, listed)) for _ in range(300)]
    assert known[-1] == 100
    assert max(after - before for before, after in pairwise(known)) <= 2  # spread


def test_forget_reads_all_of_it_anew(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    make(tree, "a", "b")
    quotas, listed = ChildQuotas(tree.host), levels("a", "b")
    assert read(quotas, listed) == ()
    tree.quota(f"{ROOT}/b", 20_000)
    quotas.forget()
    assert read(quotas, listed) == ((f"{ROOT}/b", 20_000),)


def test_what_is_gone_and_what_makes_no_sense_is_in_nobodys_way(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    make(tree, "a", "odd")
    tree.quota(f"{ROOT}/a", 20_000)
    tree.put("cpu", f"{ROOT}/odd", "cpu.cfs_quota_us", "lots\n")
    quotas, listed = ChildQuotas(tree.host), levels("a", "odd")
    assert read(quotas, listed) == ((f"{ROOT}/a", 20_000),)
    tree.remove(f"{ROOT}/a")
    assert [read(quotas, listed) for _ in range(10)][-1] == ()


def test_v2_asks_nobody(tmp_path: Path) -> None:
    tree = Tree(tmp_path, CgroupVersion.V2)
    make(tree, "a")
    tree.quota(f"{ROOT}/a", 20_000)
    assert read(ChildQuotas(tree.host), levels("a")) == ()
