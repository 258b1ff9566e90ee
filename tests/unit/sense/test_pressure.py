"""Pressure for status and metrics: when it is read, of whom, and what happens without PSI."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.sense.psi import PressureMeter
from tests.native.trees import Tree

TEXT = "some avg10={0}.50 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def put_node(tree: Tree, avg10: int) -> None:
    (tree.host.proc_root / "pressure").mkdir(exist_ok=True)
    for name in ("cpu", "memory", "io"):
        (tree.host.proc_root / "pressure" / name).write_text(TEXT.format(avg10))


def test_read_every_ten_seconds(tree: Tree) -> None:
    put_node(tree, 1)
    meter = PressureMeter(tree.host)
    seen = []
    for second in range(0, 25, 5):
        found = meter.collect(float(second))
        assert found is not None
        seen.append((found.at_s, found.node["cpu"].some.avg10))
        put_node(tree, second)
    assert seen == [(0.0, 1.5), (0.0, 1.5), (10.0, 5.5), (10.0, 5.5), (20.0, 15.5)]


def test_only_the_groups_named_are_read(tree: Tree) -> None:
    put_node(tree, 1)
    for cgroup in ("ls", "be"):
        tree.make(cgroup)
        tree.put("cpuacct", cgroup, "cpu.pressure", TEXT.format(3))
    found = PressureMeter(tree.host).collect(0.0, lambda: ("ls", "finished"))
    assert found is not None
    assert set(found.groups) == {"ls"}
    assert found.groups["ls"]["cpu"].some.avg10 == 3.5


def test_without_psi_it_switches_itself_off(tree: Tree) -> None:
    meter = PressureMeter(tree.host)
    assert meter.collect(0.0) is None
    assert not meter.supported
    put_node(tree, 1)
    assert meter.collect(20.0) is None


def test_a_malformed_file_is_left_out(tree: Tree) -> None:
    put_node(tree, 1)
    (tree.host.proc_root / "pressure" / "io").write_text("some nonsense\n")
    found = PressureMeter(tree.host).collect(0.0)
    assert found is not None
    assert set(found.node) == {"cpu", "memory"}
