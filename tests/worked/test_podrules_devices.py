"""Worked examples of spec/hooks 7.2 and spec/api 6 for devices, scores and core scheduling groups."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from koordlet.decide.podrules import PodContext, answer
from koordlet.decide.podrules.core_sched import group_of
from koordlet.decide.podrules.oom_score import score_of
from koordlet.kernel.verbs import read_verbs
from koordlet.model.pod import Container, Pod
from koordlet.model.podeffects import CoreCookie, OomScore
from koordlet.model.podevent import Device, Hook, PodAnswer, PodEvent
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import CpuPolicy, CpuQos, NodeSlo
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import NodeInfo, Policy
from tests.hosts.tree import v2_one_socket
from tests.worked.test_podrules_worked import pod

DEVICES = "scheduling.koordinator.sh/device-allocated"
SCORE, SCORES = "koordinator.sh/oom-score-adj", "koordinator.sh/oom-score-adj-spec"
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
LIBRARY = "/usr/local/vgpu/libvgpu.so"


def created(about: Pod, *, env: dict[str, str] | None = None, **parts: Any) -> PodAnswer:
    gates = frozenset({"GPUEnvInject", "RDMADeviceInject", "OOMScoreAdj", "CoreSched"})
    context = PodContext(Policy(gates=gates), NodeInfo(**parts))
    return answer(PodEvent(Hook.PRE_CREATE_CONTAINER, about, Container("main"), env=env or {}), context)


def gpus(*minors: int, **amounts: str) -> dict[str, Any]:
    resources = {f"koordinator.sh/{key.replace('_', '-')}": value for key, value in amounts.items()}
    return {DEVICES: {"gpu": [{"minor": minor, "resources": resources} for minor in minors]}}


def test_w25_the_devices_that_a_container_sees() -> None:
    found = created(pod(annotations=gpus(0, 1)))
    assert found.env == {"NVIDIA_VISIBLE_DEVICES": "0,1"}
    assert found.mounts == ()
    assert created(pod(annotations=gpus(1, 3))).env == {"NVIDIA_VISIBLE_DEVICES": "1,3"}, "V-27"


def test_w26_a_share_of_a_device() -> None:
    about = pod(annotations=gpus(0, gpu_memory_ratio="50", gpu_memory="8Gi", gpu_core="50"), labels=HAMI)
    found = created(about)
    assert found.env == {
        "NVIDIA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_MEMORY_LIMIT": "8589934592",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "LD_PRELOAD": LIBRARY,
    }
    assert [mount[1] for mount in found.mounts] == [LIBRARY, "/tmp/vgpulock"]
    assert created(about, env={"LD_PRELOAD": "/lib/own.so"}).env["LD_PRELOAD"] == f"{LIBRARY}:/lib/own.so"
    assert "LD_PRELOAD" not in created(about, env={"LD_PRELOAD": LIBRARY}).env, "what is there is not said again"


def test_w27_a_whole_device_is_not_divided() -> None:
    found = created(pod(annotations=gpus(0, gpu_memory_ratio="100"), labels=HAMI))
    assert found.env == {"NVIDIA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("annotations", "missing"),
    [
        (gpus(0, gpu_core="50"), "gpu-memory-ratio"),
        (gpus(0, gpu_memory_ratio="50"), "gpu-memory"),
        ({DEVICES: "{"}, DEVICES),
        ({DEVICES: {"gpu": [{"minor": -1}]}}, "minor"),
    ],
)
def test_an_allocation_that_says_too_little_injects_nothing(annotations: dict[str, Any], missing: str) -> None:
    found = created(pod(annotations=annotations, labels=HAMI))
    assert found.env == {}
    assert found.mounts == ()
    assert any(missing in fault for fault in found.faults)


MANAGER = Device("/dev/infiniband/rdma_cm", "c", 10, 58)
VERBS = Device("/dev/infiniband/uverbs3", "c", 231, 195)
RDMA = (("", MANAGER), ("0000:1f:00.2", VERBS))


def rdma(**parts: Any) -> dict[str, Any]:
    return {DEVICES: {"rdma": [{"minor": 0, "id": "0000:1f:00.0", **parts}]}}


def test_rdma_devices() -> None:
    vfs = {"extension": {"vfs": [{"busID": "0000:1f:00.2"}]}}
    found = created(pod(annotations=rdma(**vfs)), rdma=RDMA)
    assert [(d.path, d.major, d.minor, d.mode) for d in found.devices] == [
        ("/dev/infiniband/rdma_cm", 10, 58, 0o666),
        ("/dev/infiniband/uverbs3", 231, 195, 0o666),
    ]


@pytest.mark.parametrize(
    ("annotations", "known"),
    [
        (rdma(), RDMA),  # the physical function has no verbs device here
        (rdma(), ()),
        ({DEVICES: {"rdma": [{"id": "../../etc"}]}}, RDMA),
    ],
)
def test_an_rdma_function_that_is_not_here_injects_nothing(annotations: dict[str, Any], known: Any) -> None:
    found = created(pod(annotations=annotations), rdma=known)
    assert found.devices == ()
    assert found.faults


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_rdma_devices_of_a_machine(tmp_path: Path) -> None:
    tree = v2_one_socket(tmp_path)
    pci = tree.host.sys_root / "devices/pci0000:1f/0000:1f:00.2"
    pci.mkdir(parents=True)
    for name, function in (("uverbs0", pci), ("uverbs1", None)):
        verbs = tree.host.sys_root / "class/infiniband_verbs" / name
        verbs.mkdir(parents=True)
        if function is not None:  # one whose directory is empty, which makes the reference panic
            (verbs / "device").symlink_to(function)
    dev = tmp_path / "dev"
    (dev / "infiniband").mkdir(parents=True)
    assert read_verbs(tree.host, dev) == ()
    for name, number in (("rdma_cm", 58), ("uverbs0", 192), ("uverbs1", 193)):
        try:
            os.mknod(dev / "infiniband" / name, stat.S_IFCHR | 0o600, os.makedev(231, number))
        except PermissionError:
            pytest.skip("no device nodes here")
    assert read_verbs(tree.host, dev) == (
        ("", Device("/dev/infiniband/rdma_cm", "c", 231, 58)),
        ("0000:1f:00.2", Device("/dev/infiniband/uverbs0", "c", 231, 192)),
    )


SCORE_ROWS = [
    pytest.param({SCORES: {"main": -500}, SCORE: "100"}, (-500, 100), id="W41"),
    pytest.param({SCORE: "1001"}, (None, None), id="V-45"),
    pytest.param({SCORE: "-100", SCORES: {"main": 50}}, (50, -100), id="V-46"),
    pytest.param({SCORE: "-100", SCORES: "not json"}, (None, None), id="V-47"),
    pytest.param({}, (None, None), id="none"),
]


@pytest.mark.parametrize(("annotations", "scores"), SCORE_ROWS)
def test_oom_scores(annotations: dict[str, Any], scores: tuple[int | None, int | None]) -> None:
    about = pod(annotations=annotations)
    assert (score_of(about, "main"), score_of(about, "side")) == scores


def test_a_score_travels_in_the_reply_and_as_an_effect() -> None:
    about = pod(Container("main", cgroup="p/main", running=True), annotations={SCORE: "-500"})
    assert created(about).resources.oom_score_adj == -500
    context = PodContext(Policy(gates=frozenset({"OOMScoreAdj"})))
    (effect,) = answer(PodEvent(Hook.RECONCILE, about, about.containers[0]), context).effects
    assert isinstance(effect, OomScore)
    assert (effect.target, effect.score) == ("p/main", -500)


CLASSES = NodeSlo(
    cpu_policy=CpuPolicy.CORE_SCHED,
    lsr_cpu=CpuQos(enable=False),
    ls_cpu=CpuQos(enable=True, core_expeller=True),
    be_cpu=CpuQos(enable=True),
)
GROUP, HOW = "koordinator.sh/core-sched-group-id", "koordinator.sh/core-sched-policy"
GROUPS = [
    pytest.param(Qos.LS, KubeQos.BURSTABLE, {GROUP: "g1"}, "g1-expeller", id="W39-ls"),
    pytest.param(Qos.BE, KubeQos.BESTEFFORT, {}, "", id="W39-be"),
    pytest.param(Qos.LS, KubeQos.BURSTABLE, {HOW: "exclusive"}, "u1-expeller", id="W40"),
    pytest.param(Qos.LS, KubeQos.BURSTABLE, {HOW: "none"}, None, id="switched-off"),
    pytest.param(Qos.SYSTEM, KubeQos.BURSTABLE, {GROUP: "g1"}, None, id="system"),
    pytest.param(Qos.LSR, KubeQos.GUARANTEED, {}, None, id="class-off"),
    pytest.param(None, KubeQos.GUARANTEED, {}, "-expeller", id="guaranteed-as-ls"),
]


@pytest.mark.parametrize(("qos", "kube", "labels", "group"), GROUPS)
def test_core_scheduling_groups(qos: Qos | None, kube: KubeQos, labels: dict[str, str], group: str | None) -> None:
    about = pod(Container("c", cgroup="g", running=True), qos=qos, kube=kube, labels=labels)
    support = Support({"core_sched": Capability("core_sched", Level.NATIVE, "")})
    context = PodContext(Policy(slo=CLASSES, gates=frozenset({"CoreSched"})), support=support)
    assert group_of(about, context) == group
    found = answer(PodEvent(Hook.RECONCILE, about, about.containers[0]), context).effects
    assert [effect.group for effect in found if isinstance(effect, CoreCookie)] == ([] if group is None else [group])
    without = PodContext(context.policy)
    assert answer(PodEvent(Hook.RECONCILE, about, about.containers[0]), without).effects == ()
