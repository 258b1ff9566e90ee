"""The Node and the NodeSLO as the control loops see them (spec/api 1.2.6, 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from koordlet.config.flags import parse
from koordlet.inputs import KubepodsInput, NodeInput, PolicyInput
from koordlet.kube.informer import Informer
from koordlet.kube.objects import Metadata, NodeObject, NodeStatus, SloObject
from koordlet.model.cpuset import CpuSet
from koordlet.model.slo import SuppressPolicy
from koordlet.sources.followed import follow_node, follow_policy
from tests.native.trees import Tree


@dataclass
class Object:
    """An informer's face."""

    value: Any = None
    revision: int = 0
    error: str = ""
    path: str = "/x"

    def set(self, value: Any) -> None:
        self.value, self.revision = value, self.revision + 1


FLAGS = parse(["--mode=k8s", "--cgroup-driver=cgroupfs"], {"NODE_NAME": "node-a"})


class World:
    def __init__(self, tmp_path: Path) -> None:
        tree = Tree(tmp_path / "node")
        self.node_object, self.slo_object = Object(), Object()
        self.refused = 0
        self.kubelet_root = tree.host.kubelet_root
        kubepods = KubepodsInput(FLAGS, tree.host)
        self.node = NodeInput(
            FLAGS, tree.host, lambda what, ok: None, follow_node(cast("Informer[NodeObject]", self.node_object))
        )
        slo = cast("Informer[SloObject]", self.slo_object)
        self.policy = PolicyInput(
            FLAGS, kubepods, self._refused, follow_policy(slo, kubepods.host_app_dir, lambda: kubepods.get)
        )
        self.now_s = 0.0

    def _refused(self) -> None:
        self.refused += 1

    def slo(self, spec: Any) -> Any:
        self.slo_object.set(SloObject(Metadata("node-a"), spec))
        return self.look()

    def look(self) -> Any:
        self.now_s += 1
        return self.policy.poll(self.now_s).slo

    def facts(self) -> Any:
        self.now_s += 100
        return self.node.poll(self.now_s)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_no_node_slo_disables(world: World) -> None:
    assert world.look() is None
    assert world.policy.error == ""


def test_v17_received_fields_lie_over_the_defaults(world: World) -> None:
    found = world.slo({"resourceUsedThresholdWithBE": {"enable": True}}).threshold
    assert (found.enable, found.cpu_suppress_threshold_percent, found.memory_evict_threshold_percent) == (True, 65, 70)
    assert found.cpu_suppress_policy is SuppressPolicy.CPUSET


def test_an_edit_is_followed_and_a_deletion_changes_nothing(world: World) -> None:
    assert world.slo({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 50}})
    assert world.slo({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 40}})
    world.slo_object.set(None)
    assert world.look().threshold.cpu_suppress_threshold_percent == 40


@pytest.mark.parametrize(
    "spec",
    [
        {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": "50"}},
        {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 150}},
        {"resourceUsedThresholdWithBE": []},
        [],
        {"hostApplications": [{"name": ".."}]},
    ],
)
def test_a_malformed_spec_keeps_the_previous(world: World, spec: Any) -> None:
    before = world.slo({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 50}})
    assert world.slo(spec) is before
    assert world.refused == 1
    assert "NodeSLO node-a" in world.policy.error
    assert world.slo({}).threshold.enable is False
    assert world.policy.error == ""


def test_unknown_fields_of_a_newer_manager_are_no_fault(world: World) -> None:
    found = world.slo({"extensions": {"Object": {}}, "futureStrategy": {"x": 1}, "cpuBurstStrategy": {"newKey": 1}})
    assert found is not None
    assert world.refused == 0


def node(**status: Any) -> NodeObject:
    amounts = {"cpu": "8", "memory": "32Gi"}
    return NodeObject(
        Metadata("node-a", "uid", {}, status.pop("annotations", {})),
        NodeStatus(**{"capacity": amounts, "allocatable": amounts, **status}),
    )


def test_capacity_is_unknown_before_the_node_is(world: World) -> None:
    found = world.facts()
    assert (found.name, found.capacity_mcpu, found.capacity_bytes) == ("node-a", None, None)
    world.node_object.set(node(allocatable={"cpu": "7500m", "memory": "30Gi"}))
    found = world.facts()
    assert (found.capacity_mcpu, found.capacity_bytes, found.reserved_mcpu) == (8000, 32 << 30, 500)
    world.node_object.set(None)  # deleted: what was known holds until it is made anew
    assert world.facts().capacity_mcpu == 8000
    world.node_object.set(node(capacity={"cpu": "16", "memory": "32Gi"}))
    assert world.facts().capacity_mcpu == 16000


def test_annotations_are_followed(world: World) -> None:
    world.node_object.set(node(annotations={"node.koordinator.sh/reservation": '{"reservedCPUs": "0-1"}'}))
    assert world.facts().reserved_mcpu == 2000
    world.node_object.set(node(annotations={"node.koordinator.sh/reservation": "{"}))
    found = world.facts()
    assert (found.reserved_mcpu, found.reserved_cpus) == (0, CpuSet())


def test_a_node_with_odd_quantities_keeps_the_previous(world: World) -> None:
    world.node_object.set(node())
    world.facts()
    world.node_object.set(node(capacity={"cpu": "many"}))
    assert world.facts().capacity_mcpu == 8000
    assert "capacity.cpu" in world.node.error


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        (None, "none"),
        ('{"policyName": "static", "defaultCpuSet": "0-3", "checksum": 1}', "static"),
        ('{"policyName": "none", "defaultCpuSet": "", "checksum": 1}', "none"),
        ('{"policyName":', None),
        ('{"policyName": "future"}', None),
    ],
)
def test_the_kubelets_cpu_policy_is_its_own_record(world: World, text: str | None, policy: str | None) -> None:
    """As of case kubelet-policy-annotation: unreadable is not "none"."""
    world.kubelet_root.mkdir(parents=True, exist_ok=True)
    if text is not None:
        (world.kubelet_root / "cpu_manager_state").write_text(text)
    world.node_object.set(node())
    assert world.facts().kubelet_policy == policy
    world.node_object.set(node(annotations={"kubelet.koordinator.sh/cpu-manager-policy": '{"policy": "static"}'}))
    assert world.facts().kubelet_policy == "static"
