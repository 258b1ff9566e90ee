"""Descriptors and memory stay flat over many rounds of adding, reading and removing cgroups that vanish in between."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil

from koordlet.kernel.host import CgroupVersion
from koordlet.model.pod import Container, Pod, PodSet
from koordlet.model.qos import KubeQos
from koordlet.sense.sampler import Sampler
from koordlet.store.rings import RingStore
from tests.native.trees import Tree

CASE = Path(__file__).parents[1] / "cases" / "fd-leak"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_and_memory_stay_flat(tmp_path: Path) -> None:
    case = json.loads((CASE / "scenario.json").read_text())
    expected = json.loads((CASE / "expected.json").read_text())
    tree = Tree(tmp_path, CgroupVersion.V1)
    for i in range(case["containers"]):
        tree.make("pod")
        tree.make(f"pod/c{i}")
    start = descriptors()
    rings = RingStore()
    sampler = Sampler(tree.host, rings)
    seen, rss = [], []
    for number in range(case["rounds"]):
        containers = tuple(Container(f"c{i}", f"containerd://{number}-{i}", f"pod/c{i}") for i in range(50))
        pods = PodSet((Pod("u", "ns", "p", "pod", KubeQos.BURSTABLE, containers=containers),), number + 1, 0.0)
        # Every fifth directory is away when it is looked for, or goes away while it is watched.
        vanishing = [f"pod/c{i}" for i in range(number % 5, 50, case["dir_vanishes_every"])]
        if number % 2:
            _remove(tree, vanishing)
        sampler.sync(pods, (), ())
        _remove(tree, vanishing)
        for i in range(3):
            sampler.sample(number * 3.0 + i)
        for cgroup in vanishing:
            tree.make(cgroup)
        seen.append(descriptors())
        rss.append(psutil.Process().memory_info().rss)
    assert max(seen[1::2]) - seen[1] == expected["fd_growth"]
    assert rss[-1] - rss[20] < 4 << 20
    sampler.close()
    assert descriptors() == start
    assert expected["fd_after_all_removed_equals_start"]


def _remove(tree: Tree, cgroups: list[str]) -> None:
    for cgroup in cgroups:
        tree.remove(cgroup)
