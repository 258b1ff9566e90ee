"""A writer that behaves as the kernel does on a copied tree: refuses what v1 refuses, spells values its own way.

    kernel = FakeKernel(tree, online=CpuSet(range(8)))
    Executor(tree.host, journal, audit, writer=kernel)

Rules are those seen on Linux 6.18 (v1): see the table in each check. v2 has only the burst and weight rules.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from koordlet.kernel.host import CgroupVersion
from koordlet.model.cpuset import CpuSet
from tests.hosts.tree import HostTree

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Crash(BaseException):
    """The agent dies here."""


class FakeKernel:
    """writes: every accepted write as (path below the cgroup root, text). refused: those answered with an errno.

    crash_at: number of the call that dies, before or (crash_after) behind its effect. deny: path -> errno.
    populated: processes run in every cgroup, so v2 refuses to empty a CPU list (seen on Linux 6.1).
    """

    def __init__(self, tree: HostTree, online: CpuSet | None = None) -> None:
        self.root = tree.host.cgroup_root
        self.tree = tree.root
        self.devices = {"8:0", "8:16", "253:0"}
        self.v1 = tree.host.version is CgroupVersion.V1
        self.online = online or CpuSet(range(8))
        self.writes: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.deny: dict[str, int] = {}
        self.crash_at: int | None = None
        self.crash_after = False
        self.populated = False
        self.calls = 0

    def __call__(self, path: Path, data: bytes) -> None:
        name, text = self._name(path), data.decode().strip()
        self.calls += 1
        dies = self.calls == self.crash_at
        if dies and not self.crash_after:
            raise Crash
        try:
            self.set(path, text)
        except OSError:
            self.refused.append((name, text))
            raise
        self.writes.append((name, text))
        if dies:
            raise Crash

    def set(self, path: Path, text: str) -> None:
        """The write itself; tests use it as "somebody else"."""
        if not path.is_file():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if denied := self.deny.get(self._name(path)):
            raise OSError(denied, os.strerror(denied), str(path))
        rule = getattr(self, "_" + path.name.replace(".", "_"), None)
        path.write_text((rule(path, text) if rule else text) + "\n")

    def _name(self, path: Path) -> str:
        """Below the cgroup root, or below the tree for the machine's own files."""
        return str(path.relative_to(self.root if path.is_relative_to(self.root) else self.tree))

    def _lines(self, path: Path, text: str, absent: str) -> str:
        """One line per device; a line that says what counts as no line goes away."""
        device, _, rest = text.partition(" ")
        self._need(device in self.devices, errno.ENODEV, path)
        lines = dict(line.partition(" ")[::2] for line in path.read_text().splitlines() if line)
        lines[device] = rest
        if rest == absent:
            del lines[device]
        return "\n".join(f"{name} {value}" for name, value in lines.items())

    def _throttle(self, path: Path, text: str) -> str:
        self._need(text.partition(" ")[2].isdigit(), errno.EINVAL, path)
        return self._lines(path, text, "0")

    _blkio_throttle_read_bps_device = _blkio_throttle_write_bps_device = _throttle
    _blkio_throttle_read_iops_device = _blkio_throttle_write_iops_device = _throttle

    def _io_max(self, path: Path, text: str) -> str:
        device, *fields = text.split()
        old = dict(line.partition(" ")[::2] for line in path.read_text().splitlines()).get(device, "")
        values = dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max")
        values |= dict(field.split("=") for field in old.split())
        for field in fields:
            key, _, value = field.partition("=")
            self._need(key in values and (value == "max" or int(value) > 0), errno.EINVAL, path)
            values[key] = value
        rest = " ".join(f"{key}={value}" for key, value in values.items())
        return self._lines(path, f"{device} {rest}", "rbps=max wbps=max riops=max wiops=max")

    def _io_weight(self, path: Path, text: str) -> str:
        rest = text.partition(" ")[2]
        self._need(rest == "default" or 1 <= int(rest) <= 10_000, errno.EINVAL, path)
        return self._lines(path, text, "default")

    def _io_cost_qos(self, path: Path, text: str) -> str:
        """The kernel answers with all fields, its own where none was said, and with hundredths."""
        device, *fields = text.split()
        values = {"enable": "0", "ctrl": "auto", "rpct": "0.00", "rlat": "0", "wpct": "0.00", "wlat": "0"}
        for field in fields:
            key, _, value = field.partition("=")
            values[key] = f"{float(value):.2f}" if key.endswith("pct") else value
        return self._lines(path, f"{device} " + " ".join(f"{k}={v}" for k, v in values.items()), "")

    def _features(self, path: Path, text: str) -> str:
        name, on = text.removeprefix("NO_"), not text.startswith("NO_")
        words = path.read_text().split()
        self._need(name in words or f"NO_{name}" in words, errno.EINVAL, path)
        return " ".join(text if word.removeprefix("NO_") == name else word for word in words) if on or text else ""

    def _cpu_cfs_quota_us(self, path: Path, text: str) -> str:
        quota, directory = int(text), path.parent
        if quota >= 0:
            self._need(quota >= 1000 and quota >= self._int(directory / "cpu.cfs_burst_us"), errno.EINVAL, path)
        limits = {directory: quota}
        for place in sorted(self._with_ancestors(directory)) + sorted(self._below(directory)):
            own = limits.get(place, self._int(place / "cpu.cfs_quota_us"))
            inherited = limits.get(place.parent, -1)
            self._need(own < 0 or inherited < 0 or own <= inherited, errno.EINVAL, path)
            limits[place] = inherited if own < 0 else own
        return str(quota)

    def _cpu_max(self, path: Path, text: str) -> str:
        fields = text.split()
        if fields[0] != "max":
            burst = self._int(path.parent / "cpu.max.burst")
            self._need(int(fields[0]) >= 1000 and int(fields[0]) >= burst, errno.EINVAL, path)
        return f"{fields[0]} {fields[1] if len(fields) > 1 else path.read_text().split()[1]}"

    def _cpu_cfs_burst_us(self, path: Path, text: str) -> str:
        quota = self._int(path.parent / "cpu.cfs_quota_us")
        self._need(quota < 0 or int(text) <= quota, errno.EINVAL, path)
        return text

    def _cpu_shares(self, path: Path, text: str) -> str:
        self._need(self._int(path.parent / "cpu.idle") == 0, errno.EINVAL, path)
        return str(min(max(int(text), 2), 262_144))

    def _cpu_weight(self, path: Path, text: str) -> str:
        self._need(self._int(path.parent / "cpu.idle") == 0 and 1 <= int(text) <= 10_000, errno.EINVAL, path)
        return text

    def _cpu_idle(self, path: Path, text: str) -> str:
        self._need(text in ("0", "1"), errno.ERANGE, path)
        if int(text) != self._int(path):
            weight, default, idle = ("cpu.shares", "1024", "3") if self.v1 else ("cpu.weight", "100", "0")
            (path.parent / weight).write_text((idle if text == "1" else default) + "\n")
        return text

    def _cpuset_cpus(self, path: Path, text: str) -> str:
        cpus = CpuSet.parse(text)
        self._need(cpus <= self.online, errno.ERANGE, path)
        self._need(bool(cpus) or self.v1 or not self.populated or not self._cpus(path), errno.ENOSPC, path)
        if self.v1:
            above = path.parent.parent / path.name
            self._need(cpus <= (self._cpus(above) if above.is_file() else self.online), errno.EACCES, path)
            for child in path.parent.iterdir():
                self._need(not child.is_dir() or self._cpus(child / path.name) <= cpus, errno.EBUSY, path)
        return str(cpus)

    def _cpuset_cpus_partition(self, path: Path, text: str) -> str:
        """Linux 6.1: what cannot be is taken note of, and stays so until the group has been a member again."""
        mine = self._cpus(path.parent / "cpuset.cpus")
        siblings = [place for place in path.parent.parent.iterdir() if place.is_dir() and place != path.parent]
        shared = any(self._cpus(place / "cpuset.cpus") & mine for place in siblings)
        if text != "member" and (shared or "invalid" in path.read_text()):
            return f"{text} invalid (Cpu list in cpuset.cpus not exclusive)"
        return text

    def _memory_limit_in_bytes(self, path: Path, text: str) -> str:
        value = int(text)
        return str((2**63 - 1 if value < 0 else value) // PAGE_BYTES * PAGE_BYTES)

    def _int(self, path: Path) -> int:
        return int(path.read_text())

    def _cpus(self, path: Path) -> CpuSet:
        return CpuSet.parse(path.read_text().strip())

    def _with_ancestors(self, directory: Path) -> list[Path]:
        """From below the hierarchy's root down to the directory itself."""
        return [place for place in (directory, *directory.parents) if (place / "cpu.cfs_quota_us").is_file()]

    def _below(self, directory: Path) -> list[Path]:
        return [place for place in directory.rglob("*") if place.is_dir()]

    def _need(self, holds: bool, number: int, path: Path) -> None:
        if not holds:
            raise OSError(number, os.strerror(number), str(path))
