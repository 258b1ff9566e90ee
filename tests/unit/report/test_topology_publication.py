"""When the topology object is written, over what, and what is never done to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.topology import read_topology
from koordlet.kube.errors import ApiError
from koordlet.kube.objects import TOPOLOGIES, Metadata, NodeObject, NodeStatus
from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import PodSet
from koordlet.model.qos import Qos
from koordlet.model.status import ApplyReport, Snapshot, TickStats
from koordlet.model.view import NodeInfo, NodeView
from koordlet.report.topology import CPU_POLICY, CPU_TOPOLOGY, LS_POOLS, NUMA_RESERVATION, POD_ALLOCS, merged
from koordlet.report.topology_publication import CHECK_EVERY_S, TopologyPublication
from tests.hosts.objects import Objects
from tests.hosts.tree import HostTree
from tests.unit.decide.build import pinned

PATH = f"{TOPOLOGIES}/node-a"
STATE = '{"policyName":"static","defaultCpuSet":"","entries":{"u1":{"main":"1"}},"checksum":1}'


def configz(**config: Any) -> bytes:
    return json.dumps({"kubeletconfig": config}).encode()


class Rig:
    """A node of two CPUs in a temporary directory, its Node object, its pods, and a kept API."""

    def __init__(self, root: Path, kubelet: Any = None, **more: Any) -> None:
        cpus = {f"cpu{i}": {"topology": {"physical_package_id": "0", "core_cpus_list": f"{i}\n"}} for i in (0, 1)}
        self.tree = HostTree(
            root,
            CgroupVersion.V2,
            {
                "sys/devices/system/cpu": {"online": "0-1\n", **cpus},
                "sys/devices/system/node/node0": {
                    "cpulist": "0-1\n",
                    "meminfo": "Node 0 MemTotal: 33554432 kB\n",
                    "hugepages/hugepages-2048kB": {"nr_hugepages": "1024\n"},
                },
                "proc/cpuinfo": "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7763\n\n",
            },
        )
        self.api = Objects()
        self.node: NodeObject | None = NodeObject(Metadata("node-a", "1f0c"), NodeStatus({"cpu": "2"}, {"cpu": "2"}))
        self.info = NodeInfo("node-a", topology=read_topology(self.tree.host))
        self.pods = PodSet((), 1, 0.0)
        self.now_s = 1000.0
        self.publication = TopologyPublication(self.tree.host, lambda: self.node, kubelet, **more)

    def snapshot(self) -> Snapshot:
        return Snapshot(NodeView(self.now_s, node=self.info, pods=self.pods), {}, ApplyReport(), TickStats(), 0.0)

    def look(self, after_s: float = 3.0) -> bool:
        """One look of the publisher; whether the object was due."""
        self.now_s += after_s
        if not self.publication.due(self.snapshot(), self.now_s):
            return False
        self.publication.publish(self.api, self.snapshot(), self.now_s)  # type: ignore[arg-type]
        return True

    def texts(self) -> dict[str, Any]:
        return {key: json.loads(text) for key, text in self.api.stored[PATH]["metadata"]["annotations"].items()}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_created_whole_at_the_first_look(rig: Rig) -> None:
    assert rig.look()
    assert rig.api.writes == [("create", TOPOLOGIES)]
    found = rig.api.stored[PATH]
    assert rig.texts()[CPU_TOPOLOGY] == {"detail": [{"id": i, "core": i, "socket": 0, "node": 0} for i in (0, 1)]}
    assert found["metadata"]["ownerReferences"][0]["uid"] == "1f0c"
    assert [row["name"] for row in found["zones"][0]["resources"]] == [
        "cpu",
        "hugepages-1Gi",
        "hugepages-2Mi",
        "memory",
    ]


@pytest.mark.parametrize("what", ["node", "uid", "pods", "topology"])
def test_nothing_is_written_before_everything_needed_is_known(rig: Rig, what: str) -> None:
    node, info, pods = rig.node, rig.info, rig.pods
    rig.node = {"node": None, "uid": NodeObject(Metadata("node-a"))}.get(what, node)
    rig.info = replace(info, topology=None) if what == "topology" else info
    rig.pods = PodSet() if what == "pods" else pods
    assert not rig.look()
    rig.node, rig.info, rig.pods = node, info, pods
    assert rig.look()
    assert len(rig.api.writes) == 1


def test_nothing_changed_nothing_is_called(rig: Rig) -> None:
    rig.look()
    calls = len(rig.api.calls)
    for revision in range(2, 20):  # the kubelet's answer changes, nothing of it concerns us
        rig.pods = PodSet((), revision, rig.now_s)
        assert not rig.look()
    assert len(rig.api.calls) == calls
    assert rig.look(CHECK_EVERY_S)  # somebody else may have been there
    assert len(rig.api.writes) == 1


def test_a_pod_with_cpus_changes_the_pools_within_one_interval(rig: Rig) -> None:
    rig.look()
    rig.pods = PodSet((pinned(Qos.LSR, "1"),), 2, rig.now_s)
    assert rig.look()
    assert rig.texts()[LS_POOLS] == [{"socket": 0, "node": 0, "cpuset": "0"}]
    assert rig.api.writes == [("create", TOPOLOGIES), ("update", PATH)]


def test_what_others_wrote_stays(rig: Rig) -> None:
    rig.look()
    found = rig.api.stored[PATH]
    batch = {"name": "kubernetes.io/batch-cpu", "capacity": "1k", "allocatable": "1k", "available": "1k"}
    found["zones"][0]["resources"].append(batch)
    found["zones"][0]["costs"] = [{"name": "node-0", "value": 10}]
    found["metadata"]["labels"]["theirs"] = "1"
    found["metadata"]["annotations"]["theirs"] = "2"
    rig.api.put(PATH, found)
    assert rig.look(CHECK_EVERY_S)
    assert len(rig.api.writes) == 1  # nothing of ours differs
    rig.pods = PodSet((pinned(Qos.LSE, "0"),), 2, rig.now_s)
    assert rig.look()
    found = rig.api.stored[PATH]
    assert batch in found["zones"][0]["resources"]
    assert found["zones"][0]["costs"] == [{"name": "node-0", "value": 10}]
    assert (found["metadata"]["labels"]["theirs"], found["metadata"]["annotations"]["theirs"]) == ("1", "2")
    capacity = {row["name"]: row["capacity"] for row in found["zones"][0]["resources"]}
    assert capacity["memory"] == "32Gi"


def test_another_writer_in_between_is_no_loss(rig: Rig) -> None:
    rig.look()
    meddled = []

    def meddle(verb: str, path: str) -> None:
        if verb == "update" and not meddled:
            meddled.append(path)
            theirs = rig.api.stored[PATH]
            theirs["metadata"]["annotations"]["theirs"] = "1"
            rig.api.put(PATH, theirs)

    rig.api.before = meddle
    rig.pods = PodSet((pinned(Qos.LSR, "1"),), 2, rig.now_s)
    assert rig.look()
    assert rig.api.stored[PATH]["metadata"]["annotations"]["theirs"] == "1"
    assert rig.texts()[LS_POOLS] == [{"socket": 0, "node": 0, "cpuset": "0"}]


def test_a_removed_object_comes_back_and_nothing_ever_removes_it(rig: Rig) -> None:
    rig.look()
    del rig.api.stored[PATH]
    assert rig.look(CHECK_EVERY_S)
    assert PATH in rig.api.stored
    assert not hasattr(Objects, "delete")  # such a call would have failed here


def test_a_node_made_anew_becomes_the_owner(rig: Rig) -> None:
    rig.look()
    rig.node = NodeObject(Metadata("node-a", "2b1d"), NodeStatus({"cpu": "2"}, {"cpu": "2"}))
    assert rig.look()
    assert [owner["uid"] for owner in rig.api.stored[PATH]["metadata"]["ownerReferences"]] == ["2b1d"]


def test_the_reservation_label_goes_with_the_nodes(rig: Rig) -> None:
    status = NodeStatus({"cpu": "2", "memory": "32Gi"}, {"cpu": "1500m", "memory": "31Gi"})
    rig.node = NodeObject(Metadata("node-a", "1f0c", {NUMA_RESERVATION: "true"}), status)
    rig.look()
    assert rig.api.stored[PATH]["zones"][0]["resources"][0]["allocatable"] == "1500m"
    rig.node = NodeObject(Metadata("node-a", "1f0c"), status)
    assert rig.look()
    assert NUMA_RESERVATION not in rig.api.stored[PATH]["metadata"]["labels"]
    assert rig.api.stored[PATH]["zones"][0]["resources"][0]["allocatable"] == "2"
    assert not rig.look()


def test_an_outage_leaves_it_due(rig: Rig) -> None:
    def refuse(verb: str, path: str) -> None:
        raise ApiError(0, "Unreachable", "no route")

    rig.api.before = refuse
    with pytest.raises(ApiError):
        rig.look()
    rig.api.before = lambda verb, path: None
    assert rig.look()


def test_a_broken_text_of_another_writer_is_replaced(rig: Rig) -> None:
    rig.look()
    found = rig.api.stored[PATH]
    found["metadata"]["annotations"][CPU_TOPOLOGY] = "{"
    found["metadata"]["annotations"][LS_POOLS] = ' [ { "cpuset" : "0-1", "node": 0, "socket": 0 } ]'
    rig.api.put(PATH, found)
    assert rig.look(CHECK_EVERY_S)
    assert rig.texts()[CPU_TOPOLOGY]["detail"][1]["id"] == 1


def test_static_policy_and_its_checkpoint(tmp_path: Path) -> None:
    rig = Rig(tmp_path, kubelet=lambda: configz(cpuManagerPolicy="static", topologyManagerPolicy="restricted"))
    rig.tree.put("kubelet/cpu_manager_state", STATE)
    assert rig.look()
    assert rig.texts()[POD_ALLOCS] == [{"uid": "u1", "cpuset": "1", "managedByKubelet": True}]
    assert rig.texts()[CPU_POLICY] == {"policy": "static"}
    assert rig.api.stored[PATH]["topologyPolicies"] == ["RestrictedContainerLevel"]
    rig.tree.put("kubelet/cpu_manager_state", "{")  # half written: what was known stays
    assert not rig.look()
    rig.tree.put("kubelet/cpu_manager_state", STATE.replace('"u1":{"main":"1"}', ""))
    assert rig.look()
    assert rig.texts()[POD_ALLOCS] is None


def test_an_unreadable_checkpoint_at_the_start_holds_the_object_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, kubelet=lambda: configz(cpuManagerPolicy="static"))
    rig.tree.put("kubelet/cpu_manager_state", "garbage")
    with pytest.raises(ApiError, match="cpu_manager_state"):
        rig.look()
    assert not rig.api.calls
    rig.tree.put("kubelet/cpu_manager_state", STATE)
    assert rig.look()
    assert rig.texts()[POD_ALLOCS][0]["cpuset"] == "1"


def test_a_kubelet_that_cannot_be_reached_is_waited_for_one_that_refuses_is_not(tmp_path: Path) -> None:
    errors = [ApiError(0, "Unreachable", "refused"), ApiError(403, "Forbidden", "no")]

    def ask() -> bytes:
        raise errors[0]

    rig = Rig(tmp_path, kubelet=ask)
    rig.tree.put("kubelet/cpu_manager_state", STATE)
    with pytest.raises(ApiError, match="Unreachable"):
        rig.look()
    assert not rig.api.calls
    del errors[0]
    assert rig.look()
    assert rig.texts()[CPU_POLICY] == {"policy": "static"}  # as its checkpoint says


def test_huge_pages_with_their_gate(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hugepages=True)
    rig.look()
    found = {row["name"]: row["allocatable"] for row in rig.api.stored[PATH]["zones"][0]["resources"]}
    assert (found["memory"], found["hugepages-2Mi"]) == ("30Gi", "2Gi")


def test_cpus_that_went_offline(rig: Rig) -> None:
    rig.look()
    rig.tree.put("sys/devices/system/cpu/online", "0\n")
    rig.info = NodeInfo("node-a", topology=read_topology(rig.tree.host))
    assert rig.info.topology is not None
    assert rig.info.topology.online == CpuSet([0])
    assert rig.look()
    assert [row["id"] for row in rig.texts()[CPU_TOPOLOGY]["detail"]] == [0]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["zones", "topologyPolicies", "attributes", "x"]), anything),
       st.dictionaries(st.text(max_size=5), st.text(max_size=5)))  # fmt: skip
def test_whatever_stands_there_ours_is_laid_over_it_once(current: dict[str, Any], labels: dict[str, str]) -> None:
    wanted = {
        "metadata": {
            "name": "n",
            "labels": {"a": "b"},
            "annotations": {CPU_TOPOLOGY: '{"detail":[]}'},
            "ownerReferences": [{"kind": "Node", "uid": "u"}],
        },
        "topologyPolicies": ["None"],
        "zones": [{"name": "node-0", "type": "Node", "resources": [
            {"name": "cpu", "capacity": "1", "allocatable": "1", "available": "1"}]}],
    }  # fmt: skip
    current["metadata"] = {"name": "n", "resourceVersion": "1", "labels": labels}
    made = merged(current, wanted)
    assert made is not None
    assert merged(made, wanted) is None
    assert made["metadata"]["resourceVersion"] == "1"
    assert {**labels, "a": "b"} == made["metadata"]["labels"] or NUMA_RESERVATION in labels
    assert made.get("x") == current.get("x")
