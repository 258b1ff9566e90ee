"""`Sentinel` on temporary trees of counter files, which the test makes grow. Waits end with an event, not a time."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.view import Reading, SurgePlan
from koordlet.sense.sentinel import Sentinel

PSI = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


class Tree:
    """A cgroup tree with usage counters in microseconds."""

    def __init__(self, root: Path, version: CgroupVersion) -> None:
        self.version = version
        self.cgroups = root / "cgroup"
        if version is CgroupVersion.V2:
            self.cgroups.mkdir()
            (self.cgroups / "cgroup.controllers").write_text("cpu memory\n")
        self.host = Host.preset("host", cgroup_root=self.cgroups, proc_root=root / "proc")
        (root / "proc/pressure").mkdir(parents=True)
        (root / "proc/pressure/cpu").write_text(PSI.format(7))
        self.grow("", 1_000_000)

    def grow(self, target: str, usage_us: int) -> None:
        if self.version is CgroupVersion.V2:
            self._put(self.cgroups / target / "cpu.stat", f"usage_usec {usage_us}\nuser_usec 0\nsystem_usec 0\n")
        else:
            self._put(self.cgroups / "cpuacct" / target / "cpuacct.usage", f"{usage_us * 1000}\n")

    def stall(self, target: str, total_us: int) -> None:
        self._put(self.cgroups / target / "cpu.pressure", PSI.format(total_us))

    def _put(self, path: Path, text: str) -> None:
        """In one write: the sentinel reads at any moment."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.pwrite(fd, text.encode(), 0)
        os.close(fd)


def load_be(tree: Tree, sentinel: Sentinel, root_us: int, be_us: int) -> None:
    """Lets BE use many CPUs, in steps so small that a look between two writes sees no surge."""
    wanted = sentinel.stats()["looks"] + 6
    while sentinel.stats()["looks"] < wanted:
        root_us, be_us = root_us + 1000, be_us + 1000
        tree.grow("be", be_us)
        tree.grow("", root_us)


@pytest.fixture(params=list(CgroupVersion))
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path, request.param)


@pytest.fixture
def v2_tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path, CgroupVersion.V2)


@pytest.fixture
def start() -> Iterator[Callable[[Tree], Sentinel]]:
    started: list[Sentinel] = []

    def make(tree: Tree) -> Sentinel:
        started.append(Sentinel(tree.host))
        return started[-1]

    yield make
    for sentinel in started:
        sentinel.close()


def fired(sentinel: Sentinel) -> bool:
    readable, _, _ = select.select([sentinel], [], [], 10)
    return bool(readable) and sentinel.take()


def look_more(sentinel: Sentinel, looks: int = 4) -> None:
    """Returns once the thread has looked some more times."""
    wanted = sentinel.stats()["looks"] + looks
    while sentinel.stats()["looks"] < wanted:
        os.sched_yield()


def test_fires_for_nonbe_usage_and_again_after_the_next_plan(tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    tree.grow("be", 0)
    sentinel = start(tree)
    assert sentinel.set_sources(("be",), ()) == []
    plan = SurgePlan(nonbe_mcpu=2000)
    sentinel.set_plan(plan)
    look_more(sentinel)
    assert not sentinel.take()
    tree.grow("", 60_000_000)
    assert fired(sentinel)
    nonbe, pressure = sentinel.surge()
    assert isinstance(nonbe, Reading)
    assert nonbe.value > 2000
    assert pressure is None

    look_more(sentinel)
    tree.grow("", 120_000_000)
    look_more(sentinel)
    assert not sentinel.take()  # disarmed until the loop has answered
    sentinel.set_plan(plan)  # the same plan arms again after a fire
    tree.grow("", 180_000_000)
    assert fired(sentinel)
    assert sentinel.stats()["fires"] == 2


def test_be_usage_is_no_reason(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    v2_tree.grow("be", 0)
    sentinel = start(v2_tree)
    sentinel.set_sources(("be",), ())
    sentinel.set_plan(SurgePlan(nonbe_mcpu=2000))
    look_more(sentinel)
    load_be(v2_tree, sentinel, 1_000_000, 0)
    assert not sentinel.take()


def test_fires_for_pressure_of_an_ls_group(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    v2_tree.stall("ls", 0)
    sentinel = start(v2_tree)
    assert sentinel.set_sources((), ("ls",)) == []
    sentinel.set_plan(SurgePlan(pressure_permyriad=2000))
    look_more(sentinel, 8)
    assert not sentinel.take()
    v2_tree.stall("ls", 90_000)
    assert fired(sentinel)
    pressure = sentinel.surge()[1]
    assert pressure is not None
    assert pressure.value > 2000


def test_off_means_no_timer(tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    sentinel = start(tree)
    sentinel.set_sources((), ())
    assert sentinel.stats()["timer_us"] == 0
    sentinel.set_plan(SurgePlan(nonbe_mcpu=1000))
    assert sentinel.stats()["timer_us"] == 20_000
    sentinel.set_plan(SurgePlan())
    assert sentinel.stats()["timer_us"] == 0


def test_negative_threshold_is_not_off(tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    sentinel = start(tree)
    sentinel.set_sources((), ())
    sentinel.set_plan(SurgePlan(nonbe_mcpu=-1))
    look_more(sentinel)
    tree.grow("", 2_000_000)
    assert fired(sentinel)


def test_missing_files_are_named(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    v2_tree.grow("be", 0)
    (v2_tree.cgroups / "cpu.stat").unlink()
    sentinel = start(v2_tree)
    missing = sentinel.set_sources(("be", "no-be"), ("no-ls",))
    assert sorted(missing) == [
        str(v2_tree.cgroups / "cpu.stat"),
        str(v2_tree.cgroups / "no-be/cpu.stat"),
        str(v2_tree.cgroups / "no-ls/cpu.pressure"),
    ]
    assert sentinel.mode == "off"


def test_v1_groups_without_pressure_files_are_not_missing(tmp_path: Path, start: Callable[[Tree], Sentinel]) -> None:
    assert start(Tree(tmp_path, CgroupVersion.V1)).set_sources((), ("ls",)) == []


def test_groups_beyond_the_room_are_named(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    groups = tuple(f"ls{number}" for number in range(18))
    for group in groups:
        v2_tree.stall(group, 0)
    sentinel = start(v2_tree)
    assert sentinel.set_sources((), groups) == [str(v2_tree.cgroups / group / "cpu.pressure") for group in groups[16:]]


def test_with_too_many_best_effort_roots_no_usage_is_watched(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    """A declaration such as /docker/* may match that many; the unwatched ones would look like a surge for ever."""
    v2_tree.stall("ls", 0)
    v2_tree.grow("be", 0)
    sentinel = start(v2_tree)
    roots = tuple(f"be{number}" for number in range(65))
    assert sentinel.set_sources(roots, ("ls",)) == ["65 best-effort roots, more than 64"]
    sentinel.set_plan(SurgePlan(nonbe_mcpu=100, pressure_permyriad=9_000))
    look_more(sentinel)
    assert sentinel.surge()[0] is None
    assert sentinel.set_sources(("be",), ("ls",)) == []


@pytest.mark.parametrize(("period_us", "window_us"), [(999, 40_000), (20_000, 19_999), (20_000, 10_000_001)])
def test_impossible_times_are_refused(v2_tree: Tree, period_us: int, window_us: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        Sentinel(v2_tree.host, period_us=period_us, window_us=window_us)


def test_a_copied_pressure_file_is_never_written(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    v2_tree.stall("ls", 3)
    sentinel = start(v2_tree)
    sentinel.set_sources((), ("ls",))
    assert (v2_tree.cgroups / "ls/cpu.pressure").read_text() == PSI.format(3)
    assert (v2_tree.host.proc_root / "pressure/cpu").read_text() == PSI.format(7)
    assert sentinel.mode == "timer"


def test_a_root_made_anew_is_watched_again(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    v2_tree.grow("be", 0)
    sentinel = start(v2_tree)
    sentinel.set_sources(("be",), ())
    sentinel.set_plan(SurgePlan(nonbe_mcpu=2000))
    look_more(sentinel)
    (v2_tree.cgroups / "be").rename(v2_tree.cgroups / "old")
    v2_tree.grow("be", 500)  # made anew under the same name: another inode, with usage nobody has seen growing
    v2_tree.grow("", 1_000_500)
    assert sentinel.set_sources(("be",), ()) == []
    look_more(sentinel)
    assert not sentinel.take()
    load_be(v2_tree, sentinel, 1_000_500, 500)
    assert not sentinel.take()  # it reads the new one


def test_close_leaves_no_descriptor_and_no_thread(v2_tree: Tree) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    v2_tree.grow("be", 0)
    v2_tree.stall("ls", 0)
    before = held()
    sentinel = Sentinel(v2_tree.host)
    for _ in range(3):
        sentinel.set_sources(("be", "gone"), ("ls",))
        sentinel.set_sources((), ())
    sentinel.set_plan(SurgePlan(nonbe_mcpu=1))
    sentinel.close()
    sentinel.close()
    assert held() == before


def test_fires_when_the_node_runs_out_of_memory(v2_tree: Tree, start: Callable[[Tree], Sentinel]) -> None:
    meminfo = v2_tree.host.proc_root / "meminfo"
    meminfo.parent.mkdir(parents=True, exist_ok=True)
    meminfo.write_text("MemTotal: 8192 kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\n")
    sentinel = start(v2_tree)
    sentinel.set_sources((), ())
    assert sentinel.memory() == (None, None)
    sentinel.set_plan(SurgePlan(memory_used_bytes=4 << 20))
    look_more(sentinel)
    assert not sentinel.take()
    with meminfo.open("r+") as file:  # in one write, as the kernel shows it whole
        file.write("MemTotal: 8192 kB\nMemFree: 1000 kB\nMemAvailable: 1000 kB\n")
    assert fired(sentinel)
    used, _ = sentinel.memory()
    assert used is not None
    assert used.value == 7192 << 10
