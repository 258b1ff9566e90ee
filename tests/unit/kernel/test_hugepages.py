"""Huge pages per NUMA node."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.hugepages import read_hugepages
from tests.hosts.tree import HostTree

SMALL, LARGE = 2 << 20, 1 << 30


def pages(**counts: str) -> dict[str, dict[str, str]]:
    return {f"hugepages-{size[1:]}": {"nr_hugepages": count} for size, count in counts.items()}


def test_per_node(tmp_path: Path) -> None:
    base = "sys/devices/system/node"
    tree = HostTree(
        tmp_path,
        CgroupVersion.V2,
        {
            f"{base}/node0/hugepages": {**pages(_2048kB="512\n", _1048576kB="4\n"), "other": "x"},
            f"{base}/node1/hugepages": pages(_2048kB="0\n"),
            f"{base}/node2": {"cpulist": "\n"},
        },
    )
    assert read_hugepages(tree.host, [0, 1, 2]) == {0: {SMALL: 1 << 30, LARGE: 4 << 30}, 1: {SMALL: 0}, 2: {}}


def test_a_machine_without_numa_has_one_node(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2, {"sys/kernel/mm/hugepages": pages(_2048kB="3\n")})
    assert read_hugepages(tree.host, [0]) == {0: {SMALL: 3 * SMALL}}


@pytest.mark.parametrize("text", ["", "max", "-1"])
def test_garbage_names_the_file(tmp_path: Path, text: str) -> None:
    tree = HostTree(tmp_path, CgroupVersion.V2, {"sys/kernel/mm/hugepages": pages(_2048kB=text)})
    with pytest.raises(KernelFileError, match="nr_hugepages"):
        read_hugepages(tree.host, [0])
