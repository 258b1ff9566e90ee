"""The native table over a tree of ordinary files, in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from koordlet._native import ffi, lib
from koordlet.kernel.host import CgroupVersion
from tests.native.trees import Tree

if TYPE_CHECKING:
    from koordlet._native import CData

SECOND = 10**9
MIB = 1 << 20
BOTH = pytest.mark.parametrize("version", list(CgroupVersion), ids=str)
SUMS = (lib.KL_SUM_PODS, lib.KL_SUM_NONBE_PODS, lib.KL_SUM_HOSTS, lib.KL_SUM_NONBE_HOSTS, lib.KL_SUM_ROOTS)


class Table:
    """A table over a tree, in virtual time."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.it = ffi.gc(lib.kl_table_new(1 if tree.version is CgroupVersion.V1 else 2), lib.kl_table_free)
        self.totals = ffi.new("struct kl_totals *")
        self.now_ns = 0

    def add(
        self, cgroup: str, kind: int, pod: int = -1, be: bool = False, cpu_series: int = -1, whole: bool = False
    ) -> int:
        paths = [
            ffi.new("char[]", os.fsencode(self.tree.host.dir(name, cgroup))) for name in ("cpuacct", "cpu", "memory")
        ]
        spec = ffi.new("struct kl_row_spec *")
        spec.usage_dir, spec.cpu_dir, spec.memory_dir = paths
        spec.kind, spec.be, spec.pod, spec.cpu_series, spec.memory_series = kind, be, pod, cpu_series, -1
        spec.whole = whole
        return lib.kl_table_add(self.it, spec)

    def make(self, cgroup: str, kind: int = lib.KL_POD, pod: int = -1, be: bool = False) -> int:
        row = self.add(self.tree.make(cgroup), kind, pod, be)
        assert row >= 0
        return row

    def step(self, seconds: float = 1.0, rings: CData = ffi.NULL, flags: int = 0) -> CData:
        self.now_ns += round(seconds * SECOND)
        assert lib.kl_table_pass(self.it, rings, self.now_ns, lib.KL_PASS_NOMINAL_TIME | flags, self.totals) == 0
        return self.totals

    def read(self, row: int) -> CData:
        out = ffi.new("struct kl_row *")
        assert lib.kl_table_read(self.it, row, out) == 0
        return out

    def mcpu(self, row: int) -> float | None:
        """The rate of the last pass."""
        found = self.read(row)
        return found.mcpu if found.mcpu_ns == self.now_ns else None


NewTable = Callable[[CgroupVersion], Table]
