from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion
from tests.hosts.act_node import MakeNode, Node


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    nodes: list[Node] = []

    def make(version: CgroupVersion = CgroupVersion.V1, *, observe: bool = False) -> Node:
        nodes.append(Node(tmp_path / str(len(nodes)), version, observe=observe))
        return nodes[-1]

    return make


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """v1 with be, be/pod and be/pod/c, CPUs 0-7."""
    made = make_node()
    for target in ("be", "be/pod", "be/pod/c"):
        made.tree.cgroup(target, {"cpuset.cpus": "0-7\n"})
    return made
