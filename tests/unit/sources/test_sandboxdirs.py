"""A sandbox's directory is the one that is left over; while that is not clear, none is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion
from koordlet.model.pod import Container, Pod
from koordlet.model.qos import KubeQos
from koordlet.sources.sandboxdirs import TRIES, SandboxDirs, subdirectories
from tests.hosts.tree import HostTree

HERE = "kubepods/burstable/podp"


def pod(*containers: str, phase: str = "Running") -> Pod:
    """A name that begins with ? is a container without an id."""
    made = tuple(Container(name, cgroup="" if name[0] == "?" else f"{HERE}/{name}") for name in containers)
    return Pod("p", "default", "p", HERE, KubeQos.BURSTABLE, phase=phase, containers=made)


class Node:
    def __init__(self, *names: str) -> None:
        self.names, self.listed = names, 0
        self.dirs = SandboxDirs(self.list)

    def list(self, cgroup: str) -> tuple[str, ...]:
        assert cgroup == HERE
        self.listed += 1
        return self.names

    def found(self, given: Pod) -> str:
        (filled,) = self.dirs.filled((given,))
        assert replace(filled, sandbox_cgroup="") == given
        return filled.sandbox_cgroup


@pytest.mark.parametrize(
    ("names", "given", "found"),
    [
        (("c1", "pause", "c2"), pod("c1", "c2"), f"{HERE}/pause"),
        (("c1", "c2"), pod("c1", "c2"), ""),
        (("c1", "new", "pause"), pod("c1", "?c2"), ""),
        (("pause",), pod("?c1"), ""),
        (("c1", "pause"), pod("c1", phase="Succeeded"), ""),
        (("crio-c1", "crio-conmon-c1.scope", "crio-pause"), pod("crio-c1"), f"{HERE}/crio-pause"),
        (("crio-conmon-c1.scope", "crio-c1"), pod("crio-c1"), ""),
        ((), pod("c1"), ""),
    ],
    ids=["found", "none", "a-container-starts", "no-container-yet", "finished", "crio", "crio-without", "gone"],
)
def test_what_is_left_over(names: tuple[str, ...], given: Pod, found: str) -> None:
    assert Node(*names).found(given) == found


def test_a_pod_that_stays_as_it_is_is_not_looked_at_again() -> None:
    node, same = Node("c1", "pause"), pod("c1")
    first = node.dirs.filled((same,))
    assert node.dirs.filled((same,))[0] is first[0]
    assert node.listed == 1


def test_a_sandbox_that_comes_late_is_found_but_not_looked_for_for_ever() -> None:
    node, same = Node("c1"), pod("c1")
    assert node.found(same) == ""
    node.names = ("c1", "pause")
    assert node.found(same) == f"{HERE}/pause"
    never = Node("c1")
    for _ in range(TRIES + 5):
        never.found(same)
    assert never.listed == TRIES


def test_a_known_sandbox_stays_while_a_container_is_made_anew_and_goes_with_its_directory() -> None:
    node = Node("c1", "pause")
    assert node.found(pod("c1")) == f"{HERE}/pause"
    node.names = ("c2", "pause")
    assert node.found(pod("c1", "?c2")) == f"{HERE}/pause"
    node.names = ("c3", "other")
    assert node.found(pod("c3")) == f"{HERE}/other"


@pytest.mark.parametrize("version", CgroupVersion)
def test_directories_of_a_real_tree(version: CgroupVersion, tmp_path: Path) -> None:
    tree = HostTree(tmp_path, version)
    tree.cgroup(f"{HERE}/c1")
    tree.cgroup(f"{HERE}/pause")
    assert sorted(subdirectories(tree.host, HERE)) == ["c1", "pause"]
    assert subdirectories(tree.host, "kubepods/gone") == ()
