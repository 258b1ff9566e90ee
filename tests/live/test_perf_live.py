"""Counters per cgroup on the real kernel: software events against loads that know their own figures."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.kernel.host import Host
from koordlet.model.cpuset import CpuSet
from koordlet.model.hardware import Counts
from koordlet.sense.counts import PLANS, CountsMeter
from tests.hosts.cases import case_json
from tests.live.node import V2, Node, until

pytestmark = pytest.mark.live

ROOT = Path("/sys/fs/cgroup")
SOFTWARE = PLANS[-1:]
TOLERANCE = 0.05
LONG_NS = 600_000_000
"""Beside which the child's own bookkeeping does not count, in the emulated guest either."""
CHILD = """
import mmap, resource, sys, time
print("up", flush=True)
for line in sys.stdin:
    word, n = line.split()
    before = resource.getrusage(resource.RUSAGE_SELF)
    cpu = time.process_time_ns()
    if word == "burn":
        while time.process_time_ns() - cpu < int(n):
            pass
    if word == "sleep":
        for _ in range(int(n)):
            time.sleep(0.0005)
    if word == "touch":
        with mmap.mmap(-1, int(n) * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
            room.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(int(n)):
                room[page * 4096] = 1
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults = after.ru_minflt - before.ru_minflt
    switches = after.ru_nvcsw - before.ru_nvcsw
    print(time.process_time_ns() - cpu, switches, faults, flush=True)
"""


def control_cpu(unified: Path) -> None:
    """As an init system does at boot. Before the first such write perf knows no cgroup of a pure v2 hierarchy."""
    if V2:
        (unified / "cgroup.subtree_control").write_text("+cpu")


class Group:
    """A cgroup in the hierarchy of perf_event, with one child process in it that does what it is told."""

    def __init__(self, name: str) -> None:
        unified = Host.preset("host").unified_dir("")
        if os.geteuid() != 0 or unified is None:
            pytest.skip("needs root and a unified hierarchy")
        control_cpu(unified)
        self.name = f"koordlet-test-{os.getpid()}-{name}"
        self.path = unified / self.name
        self.path.mkdir()
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        self.child.stdout.readline()
        (self.path / "cgroup.procs").write_text(str(self.child.pid))

    def do(self, word: str, n: int) -> tuple[int, int, int]:
        """(CPU ns, voluntary switches, page faults) as the process itself counted them."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(f"{word} {n}\n")
        self.child.stdin.flush()
        cpu, switches, faults = map(int, self.child.stdout.readline().split())
        return cpu, switches, faults

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()
        with contextlib.suppress(FileNotFoundError):
            self.path.rmdir()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group("perf")
    try:
        yield made
    finally:
        made.close()


def online() -> CpuSet:
    return CpuSet.parse(Path("/sys/devices/system/cpu/online").read_text().strip())


def window(meter: CountsMeter, group: Group, word: str, n: int) -> tuple[Counts, tuple[int, int, int]]:
    """What the meter counted while the process did something, and what the process says."""
    meter.collect(0.0, [group.name], online())
    if meter.unsupported:
        pytest.skip(meter.unsupported)
    known = group.do(word, n)
    return meter.collect(10.0, [group.name], online())[group.name], known


@pytest.mark.parametrize(
    ("word", "n", "field", "index"),
    [
        pytest.param("burn", LONG_NS, "cpu_clock_ns", 0, id="cpu-clock"),
        pytest.param("burn", LONG_NS, "task_clock_ns", 0, id="task-clock"),
        pytest.param("sleep", 400, "context_switches", 1, id="context-switches"),
        pytest.param("touch", 4000, "page_faults", 2, id="page-faults"),
    ],
)
def test_software_events_agree_with_the_process(group: Group, word: str, n: int, field: str, index: int) -> None:
    meter = CountsMeter(Host.preset("host"), interval_s=60, window_s=10, plans=SOFTWARE)
    try:
        counted, known = window(meter, group, word, n)
        assert getattr(counted, field) == pytest.approx(known[index], rel=TOLERANCE)
        assert counted.cycles is None
        assert counted.cpi is None
    finally:
        meter.close()


def test_an_idle_group_counts_nothing_and_is_no_zero(group: Group) -> None:
    meter = CountsMeter(Host.preset("host"), interval_s=60, window_s=10, plans=SOFTWARE)
    try:
        meter.collect(0.0, [group.name], online())
        if meter.unsupported:
            pytest.skip(meter.unsupported)
        found = meter.collect(10.0, [group.name], online())[group.name]
        assert found.cpu_clock_ns is None
    finally:
        meter.close()


def test_where_there_are_no_hardware_counters_the_software_ones_are_taken(group: Group) -> None:
    meter = CountsMeter(Host.preset("host"), interval_s=60, window_s=10)
    try:
        counted, known = window(meter, group, "burn", LONG_NS)
        if "cycles" in meter.events:
            assert counted.cpi is not None
            assert counted.cpi > 0
        else:
            assert counted.cpu_clock_ns == pytest.approx(known[0], rel=TOLERANCE)
    finally:
        meter.close()


def test_counting_is_off_between_the_windows(group: Group) -> None:
    meter = CountsMeter(Host.preset("host"), interval_s=60, window_s=10, plans=SOFTWARE)
    try:
        window(meter, group, "burn", 1_000_000)
        group.do("burn", 200_000_000)
        meter.collect(60.0, [group.name], online())
        known = group.do("burn", LONG_NS)
        found = meter.collect(70.0, [group.name], online())[group.name]
        assert found.cpu_clock_ns == pytest.approx(known[0], rel=TOLERANCE)
    finally:
        meter.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_round_opens_nothing_and_all_is_closed_at_the_end(group: Group) -> None:
    before = descriptors()
    meter = CountsMeter(Host.preset("host"), interval_s=2, window_s=2, plans=SOFTWARE)
    meter.collect(0.0, [group.name], online())
    if meter.unsupported:
        pytest.skip(meter.unsupported)
    opened = descriptors()
    assert opened == before + meter.descriptors == before + 4 * len(online())
    for tick in range(1, 50):
        meter.collect(2.0 * tick, [group.name], online())
    assert meter.opens == 1
    assert descriptors() == opened
    meter.close()
    assert descriptors() == before


def test_a_cpu_that_goes_and_comes_makes_the_table_anew(group: Group) -> None:
    cpus = online()
    one = CpuSet(list(cpus)[:1])
    meter = CountsMeter(Host.preset("host"), interval_s=2, window_s=2, plans=SOFTWARE)
    try:
        meter.collect(0.0, [group.name], one)
        if meter.unsupported:
            pytest.skip(meter.unsupported)
        assert meter.descriptors == 4
        known = None
        for tick in range(1, 4):
            meter.collect(2.0 * tick, [group.name], cpus)
            known = group.do("burn", LONG_NS)
        found = meter.collect(8.0, [group.name], cpus)[group.name]
        assert meter.descriptors == 4 * len(cpus)
        assert known is not None
        assert found.cpu_clock_ns == pytest.approx(known[0], rel=TOLERANCE)
    finally:
        meter.close()


def test_a_cpu_that_is_offline_is_left_out(group: Group) -> None:
    """The list of CPUs is up to a minute old."""
    cpus, last = online(), max(online())
    switch = Path(f"/sys/devices/system/cpu/cpu{last}/online")
    if not os.environ.get("KOORDLET_GUEST") or not switch.exists():
        pytest.skip("takes a CPU offline: in the kernel lab only")
    meter = CountsMeter(Host.preset("host"), interval_s=2, window_s=2, plans=SOFTWARE)
    try:
        switch.write_text("0")
        meter.collect(0.0, [group.name], cpus)
        assert not meter.unsupported
        known = group.do("burn", LONG_NS)
        found = meter.collect(2.0, [group.name], cpus)[group.name]
        assert found.cpu_clock_ns == pytest.approx(known[0], rel=TOLERANCE)
    finally:
        switch.write_text("1")
        meter.close()


def test_containers_beyond_the_budget_take_turns(group: Group) -> None:
    others = [group.path.with_name(f"{group.name}-{n}") for n in range(5)]
    each = 4 * len(online())
    meter = CountsMeter(Host.preset("host"), interval_s=2, window_s=2, budget=2 * each, plans=SOFTWARE)
    try:
        for path in others:
            path.mkdir()
        names = [path.name for path in others]
        seen: set[str] = set()
        for tick in range(8):
            seen |= set(meter.collect(2.0 * tick, names, online()))
            assert meter.descriptors <= 2 * each
        if not meter.unsupported:
            assert seen == set(names)
    finally:
        meter.close()
        for path in others:
            path.rmdir()


def test_case_fd_leak_with_counters(tmp_path: Path) -> None:
    """Rounds over containers whose directories vanish and come back, and now and then no event can be opened."""
    scenario, expected = case_json("fd-leak", "scenario.json"), case_json("fd-leak")
    unified = Host.preset("host").unified_dir("")
    if os.geteuid() != 0 or unified is None:
        pytest.skip("needs root and a unified hierarchy")
    control_cpu(unified)
    top = unified / f"koordlet-test-{os.getpid()}-leak"
    top.mkdir()
    paths = [top / f"c{n}" for n in range(10)]
    clock = (SOFTWARE[0][:1],)  # the kernel takes its time to close one
    meter = CountsMeter(Host.preset("host"), interval_s=1, window_s=1, plans=clock)
    start, peak = descriptors(), 0
    try:
        for path in paths:
            path.mkdir()
        names = [str(path.relative_to(unified)) for path in paths]
        low = CpuSet(list(online())[:1])
        for round_ in range(scenario["rounds"]):
            if round_ % scenario["dir_vanishes_every"] == 0:
                paths[round_ % len(paths)].rmdir()
            asked = [*names, "no/such/cgroup"] if round_ % scenario["perf_open_fails_every"] == 0 else names
            meter.collect(float(round_), asked, low)
            if not paths[round_ % len(paths)].exists():
                paths[round_ % len(paths)].mkdir()
            peak = max(peak, descriptors())
        meter.collect(1e6, [], low)
        meter.collect(2e6, [], low)
        assert (descriptors() == start) == expected["fd_after_all_removed_equals_start"]
        assert max(0, peak - start - len(paths)) == expected["fd_growth"]
    finally:
        meter.close()
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()
        top.rmdir()


def test_the_agent_counts_its_containers(node: Node) -> None:
    """On cgroup v2, where a container's own cgroup is perf's too."""
    if not V2:
        pytest.skip("the scratch pods have no cgroup in the hierarchy of perf_event here")
    node.spin(node.add_pod("job", "BE"), duty=0.3)
    flags = ("-feature-gates=CPICollector=true", "-cpi-collector-interval=1s", "-collect-cpi-timewindow=1s")
    with node.agent(*flags) as agent:
        port = agent.log_path.read_text(errors="replace").split("port=", 1)[1].split()[0]

        def counted() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
            if "perf.unsupported" in agent.text():
                pytest.skip("perf events may not be opened here")
            return "koordlet_container_cpi{" in text or "koordlet_container_perf_events{" in text

        until("the container's events are in the metrics", counted, 60)
