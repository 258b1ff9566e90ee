"""Block I/O QoS: which lines of which files are wanted, for whom, and what is told about the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.decide.blkio import BLKIO, State, cost_model, latency_targets
from koordlet.model.blkio import BlkioClasses, Block, BlockDevices, BlockType, IoCfg
from koordlet.model.knob import Knob
from koordlet.model.pod import Container, Pod, PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.settings import PodSettings
from koordlet.model.slo import NodeSlo
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy

ROOT = "kubepods/besteffort"
SDA = Block("/dev/sda", BlockType.DEVICE, IoCfg(read_iops=5000, write_iops=0, read_bps=10**6, weight_percent=60))
SEEN = BlockDevices(
    {
        (BlockType.DEVICE, "/dev/sda", ""): ("8:0",),
        (BlockType.DEVICE, "/dev/sda1", ""): ("8:0",),
        (BlockType.VOLUME_GROUP, "vg", ""): ("8:0", "8:16"),
        (BlockType.POD_VOLUME, "data", "io"): ("8:32",),
    },
    {(BlockType.DEVICE, "/dev/none", ""): "no block device '/dev/none' here"},
)


def pod(name: str, *blocks: Block, qos: Qos | None = Qos.LS, phase: str = "Running") -> Pod:
    return Pod(
        uid=name,
        namespace="default",
        name=name,
        cgroup=f"kubepods/burstable/{name}",
        kube_qos=KubeQos.BURSTABLE,
        qos=qos,
        phase=phase,
        settings=PodSettings(blkio=blocks or None),
    )


def decide(
    classes: BlkioClasses | None = None,
    *pods: Pod,
    seen: BlockDevices = SEEN,
    state: State | None = None,
    support: Support | None = None,
    gate: bool = True,
    v2: bool = True,
) -> Outcome[State]:
    view = NodeView(
        0.0,
        node=NodeInfo(cgroup_v2=v2),
        pods=PodSet(pods, 1, 0.0),
        be_roots=(BeRoot(ROOT, Tree.KUBELET),),
        blocks=seen,
        support=support or NO_SUPPORT,
    )
    policy = Policy(slo=NodeSlo(blkio=classes or BlkioClasses()), gates=frozenset({"BlkIOReconcile"} if gate else ()))
    return BLKIO.decide(view, policy, state or BLKIO.initial(), 0.0)


NO_SUPPORT = Support()


def values(outcome: Outcome[State]) -> dict[tuple[str, Knob], Any]:
    found = {d.key: d.value for d in outcome.decisions}
    assert len(found) == len(outcome.decisions)
    return found


def test_off_names_nothing() -> None:
    assert decide(BlkioClasses(be=(SDA,)), gate=False).decisions == ()
    assert decide().decisions == ()


def test_be_limits_stand_on_the_be_root_zero_is_no_limit() -> None:
    outcome = decide(BlkioClasses(be=(SDA,)))
    assert values(outcome) == {
        (f"{ROOT}/8:0", Knob.IO_READ_IOPS): 5000,
        (f"{ROOT}/8:0", Knob.IO_READ_BPS): 10**6,
        (f"{ROOT}/8:0", Knob.IO_WEIGHT): 60,
    }
    assert decide(BlkioClasses(be=(SDA,)), state=outcome.state).decisions is outcome.decisions


def test_a_pod_with_the_annotation_and_its_removal() -> None:
    """F-34: the reference leaves the limits of a removed annotation."""
    data = Block("data", BlockType.POD_VOLUME, IoCfg(write_bps=5))
    on = decide(None, pod("io", SDA, data))
    assert values(on) == {
        ("kubepods/burstable/io/8:0", Knob.IO_READ_IOPS): 5000,
        ("kubepods/burstable/io/8:0", Knob.IO_READ_BPS): 10**6,
        ("kubepods/burstable/io/8:0", Knob.IO_WEIGHT): 60,
        ("kubepods/burstable/io/8:32", Knob.IO_WRITE_BPS): 5,
    }
    assert decide(None, pod("io"), seen=replace(SEEN), state=on.state).decisions == ()


@pytest.mark.parametrize("made", [pod("a", SDA, qos=None), pod("a", SDA, phase="Pending")])
def test_pods_without_a_class_or_not_running_are_left_alone(made: Pod) -> None:
    assert decide(None, made).decisions == ()


def test_a_block_without_a_disk_is_told_and_the_others_hold() -> None:
    """The reference drops the whole target (11.1), and on mainline all of them (seen 4)."""
    none = Block("/dev/none", BlockType.DEVICE, IoCfg(read_bps=1))
    outcome = decide(BlkioClasses(be=(none, SDA)))
    assert (f"{ROOT}/8:0", Knob.IO_READ_BPS) in values(outcome)
    assert outcome.notes == (
        "beClass or cgroupRoot: block I/O limits of device '/dev/none': no block device '/dev/none' here",
    )
    assert decide(BlkioClasses(be=(none, SDA)), seen=replace(SEEN), state=outcome.state).notes == ()


def test_a_group_of_two_disks_and_two_names_of_one_disk() -> None:
    group = Block("vg", BlockType.VOLUME_GROUP, IoCfg(read_bps=7))
    part = Block("/dev/sda1", BlockType.DEVICE, IoCfg(read_bps=9))
    assert values(decide(BlkioClasses(be=(group, part)))) == {
        (f"{ROOT}/8:0", Knob.IO_READ_BPS): 7,
        (f"{ROOT}/8:16", Knob.IO_READ_BPS): 7,
    }


def test_weights_go_to_bfq_where_it_schedules_the_disk() -> None:
    support = Support({Knob.IO_BFQ_WEIGHT: Capability(Knob.IO_BFQ_WEIGHT, Level.NATIVE, "t")})
    seen = replace(SEEN, bfq=frozenset({"8:0"}))
    found = values(decide(BlkioClasses(be=(SDA,)), seen=seen, support=support))
    assert found[f"{ROOT}/8:0", Knob.IO_BFQ_WEIGHT] == 60


def test_the_cost_model_is_the_root_cgroups() -> None:
    model = (("rbps", 1), ("rseqiops", 2), ("rrandiops", 3), ("wbps", 4), ("wseqiops", 5), ("wrandiops", 6))
    block = Block("/dev/sda", BlockType.DEVICE, IoCfg(user_model=True, model=model, read_latency_us=500))
    outcome = decide(BlkioClasses(root=(block,)))
    assert values(outcome) == {
        ("8:0", Knob.IO_COST_QOS): "enable=1 ctrl=user rpct=95 rlat=500 wpct=95 wlat=3000",
        ("8:0", Knob.IO_COST_MODEL): "ctrl=user rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6",
    }
    assert cost_model(IoCfg()) == "ctrl=auto"
    assert latency_targets(IoCfg()) == "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000"


def test_a_user_model_with_gaps_is_refused_and_told() -> None:
    block = Block("/dev/sda", BlockType.DEVICE, IoCfg(user_model=True, model=(("rbps", 1),)))
    outcome = decide(BlkioClasses(root=(block,)))
    assert [key for key, _ in values(outcome).items()] == [("8:0", Knob.IO_COST_QOS)]
    assert "rrandiops, rseqiops, wbps, wrandiops, wseqiops missing" in outcome.notes[0]


def test_classes_that_may_not_have_blocks_are_told() -> None:
    outcome = decide(BlkioClasses(refused=("lsrClass",)))
    assert outcome.notes == ("lsrClass.blkioQOS: only beClass and cgroupRoot may have blocks; ignored",)


def test_on_v1_each_container_gets_the_limit_too() -> None:
    """Without v2 the kernel counts every group by itself: a limit above the containers holds nobody."""
    limit = Block("/dev/sda", BlockType.DEVICE, IoCfg(read_bps=7))
    batch = replace(
        pod("b", qos=Qos.BE),
        cgroup=f"{ROOT}/b",
        kube_qos=KubeQos.BESTEFFORT,
        containers=(Container("c", cgroup=f"{ROOT}/b/c"),),
    )
    io = replace(pod("io", limit), containers=(Container("c", cgroup="kubepods/burstable/io/c"), Container("new")))
    found = values(decide(BlkioClasses(be=(limit,)), batch, io, v2=False))
    expected = (ROOT, f"{ROOT}/b/c", "kubepods/burstable/io", "kubepods/burstable/io/c")
    assert found == {(f"{target}/8:0", Knob.IO_READ_BPS): 7 for target in expected}
