"""The act room on this machine's real cgroup v1 controllers, in cgroups of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from koordlet.act.executor import Executor
from koordlet.act.journal import Journal, read_boot_id
from koordlet.act.undo import Action, undo
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.write import write_file
from koordlet.model.audit import AuditRecord
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.status import HeldState
from tests.hosts.act_node import FILES, want
from tests.hosts.fake_kernel import Crash

pytestmark = pytest.mark.live_v1

QUOTA, BURST, IDLE, SHARES, CPUSET = Knob.CPU_QUOTA, Knob.CPU_BURST, Knob.CPU_IDLE, Knob.CPU_SHARES, Knob.CPUSET
KNOBS = (QUOTA, BURST, IDLE, SHARES, CPUSET)
ROOT = f"koordlet-test-act-{os.getpid()}"
BE, POD, BOX = f"{ROOT}/be", f"{ROOT}/be/pod", f"{ROOT}/be/pod/c"
TARGETS = (ROOT, BE, POD, BOX)


class Live:
    def __init__(self, tmp_path: Path) -> None:
        self.host = Host.preset("host")
        self.all = CpuSet.parse((self.host.cgroup_root / "cpuset/cpuset.cpus").read_text().strip())
        self.journal_path = tmp_path / "journal"
        self.audit: list[AuditRecord] = []
        self.crash_at = 0
        self.calls = 0
        self.now_s = 0.0
        self.start()

    def populate(self) -> None:
        for target in TARGETS:
            self.make(target)
        self.put(BE, QUOTA, "90000")
        self.put(BE, BURST, "40000")
        self.put(BE, SHARES, "512")
        self.put(BOX, SHARES, "77")

    def make(self, target: str, cpus: str = "") -> None:
        for subsystem in ("cpu", "cpuset"):
            (self.host.cgroup_root / subsystem / target).mkdir()
        self.put(target, CPUSET, cpus or str(self.all))

    def remove(self, target: str) -> None:
        for subsystem in ("cpu", "cpuset"):
            with suppress(FileNotFoundError):
                (self.host.cgroup_root / subsystem / target).rmdir()

    def close(self) -> None:
        self.stop()
        for subsystem in ("cpu", "cpuset"):
            top = self.host.cgroup_root / subsystem / ROOT
            for place in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
                place.rmdir()
            if top.is_dir():
                top.rmdir()

    def start(self) -> None:
        self.journal = Journal(self.journal_path, read_boot_id(self.host))
        self.executor = Executor(self.host, self.journal, self.audit.append, writer=self.write)

    def stop(self) -> None:
        self.executor.close()
        self.journal.close()

    def write(self, path: Path, data: bytes) -> None:
        self.calls += 1
        if self.calls == self.crash_at:
            raise Crash
        write_file(path, data)

    def path(self, target: str, knob: Knob) -> Path:
        subsystem, name, _ = FILES[knob]
        return self.host.cgroup_root / subsystem / target / name

    def put(self, target: str, knob: Knob, text: str) -> None:
        write_file(self.path(target, knob), text.encode())

    def read(self, target: str, knob: Knob) -> str:
        return self.path(target, knob).read_text().strip()

    def everything(self) -> dict[tuple[str, Knob], bytes]:
        return {(target, knob): self.path(target, knob).read_bytes() for target in TARGETS for knob in KNOBS}

    def apply(self, *wishes: Decision) -> None:
        self.now_s += 1
        self.report = self.executor.apply({"suppress": wishes}, self.now_s)
        assert self.report.errors == ()

    def undo(self) -> set[Action]:
        report = undo(self.host, self.journal, self.audit.append)
        return {row.action for row in report.rows}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    host = Host.preset("host")
    if os.geteuid() != 0 or host.version is not CgroupVersion.V1:
        pytest.skip("needs root and cgroup v1")
    if not all(os.access(host.cgroup_root / name, os.W_OK) for name in ("cpu", "cpuset")):
        pytest.skip("the cpu and cpuset controllers are not writable here")
    made = Live(tmp_path)
    try:
        made.populate()
        yield made
    finally:
        made.close()


def low(live: Live) -> tuple[Decision, ...]:
    first = CpuSet([min(live.all)])
    return (
        want(BE, QUOTA, 30_000, hot=True),
        want(POD, QUOTA, 20_000),
        want(BOX, QUOTA, 10_000),
        want(BE, IDLE, 1),
        want(BOX, SHARES, 300),
        *(want(target, CPUSET, first) for target in (BE, POD, BOX)),
    )


def sideways(live: Live) -> tuple[Decision, ...]:
    last = CpuSet([max(live.all)])
    return (
        want(BE, QUOTA, 60_000, hot=True),
        want(POD, QUOTA, -1),
        want(BOX, QUOTA, 50_000),
        want(POD, IDLE, 1),
        want(BOX, SHARES, 400),
        *(want(target, CPUSET, last) for target in (BE, POD, BOX)),
    )


def test_apply_drift_and_give_back(live: Live) -> None:
    before = live.everything()
    live.apply(*low(live))
    assert (live.read(BE, QUOTA), live.read(BE, BURST), live.read(BE, IDLE)) == ("30000", "30000", "1")
    live.apply(*sideways(live))
    assert (live.read(BE, QUOTA), live.read(BE, BURST), live.read(BE, SHARES)) == ("60000", "40000", "512")
    assert live.read(BOX, CPUSET) == str(max(live.all))
    live.put(BE, QUOTA, "-1")
    live.apply(*sideways(live))
    assert (live.report.drifted, live.read(BE, QUOTA)) == (1, "60000")
    calls = live.calls
    live.apply(*sideways(live))
    assert live.calls == calls
    live.apply()
    live.apply()
    assert live.everything() == before
    assert (live.journal.live(), live.executor.held()) == ((), ())


def test_clean_stop(live: Live) -> None:
    before = live.everything()
    live.apply(*low(live))
    live.apply(*sideways(live))
    report = live.executor.restore_all(live.now_s, "stop")
    assert report.failed == 0
    assert live.everything() == before


@pytest.mark.parametrize("crash_at", range(1, 30))
def test_dying_before_any_write_then_undo(live: Live, crash_at: int) -> None:
    before = live.everything()
    live.crash_at = crash_at
    with suppress(Crash):
        live.apply(*low(live))
        live.apply(*sideways(live))
    live.stop()
    live.start()
    assert live.undo() <= {Action.RESTORED, Action.ORIGINAL}
    assert live.everything() == before
    assert live.journal.live() == ()


@pytest.mark.parametrize("lines", [1, 2, 7, 30])
def test_killed_process_then_undo(live: Live, lines: int) -> None:
    before = live.everything()
    live.stop()
    agent = f"""
        import itertools, pathlib
        from koordlet.act.executor import Executor
        from koordlet.act.journal import Journal, read_boot_id
        from koordlet.kernel.host import Host
        from koordlet.model.knob import Decision, Knob
        host = Host.preset("host")
        journal = Journal(pathlib.Path({str(live.journal_path)!r}), read_boot_id(host))
        executor = Executor(host, journal, lambda record: None)
        for n in itertools.count():
            quota, idle = 10_000 + n % 7 * 1000, n % 2
            wishes = (
                Decision({BE!r}, Knob.CPU_QUOTA, 2 * quota, (), "suppress", True),
                Decision({POD!r}, Knob.CPU_QUOTA, quota, (), "suppress", True),
                *(Decision({BE!r}, Knob.CPU_IDLE, 1, (), "suppress") for _ in range(idle)),
            )
            print(executor.apply({{"suppress": wishes}}, float(n)).errors, flush=True)
        """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(agent)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline() == b"()\n"
        process.send_signal(signal.SIGKILL)
    live.start()
    assert live.undo() <= {Action.RESTORED, Action.ORIGINAL}
    assert live.everything() == before


def test_cgroup_made_again(live: Live) -> None:
    live.apply(want(BOX, QUOTA, 10_000, hot=True))
    live.remove(BOX)
    live.apply(want(BOX, QUOTA, 10_000, hot=True))
    assert [held.state for held in live.report.held] == [HeldState.GONE]
    live.make(BOX)
    live.apply(want(BOX, QUOTA, 10_000, hot=True))
    assert (live.report.written, live.read(BOX, QUOTA)) == (1, "10000")
    live.apply()
    assert live.read(BOX, QUOTA) == "-1"


def test_group_born_narrow(live: Live) -> None:
    one = CpuSet([min(live.all)])
    live.apply(*(want(target, CPUSET, one) for target in (BE, POD, BOX)))
    live.make(f"{POD}/new", str(one))
    live.apply()
    assert live.read(f"{POD}/new", CPUSET) == live.read(BE, CPUSET) == str(live.all)


def test_empty_cpuset_comes_back_empty(live: Live) -> None:
    for target in (BOX, POD):
        live.path(target, CPUSET).write_text("\n")
    before = live.everything()
    live.apply(*(want(target, CPUSET, CpuSet([min(live.all)])) for target in (BE, POD, BOX)))
    live.stop()
    live.start()
    assert live.undo() == {Action.RESTORED}
    assert live.everything() == before


def test_memory_limit_rounded_to_pages(live: Live) -> None:
    place = live.host.cgroup_root / "memory" / ROOT
    if not os.access(place.parent, os.W_OK):
        pytest.skip("no memory controller")
    place.mkdir()
    try:
        first = (place / "memory.limit_in_bytes").read_bytes()
        for _ in range(2):
            live.apply(want(ROOT, Knob.MEMORY_LIMIT, 1_000_000_001))
        assert live.calls == 1
        live.apply()
        assert (place / "memory.limit_in_bytes").read_bytes() == first
    finally:
        place.rmdir()
