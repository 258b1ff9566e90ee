"""What GPUs and their pods use: whose a process is, what the driver does not tell, and devices that come and go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.kernel.nvml import Nvml
from koordlet.model.device import GPU, POD_GPU, Gpu, GpuUse
from koordlet.model.pod import Pod
from koordlet.model.qos import KubeQos
from koordlet.sense.gpu import GpuMeter
from koordlet.store.rings import RingStore
from tests.hosts.nvml import FakeNvml, gpu_tree
from tests.hosts.tree import HostTree

GIB = 1 << 30
WALL_S = 1_790_000_000.0


def pod(uid: str, **more: object) -> Pod:
    return replace(Pod(uid, "ml", uid, f"kubepods/pod{uid}", KubeQos.GUARANTEED), **more)  # type: ignore[arg-type]


TRAIN, INFER = pod("train"), pod("infer")


class Rig:
    def __init__(self, root: Path, boards: int = 2) -> None:
        self.tree: HostTree = gpu_tree(root, boards)
        self.nvml = FakeNvml(*["Tesla T4"] * boards)
        self.rings = RingStore()
        self.meter = GpuMeter(Nvml(self.tree.host, lambda: self.nvml), self.tree.host, self.rings)
        self.now_s = 100.0

    def process(self, pid: int, cgroup: str) -> None:
        self.tree.put(f"proc/{pid}/cgroup", f"0::/{cgroup}\n")

    def sample(self, pid: int, percent: int, age_s: float = 1.0, board: int = 0) -> None:
        samples = self.nvml.boards[board].samples
        assert samples is not None
        samples.append((pid, round((WALL_S + self.now_s - age_s) * 1e6), percent))

    def step(self, *pods: Pod) -> None:
        self.now_s += 10
        self.meter.step(pods, self.now_s, WALL_S + self.now_s)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_processes_are_summed_by_device_and_pod(rig: Rig) -> None:
    for pid, cgroup in ((11, "kubepods/podtrain/c1"), (12, "kubepods/podtrain/c2/deeper"), (13, "system.slice/x")):
        rig.process(pid, cgroup)
    rig.nvml.boards[0].compute = [(11, 2 * GIB), (12, 4 * GIB), (13, GIB)]
    rig.nvml.boards[1].compute = [(11, GIB)]
    for pid, percent in ((11, 20), (12, 17), (13, 5)):
        rig.sample(pid, percent, age_s=-9)  # a second before the step
    rig.step(TRAIN, INFER)
    assert rig.meter.gpus == (Gpu(0, "GPU-0", 80 * GIB), Gpu(1, "GPU-1", 80 * GIB))
    assert rig.meter.node == {0: GpuUse(42.0, 7 * GIB), 1: GpuUse(0, GIB)}
    assert rig.meter.pods == {("train", 0): GpuUse(37.0, 6 * GIB), ("train", 1): GpuUse(0.0, GIB)}
    found = rig.rings.latest(POD_GPU, "train/0", "core")
    assert found is not None
    assert found.latest == 37.0
    assert rig.rings.latest(GPU, "1", "memory") is not None


def test_an_idle_process_keeps_its_memory_and_the_newest_sample_counts(rig: Rig) -> None:
    """FAULT-19."""
    rig.process(11, "kubepods/podtrain/c1")
    rig.nvml.boards[0].compute = [(11, GIB)]
    for percent, age_s in ((90, -7.0), (30, -9.0), (60, -8.0)):
        rig.sample(11, percent, age_s)
    rig.step(TRAIN)
    assert rig.meter.pods["train", 0] == GpuUse(30.0, GIB)
    rig.step(TRAIN)  # nothing since: NVML says "not found"
    assert rig.meter.pods["train", 0] == GpuUse(0.0, GIB)


def test_a_process_that_draws_and_computes_counts_once(rig: Rig) -> None:
    rig.process(11, "kubepods/podtrain/c1")
    rig.nvml.boards[0].compute, rig.nvml.boards[0].graphics = [(11, GIB)], [(11, GIB), (12, GIB)]
    rig.step(TRAIN)
    assert rig.meter.node[0].memory_bytes == 2 * GIB
    assert rig.meter.pods["train", 0].memory_bytes == GIB


def test_what_the_driver_does_not_tell_is_left_out(rig: Rig) -> None:
    rig.process(11, "kubepods/podtrain/c1")
    board = rig.nvml.boards[0]
    board.compute, board.samples, board.rate, board.used = [(11, None), (12, GIB)], None, 63, 5 * GIB
    rig.step(TRAIN)
    assert rig.meter.node[0] == GpuUse(63.0, 5 * GIB)  # of the device as a whole
    assert rig.meter.pods["train", 0] == GpuUse(None, None)
    assert rig.rings.latest(POD_GPU, "train/0", "memory") is None
    board.rate = None
    rig.step(TRAIN)
    assert rig.meter.node[0].core_percent is None


def test_a_device_that_lists_no_processes_tells_of_itself_only(rig: Rig) -> None:
    board = rig.nvml.boards[0]
    board.lists, board.samples, board.rate, board.used = False, None, 12, 3 * GIB
    rig.step(TRAIN)
    assert rig.meter.node[0] == GpuUse(12.0, 3 * GIB)
    assert rig.meter.pods == {}


def test_a_clock_that_was_set_back_hides_no_samples(rig: Rig) -> None:
    rig.process(11, "kubepods/podtrain/c1")
    rig.nvml.boards[0].compute = [(11, GIB)]
    rig.sample(11, 50, age_s=-9)
    rig.step(TRAIN)
    assert rig.meter.pods["train", 0].core_percent == 50.0
    rig.nvml.boards[0].samples = [(11, round((WALL_S - 3600 + rig.now_s + 9) * 1e6), 70)]
    rig.now_s += 10
    rig.meter.step((TRAIN,), rig.now_s, WALL_S - 3600 + rig.now_s)
    assert rig.meter.pods["train", 0].core_percent == 70.0


def test_a_lost_device_hides_no_other_and_comes_back(rig: Rig) -> None:
    rig.nvml.boards[0].lost = True
    rig.step()
    assert [gpu.minor for gpu in rig.meter.gpus] == [1]
    rig.nvml.boards[0].lost = False
    rig.step()
    assert [gpu.minor for gpu in rig.meter.gpus] == [0, 1]


def test_a_driver_that_is_replaced_is_opened_anew(rig: Rig) -> None:
    rig.step()
    rig.nvml.error = FakeNvml.NVMLError("driver is gone")
    rig.step()
    assert rig.meter.gpus == ()
    rig.nvml.error = None
    rig.step()
    assert (len(rig.meter.gpus), rig.nvml.inits) == (2, 2)


def test_a_pod_whose_processes_ended_uses_nothing_and_one_that_is_gone_is_forgotten(rig: Rig) -> None:
    rig.process(11, "kubepods/podtrain/c1")
    rig.nvml.boards[0].compute = [(11, GIB)]
    rig.step(TRAIN)
    rig.nvml.boards[0].compute = []
    rig.step(TRAIN)
    assert rig.meter.pods == {("train", 0): GpuUse(0.0, 0)}
    rig.nvml.boards[0].lost = True
    rig.step(TRAIN)
    assert rig.meter.pods == {}, "not known, which is not 0"
    rig.step(INFER)
    assert rig.meter.pods == {}
    assert rig.rings.latest(POD_GPU, "train/0", "memory") is None


def test_a_process_that_ended_meanwhile_is_nobodys(rig: Rig) -> None:
    rig.nvml.boards[0].compute = [(4711, GIB)]
    rig.step(TRAIN)
    assert rig.meter.node[0].memory_bytes == GIB
    assert rig.meter.pods == {}


def test_without_a_driver_nothing_is_loaded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 0)
    rig.step(TRAIN)
    assert (rig.meter.gpus, rig.nvml.inits) == ((), 0)
