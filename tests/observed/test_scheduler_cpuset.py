"""The allocator in compat mode against what the real koord-scheduler answered (recorded), case by case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordlet.decide.pinning.allocate import NodeRules, Wish, allocate
from koordlet.decide.pinning.machine import machine
from koordlet.decide.pinning.take import NotEnoughError
from koordlet.model.cpuset import CpuSet
from koordlet.model.pinning import (
    Allocation,
    BindPolicy,
    ExclusivePolicy,
    NodePinning,
    NumaPolicy,
    NumaShare,
    NumaStrategy,
    PinRequest,
)
from koordlet.model.qos import PriorityClass, Qos
from koordlet.model.quantity import parse_mcpu, parse_units
from koordlet.model.topology import Cpu, Topology

RECORDED = json.loads((Path(__file__).parent / "scheduler-cpuset.json").read_text())
# Cases in which the scheduler's load filter or a missing topology decides, not the allocator.
ELSEWHERE = {
    "V-35-65.47",
    "V-35-pass",
    "stale-170",
    "threshold-anno",
    "no-nrt",
    "topology-empty-object",
    "topology-null",
}
CASES = {name: case for name, case in RECORDED["cases"].items() if name not in ELSEWHERE}
NODE_BIND = {"FullPCPUsOnly": BindPolicy.FULL_PCPUS, "SpreadByPCPUs": BindPolicy.SPREAD}


def machine_of(recorded):
    return machine(Topology(tuple(Cpu(row["id"], row["core"], row["socket"], row["node"]) for row in recorded)))


def rules_of(case):
    labels, notes = case.get("nodeLabels", {}), case.get("anno", {})
    bind = NODE_BIND.get(labels.get("node.koordinator.sh/cpu-bind-policy", ""))
    kubelet = notes.get("cpu_manager_policy") or {}
    if kubelet.get("policy") == "static" and kubelet.get("options", {}).get("full-pcpus-only") == "true":
        bind = BindPolicy.FULL_PCPUS
    reserved = CpuSet()
    for key, field in (("reservation", "reservedCPUs"), ("system_qos_resource", "cpuset")):
        if isinstance(notes.get(key), dict):
            reserved |= CpuSet.parse(notes[key].get(field, ""))
    if isinstance(notes.get("pod_cpu_allocs"), list):
        for row in notes["pod_cpu_allocs"]:
            reserved |= CpuSet.parse(row["cpuset"])
    policy = labels.get("node.koordinator.sh/numa-topology-policy")
    # The scenarios with a NUMA policy had the machine's zones, but for the one that says so by its name.
    zones = case.get("zones", RECORDED["machine"]["zones"] if policy else [])
    totals = {
        node: {
            "cpu": parse_mcpu(zone["cpu"]),
            **({"memory": parse_units(zone["memory"])} if "memory" in zone else {}),
        }
        for node, zone in enumerate(zones)
    }
    return NodeRules(
        NodePinning(
            bind,
            NumaPolicy(policy) if policy else NumaPolicy.NONE,
            NumaStrategy(case.get("strategy", "LeastAllocated")),
        ),
        reserved=reserved,
        numa_totals=totals,
        compat=True,
    )


def held_of(case):
    held = {}
    for number, row in enumerate(case.get("allocated", [])):
        cpus = CpuSet.parse(row[0])
        shares = (NumaShare(case["allocNuma"], 1000 * len(cpus)),) if "allocNuma" in case else ()
        exclusive = ExclusivePolicy(row[1]) if len(row) > 1 else ExclusivePolicy.NONE
        held[f"pod-{number}"] = Allocation(cpus, exclusive=exclusive, shares=shares)
    return held


def wish_of(case):
    spec = case.get("spec", {})
    required = spec.get("requiredCPUBindPolicy")
    return Wish(
        qos=Qos(case.get("qos", "LSR")),
        priority=PriorityClass.PROD,
        cpu_mcpu=parse_mcpu(case["cpu"]),
        memory_bytes=parse_units(case["memory"]) if "memory" in case else 0,
        pin=PinRequest(
            bind=BindPolicy(required or spec.get("preferredCPUBindPolicy", "Default")),
            required=required is not None,
            exclusive=ExclusivePolicy(spec.get("preferredCPUExclusivePolicy", "None")),
        ),
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_recorded(name):
    case = CASES[name]
    given = dict(case["input"])
    if name == "numa-nozones":
        given["zones"] = []
    expected = case["output"]["resourceStatus"]
    try:
        made = allocate(wish_of(given), held_of(given), rules_of(given), machine_of(RECORDED["machine"]["topology"]))
    except NotEnoughError:
        made = None
    if expected is None:
        assert made is None
        return
    status = json.loads(expected)
    assert made is not None
    assert str(made.cpus) == status["cpuset"]
    shares = [
        {"cpu": parse_mcpu(row["resources"]["cpu"]), "memory": row["resources"].get("memory")}
        for row in status.get("numaNodeResources", [])
    ]
    assert [share.cpu_mcpu for share in made.shares] == [row["cpu"] for row in shares]
    for share, row in zip(made.shares, shares, strict=True):
        assert share.memory_bytes == (parse_units(row["memory"]) if row["memory"] else None)
