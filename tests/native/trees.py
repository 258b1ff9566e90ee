"""A cgroup tree of ordinary files, v1 or v2, and /proc beside it, for the sampler and the table."""

from __future__ import annotations

import shutil
from pathlib import Path

from koordlet.kernel.host import CgroupVersion
from tests.hosts.tree import host_below

V1_DIRS = ("cpu", "cpuacct", "cpuset", "memory")


class Tree:
    """Paths are relative to the hierarchy's root. Figures start at 0; no quota."""

    def __init__(self, base: Path, version: CgroupVersion = CgroupVersion.V1) -> None:
        self.version = version
        self.base = base
        self.host = host_below(base, version)
        self.host.proc_root.mkdir(parents=True)
        self.node(0, 0)

    def make(self, cgroup: str) -> str:
        for name in V1_DIRS if self.version is CgroupVersion.V1 else ("",):
            self.host.dir(name, cgroup).mkdir(parents=True, exist_ok=True)
        self.usage(cgroup, 0)
        self.memory(cgroup, 0)
        self.quota(cgroup, -1)
        if self.version is CgroupVersion.V1:
            self.throttled(cgroup, 0, 0)
        return cgroup

    def remove(self, cgroup: str) -> None:
        for name in V1_DIRS if self.version is CgroupVersion.V1 else ("",):
            shutil.rmtree(self.host.dir(name, cgroup), ignore_errors=True)

    def usage(self, cgroup: str, usage_ns: int, periods: int | None = None, throttled: int | None = None) -> None:
        if self.version is CgroupVersion.V1:
            self.put("cpuacct", cgroup, "cpuacct.usage", f"{usage_ns}\n")
            return
        text = f"usage_usec {usage_ns // 1000}\nuser_usec 1\nsystem_usec 1\n"
        if periods is not None:
            text += f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 1\n"
        self.put("cpu", cgroup, "cpu.stat", text)

    def throttled(self, cgroup: str, periods: int, throttled: int) -> None:
        """v1 only: v2 has it beside the usage."""
        self.put("cpu", cgroup, "cpu.stat", f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 1\n")

    def quota(self, cgroup: str, quota_us: int) -> None:
        if self.version is CgroupVersion.V1:
            self.put("cpu", cgroup, "cpu.cfs_quota_us", f"{quota_us}\n")
            self.put("cpu", cgroup, "cpu.cfs_period_us", "100000\n")
        else:
            self.put("cpu", cgroup, "cpu.max", f"{'max' if quota_us < 0 else quota_us} 100000\n")

    def memory(self, cgroup: str, anon: int, file: int = 0) -> None:
        """anon is what counts without page cache; the plain usage is anon + file."""
        prefix = "total_" if self.version is CgroupVersion.V1 else ""
        keys = {"inactive_anon": 0, "active_anon": anon, "inactive_file": file, "active_file": 0, "unevictable": 0}
        self.put("memory", cgroup, "memory.stat", "".join(f"{prefix}{key} {keys[key]}\n" for key in keys))
        name = "memory.usage_in_bytes" if self.version is CgroupVersion.V1 else "memory.current"
        self.put("memory", cgroup, name, f"{anon + file}\n")

    def node(self, busy_ticks: int, used_kib: int, total_kib: int = 1 << 24) -> None:
        (self.host.proc_root / "stat").write_text(f"cpu  {busy_ticks} 0 0 77 1 0 0 5 3 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
        (self.host.proc_root / "meminfo").write_text(
            f"MemTotal: {total_kib} kB\nMemFree: 1 kB\nMemAvailable: {total_kib - used_kib} kB\n"
        )

    def put(self, subsystem: str, cgroup: str, name: str, text: str) -> None:
        """In place, so kept descriptors see it."""
        (self.host.dir(subsystem, cgroup) / name).write_text(text)
