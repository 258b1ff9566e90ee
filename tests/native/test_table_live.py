"""The sampler on this machine's real v1 controllers, in cgroups of our own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion, Host
from koordlet.model.pod import Container, Pod, PodSet, Tree
from koordlet.model.qos import KubeQos
from koordlet.sense.betree import BeTree, RootReader
from koordlet.sense.psi import PressureMeter
from koordlet.sense.sampler import Sampler
from koordlet.store.rings import RingStore

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
BASE = Path("/sys/fs/cgroup")


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in CONTROLLERS if not os.access(BASE / name / "cgroup.procs", os.W_OK)]
    return f"no writable v1 controllers {missing}" if missing else None


pytestmark = [
    pytest.mark.live_v1,
    pytest.mark.skipif(why_not() is not None, reason=f"v1 live tests: {why_not()}"),
]


class Groups:
    """Scratch cgroups below one name; processes put into them are killed at the end."""

    def __init__(self, name: str) -> None:
        self.root = f"koordlet-test-{os.getpid()}-{name}"
        self.made: list[str] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.make("")

    def make(self, path: str) -> str:
        target = f"{self.root}/{path}".rstrip("/")
        for controller in CONTROLLERS:
            (BASE / controller / target).mkdir(exist_ok=True)
        self.made.append(target)
        return target

    def remove(self, target: str) -> None:
        for controller in CONTROLLERS:
            with contextlib.suppress(FileNotFoundError):
                (BASE / controller / target).rmdir()

    def run(self, target: str, code: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", f"import sys, time\nsys.stdin.readline()\n{code}"], stdin=-1)
        self.children.append(child)
        for controller in ("cpu", "cpuacct", "memory"):
            (BASE / controller / target / "cgroup.procs").write_text(str(child.pid))
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        return child

    def stop(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        self.children.clear()

    def close(self) -> None:
        self.stop()
        for target in reversed(self.made):
            self.remove(target)


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    made = Groups(f"{abs(hash(request.node.name)) % 10**6}")
    yield made
    made.close()


HOST = Host.preset("host") if why_not() is None else None
SPIN = "while True: pass"
HOLD = "held = bytearray(64 << 20)\nfor i in range(0, len(held), 4096): held[i] = 1\ntime.sleep(600)"


def of_pod(uid: str, cgroup: str, *containers: str) -> Pod:
    inside = tuple(Container(c, f"containerd://{c}", f"{cgroup}/{c}") for c in containers)
    return Pod(uid, "ns", uid, cgroup, KubeQos.BURSTABLE, containers=inside)


def until(sampler: Sampler, seconds: float = 3.0) -> None:
    """Samples every 0.25 s."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sampler.sample(time.monotonic())
        time.sleep(0.25)


def test_usage_throttling_and_memory_of_a_running_pod(groups: Groups) -> None:
    assert HOST is not None
    assert HOST.version is CgroupVersion.V1
    pod, container = groups.make("pod"), groups.make("pod/c")
    idle = groups.make("idle")
    (BASE / "cpu" / container / "cpu.cfs_quota_us").write_text("30000")
    groups.run(container, SPIN)
    groups.run(container, HOLD)
    rings = RingStore()
    sampler = Sampler(HOST, rings)
    sampler.sync(PodSet((of_pod("web", pod, "c"), of_pod("idle", idle)), 1, 0.0), (), ())
    until(sampler, 4.0)
    usage = sampler.sample(time.monotonic())
    rows = {(row.name, row.container): row for row in sampler.workloads()}
    whole, part = rows[("ns/web", "")], rows[("ns/web", "c")]
    mean = rings.window("pod", "web", "cpu", 4.0, time.monotonic())
    sampler.close()
    assert mean is not None
    assert 150 < mean.avg < 400  # a quota of 300 milli-CPU on a machine that may be busy
    for row in (whole, part):
        assert row.memory_bytes is not None
        assert 64 << 20 < row.memory_bytes.value < 120 << 20
    assert part.throttled is not None
    assert part.throttled.value > 0.3
    assert whole.throttled is None
    assert usage.node_mcpu is not None
    assert usage.system_mcpu is not None
    assert rows[("ns/idle", "")].cpu_mcpu is not None
    assert rows[("ns/idle", "")].cpu_mcpu.value == 0


def test_a_removed_cgroup_is_gone_and_a_new_one_of_that_name_is_another(groups: Groups) -> None:
    assert HOST is not None
    pod = groups.make("pod")
    kept = groups.make("kept")
    sampler = Sampler(HOST)
    sampler.sync(PodSet((of_pod("p", pod), of_pod("k", kept)), 1, 0.0), (), ())
    sampler.sample(1.0)
    before = sampler.counts()
    assert before.rows == 2
    groups.remove(pod)
    sampler.sample(2.0)
    counts = sampler.counts()
    assert (counts.rows, counts.lost, counts.missing, counts.errors) == (1, 1, 1, 0)
    assert counts.descriptors == before.descriptors // 2
    for second in range(3, 8):
        sampler.sample(float(second))
    assert sampler.counts().rows == 1
    groups.make("pod")
    sampler.sample(9.0)
    assert sampler.counts().rows == 2
    assert sampler.counts().descriptors == before.descriptors
    sampler.close()


def test_a_cgroup_made_anew_between_two_passes(groups: Groups) -> None:
    assert HOST is not None
    pod = groups.make("pod")
    sampler = Sampler(HOST)
    sampler.sync(PodSet((of_pod("p", pod),), 1, 0.0), (), ())
    sampler.sample(1.0)
    groups.remove(pod)
    groups.make("pod")
    for second in (2.0, 3.0, 4.0):
        sampler.sample(second)
    counts = sampler.counts()
    assert (counts.rows, counts.lost, counts.errors) == (1, 1, 0)
    sampler.close()


def test_descriptors_stay_flat_while_cgroups_come_and_go(groups: Groups) -> None:
    assert HOST is not None
    sampler = Sampler(HOST, RingStore())
    sampler.sample(0.0)
    first, seen = len(os.listdir("/proc/self/fd")), []
    for number in range(30):
        targets = [groups.make(f"pod{i}") for i in range(8)]
        sampler.sync(PodSet(tuple(of_pod(str(i), t) for i, t in enumerate(targets)), number + 1, 0.0), (), ())
        sampler.sample(number * 2.0 + 1)
        for target in targets[number % 3 :: 3]:
            groups.remove(target)
        sampler.sample(number * 2.0 + 2)
        seen.append(len(os.listdir("/proc/self/fd")))
    assert max(seen) <= first + 4 * 8
    sampler.sync(PodSet((), 99, 0.0), (), ())
    assert len(os.listdir("/proc/self/fd")) == first
    assert sampler.counts().errors == 0
    sampler.close()


def test_be_root_of_the_real_kernel(groups: Groups) -> None:
    assert HOST is not None
    root = groups.make("be")
    pod, container = groups.make("be/pod"), groups.make("be/pod/c")
    (BASE / "cpu" / root / "cpu.cfs_quota_us").write_text("50000")
    below, reader = BeTree(HOST), RootReader(HOST)
    found = reader.read(root, Tree.OURS, below.levels(root))
    assert found.levels == ((root,), (pod,), (container,))
    assert (found.quota_us, found.period_us, found.shares) == (50_000, 100_000, 1024)
    reader.close()


def test_node_pressure_of_the_real_kernel() -> None:
    assert HOST is not None
    meter = PressureMeter(HOST)
    found = meter.collect(0.0)
    assert (found is not None) == meter.supported
    if found is not None:
        assert found.node["cpu"].some.total_us >= 0


def test_both_files_of_the_memory_controller_say_the_same(groups: Groups) -> None:
    """memory.numa_stat is asked on one or two nodes, memory.stat elsewhere: with page cache and in a child group."""
    assert HOST is not None
    pod, container = groups.make("pod"), groups.make("pod/c")
    fill = "import tempfile\nf = tempfile.TemporaryFile()\nf.write(bytes(16 << 20))\nprint('full', flush=True)\n"
    child = subprocess.Popen(
        [sys.executable, "-c", f"import sys, time\nsys.stdin.readline()\n{fill}{HOLD}"], stdin=-1, stdout=-1
    )
    groups.children.append(child)
    (BASE / "memory" / container / "cgroup.procs").write_text(str(child.pid))
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"full\n"
    sampler = Sampler(HOST)
    sampler.sync(PodSet((of_pod("web", pod, "c"),), 1, 0.0), (), ())
    until(sampler, 2.0)  # it has touched all of it by then, or the comparison below still holds
    os.kill(child.pid, signal.SIGSTOP)
    for _ in range(42):  # every row had its turns
        sampler.sample(time.monotonic())
    rows = [row for row in sampler.workloads() if row.memory_bytes and row.file_bytes]
    sampler.close()
    assert len(rows) == 2
    for row in rows:
        text = (BASE / "memory" / row.cgroup / "memory.stat").read_text()
        said = {key: int(value) for key, value in (line.split() for line in text.splitlines())}
        anon = sum(said[f"total_{name}"] for name in ("inactive_anon", "active_anon", "unevictable"))
        file = said["total_inactive_file"] + said["total_active_file"]
        assert row.memory_bytes is not None
        assert row.file_bytes is not None
        # Pages that the kernel moves about are for a moment in neither list.
        assert row.memory_bytes.value == pytest.approx(anon, abs=1 << 20)
        assert row.file_bytes.value == pytest.approx(file, abs=1 << 20)
        assert file >= 15 << 20  # pages may be on their way to the lists
