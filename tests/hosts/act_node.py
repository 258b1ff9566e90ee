"""A copied tree with a kernel that answers, and an agent's act room on it, for tests of act."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from koordlet.act.adopt import Replies
from koordlet.act.executor import Executor
from koordlet.act.journal import Journal
from koordlet.kernel.host import CgroupVersion
from koordlet.model.audit import AuditRecord
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob, KnobValue, Restore
from koordlet.model.status import ApplyReport, Held, HeldState
from tests.hosts.fake_kernel import FakeKernel
from tests.hosts.tree import HostTree

QUOTA, BURST, IDLE, SHARES, CPUSET = Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.CPUSET
FILES = {
    Knob.CPU_SHARES: ("cpu", "cpu.shares", "cpu.weight"),
    Knob.CPU_QUOTA: ("cpu", "cpu.cfs_quota_us", "cpu.max"),
    Knob.CPU_BURST: ("cpu", "cpu.cfs_burst_us", "cpu.max.burst"),
    Knob.CPU_IDLE: ("cpu", "cpu.idle", "cpu.idle"),
    Knob.CPUSET: ("cpuset", "cpuset.cpus", "cpuset.cpus"),
    Knob.CPUSET_PARTITION: ("cpuset", "", "cpuset.cpus.partition"),
    Knob.MEMORY_LIMIT: ("memory", "memory.limit_in_bytes", "memory.max"),
    Knob.MEMORY_HIGH: ("memory", "memory.high", "memory.high"),
    Knob.MEMORY_MIN: ("memory", "memory.min", "memory.min"),
    Knob.FREEZE: ("freezer", "freezer.state", "cgroup.freeze"),
}


class Node:
    """A copied tree with a kernel that answers, and an agent's act room on it."""

    def __init__(self, root: Path, version: CgroupVersion, *, observe: bool = False) -> None:
        self.tree = HostTree(root / "host", version)
        self.kernel = FakeKernel(self.tree)
        self.observe = observe
        self.audit: list[AuditRecord] = []
        self.journal_path = root / "state/journal"
        self.now_s = 1000.0
        self.boot = "boot-1"
        self.replies: Replies | None = None
        self.start()

    def start(self) -> None:
        """A new agent process on the same machine."""
        self.journal = Journal(self.journal_path, self.boot)
        self.executor = Executor(
            self.tree.host,
            self.journal,
            self.audit.append,
            observe=self.observe,
            writer=self.kernel,
            replies=self.replies,
        )

    def stop(self) -> None:
        self.executor.close()
        self.journal.close()

    def path(self, target: str, knob: Knob) -> Path:
        subsystem, v1, v2 = FILES[knob]
        root = self.tree.host.cgroup_root
        return root / subsystem / target / v1 if self.kernel.v1 else root / target / v2

    def read(self, target: str, knob: Knob) -> str:
        return self.path(target, knob).read_text().strip()

    def foreign(self, target: str, knob: Knob, text: str) -> None:
        self.kernel.set(self.path(target, knob), text)

    def apply(self, *wishes: Decision, after_s: float = 1.0) -> ApplyReport:
        self.now_s += after_s
        by_owner: dict[str, tuple[Decision, ...]] = {}
        for decision in wishes:
            by_owner[decision.owner] = (*by_owner.get(decision.owner, ()), decision)
        return self.executor.apply(by_owner, self.now_s)

    def held(self, target: str, knob: Knob) -> Held:
        return next(held for held in self.executor.held() if (held.target, held.knob) == (target, knob))

    def state(self, target: str, knob: Knob) -> HeldState:
        return self.held(target, knob).state


def want(
    target: str, knob: Knob, value: KnobValue | Restore, owner: str = "suppress", *, hot: bool = False
) -> Decision:
    return Decision(target, knob, value, (("n", 1),), owner, hot)


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


MakeNode = Callable[..., Node]
