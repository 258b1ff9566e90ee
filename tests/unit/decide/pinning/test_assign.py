"""Placing declared workloads: nobody is moved, the gone release, offline CPUs stay booked."""

from __future__ import annotations

from dataclasses import replace

from koordlet.decide.pinning.assign import assign
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import Allocation, BindPolicy, NumaPolicy, NumaShare, PinRequest
from koordlet.model.pod import Container, Pod, Resources, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.topology import Topology
from koordlet.model.view import NodeInfo
from tests.unit.decide.pinning.machines import H16

NODE = NodeInfo(topology=H16)


def workload(name: str, cpus: int, **more) -> Pod:
    return Pod(
        uid=name, namespace="local", name=name, cgroup=f"{name}.slice", kube_qos=KubeQos.GUARANTEED, tree=Tree.OURS,
        **{
            "qos": Qos.LSR,
            "priority_label": "koord-prod",
            "pin": PinRequest(),
            "containers": (Container(name, requests=Resources(1000 * cpus, 1 << 30)),),
            **more,
        },
    )  # fmt: skip


def cpus_of(assigned):
    return {pod.name: str(pod.cpuset) if pod.cpuset else None for pod in assigned.pods}


def offline(*cpus: int) -> NodeInfo:
    return replace(NODE, topology=Topology(tuple(cpu for cpu in H16.cpus if cpu.id not in cpus), H16.nodes))


def test_workloads_are_placed_by_name_and_keep_their_place():
    first = assign([workload("b", 4), workload("a", 2)], {}, NODE)
    assert cpus_of(first) == {"a": "0,8", "b": "4-5,12-13"}
    later = assign([workload("a", 2), workload("b", 4), workload("0", 2)], first.held, NODE)
    assert cpus_of(later) == {"a": "0,8", "b": "4-5,12-13", "0": "1,9"}


def test_a_gone_or_finished_workload_releases_its_cpus():
    first = assign([workload("a", 2), workload("b", 2)], {}, NODE)
    gone = assign([workload("a", 2, phase="Succeeded")], first.held, NODE)
    assert gone.held == {}
    assert cpus_of(gone) == {"a": None}


def test_a_limit_stands_for_a_missing_request():
    web = workload("web", 0, containers=(Container("web", limits=Resources(2000, 1 << 30)),))
    assert cpus_of(assign([web], {}, NODE)) == {"web": "0,8"}


def test_ls_and_be_share():
    pods = [workload("ls", 2, qos=Qos.LS), workload("be", 2, qos=Qos.BE, priority_label="koord-batch")]
    assert cpus_of(assign(pods, {}, NODE)) == {"ls": None, "be": None}


def test_a_refused_workload_is_named_and_shares():
    found = assign([workload("web", 1, containers=(Container("web", requests=Resources(1500)),))], {}, NODE)
    assert found.refused == ("workload local/web: no CPUs of its own: the requested CPUs must be integer",)
    assert cpus_of(found) == {"web": None}


def test_cpus_of_others_are_left_alone():
    other = replace(workload("other", 2), cpuset=CpuSet.parse("0,8"), pin=None)
    node = replace(NODE, reserved_cpus=CpuSet.parse("1"), system_qos_cpus=CpuSet.parse("2"))
    everything = assign([workload("a", 8), workload("b", 4)], {}, node, [other])
    assert cpus_of(everything) == {"a": "4-7,12-15", "b": "3,9-11"}


def test_an_offline_cpu_comes_back_to_its_owner():
    first = assign([workload("a", 4)], {}, NODE)
    without = assign([workload("a", 4), workload("b", 2)], first.held, offline(1))
    assert cpus_of(without) == {"a": "0,8-9", "b": "4,12"}
    again = assign([workload("a", 4), workload("b", 2)], without.held, NODE)
    assert cpus_of(again) == {"a": "0-1,8-9", "b": "4,12"}


def test_who_lost_every_cpu_is_placed_anew():
    first = assign([workload("a", 2)], {}, NODE)
    assert cpus_of(assign([workload("a", 2)], first.held, offline(0, 8))) == {"a": "4,12"}


def test_without_a_topology_nothing_changes():
    held = {"a": Allocation(CpuSet.parse("0,8"))}
    assert assign([workload("a", 2)], held, NodeInfo()).held == held


def test_memory_is_booked_on_the_single_node():
    pin = PinRequest(BindPolicy.SPREAD, numa=NumaPolicy.SINGLE)
    found = assign([workload("a", 2, pin=pin)], {}, NODE)
    assert found.held["a"].shares == (NumaShare(0, 2000, 1 << 30),)
