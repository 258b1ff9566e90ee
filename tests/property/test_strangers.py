"""Annotations and labels come from strangers: whatever they hold stops no strategy and touches only their own pod."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordlet.config.gates import ALPHA, BETA
from koordlet.config.nodeslo import decode
from koordlet.decide.strategies import STRATEGIES
from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.knob import Knob
from koordlet.model.pod import PodSet, Tree
from koordlet.model.qos import Qos
from koordlet.model.resources import Resources
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Policy, Reading, Usage, WorkloadUsage
from koordlet.sources.podlist import PRIORITY_LABEL, QOS_LABEL, decode_pods
from koordlet.sources.settings import LABELS, READ_LABELS, READERS
from tests.unit.decide.build import T16

KUBEPODS = Kubepods(Driver.CGROUPFS, "/")
ANNOTATIONS = sorted({*READERS, "scheduling.koordinator.sh/resource-status"})
LABEL_KEYS = sorted({*LABELS, *READ_LABELS, QOS_LABEL, PRIORITY_LABEL})
CLASS = {name: {"enable": True} for name in ("cpuQOS", "memoryQOS", "blkioQOS", "resctrlQOS", "networkQOS")}
SLO = decode(
    {
        "resourceUsedThresholdWithBE": {
            "enable": True, "cpuSuppressPolicy": "cpuset", "memoryEvictThresholdPercent": 60,
            "cpuEvictBESatisfactionLowerPercent": 40, "cpuEvictBESatisfactionUpperPercent": 60,
        },
        "resourceQOSStrategy": dict.fromkeys(("lsrClass", "lsClass", "beClass"), CLASS),
        "cpuBurstStrategy": {"policy": "auto"},
    },
    host_app_dir=lambda name, qos, path: name,
)  # fmt: skip
POLICY = Policy(slo=SLO, gates=(ALPHA | BETA) - {"BECPUManager"})
SUPPORT = Support({str(knob): Capability(str(knob), Level.NATIVE, "x", "") for knob in Knob})

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["0-3", "1e9"])
)
KNOWN = st.sampled_from(
    ["cpuset", "numaNodeResources", "node", "resources", "cpu", "policy", "enable", "containers", "gpu", "rdma",
     "minor", "llc", "mb", "schemata", "range", "groupIdentity", "cpuBurstPercent", "ingressLimit", "blocks", "name",
     "type"]
)  # fmt: skip
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KNOWN | st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
TEXTS = DOCUMENTS.map(lambda value: json.dumps(value, allow_nan=True)) | st.text(max_size=40)


def item(name: str, kube_qos: str, labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
    limit = {"cpu": "2", "memory": "1Gi"} if kube_qos != "BestEffort" else {"kubernetes.io/batch-cpu": "1500"}
    return {
        "metadata": {
            "name": name, "namespace": "d", "uid": f"uid-{name}", "labels": labels, "annotations": annotations,
        },
        "spec": {"containers": [{"name": "c", "resources": {"limits": limit, "requests": limit}}]},
        "status": {
            "phase": "Running", "qosClass": kube_qos,
            "containerStatuses": [{"name": "c", "containerID": f"containerd://{name * 16}", "state": {"running": {}}}],
        },
    }  # fmt: skip


NEIGHBOURS = [
    item("a", "Guaranteed", {QOS_LABEL: "LSR"}, {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}'}),
    item("b", "Burstable", {QOS_LABEL: "LS"}, {"koordinator.sh/cpuBurst": '{"policy":"auto"}'}),
    item("c", "BestEffort", {QOS_LABEL: "BE"}, {}),
]


def judged(items: list[dict[str, Any]]) -> dict[str, list[tuple[str, str, str]]]:
    """Every decision on the neighbours' own cgroups, by strategy."""
    pods = decode_pods(json.dumps({"items": items}).encode(), KUBEPODS).pods
    rows = {
        cgroup: WorkloadUsage(
            pod.key,
            cgroup,
            pod,
            cpu_mcpu=Reading(900.0, 5.0),
            memory_bytes=Reading(2e8, 5.0),
            throttled=Reading(0.2, 5.0),
        )
        for pod in pods
        for cgroup in (pod.cgroup, *(c.cgroup for c in pod.containers))
    }
    one = Reading(1000.0, 5.0)
    usage = Usage(
        node_mcpu=Reading(9000.0, 5.0), pods_mcpu=one, nonbe_pods_mcpu=one, hosts_mcpu=Reading(0.0, 5.0),
        nonbe_hosts_mcpu=Reading(0.0, 5.0), be_mcpu=one, system_mcpu=one, node_memory_bytes=Reading(30e9, 5.0),
        pods_memory_bytes=Reading(1e9, 5.0), be_memory_bytes=Reading(1e9, 5.0), system_memory_bytes=Reading(1e9, 5.0),
    )  # fmt: skip
    root = "kubepods/besteffort"
    view = NodeView(
        now_s=5.0,
        node=NodeInfo(
            name="n", capacity_mcpu=16_000, capacity_bytes=32 << 30, topology=T16, cgroup_v2=True,
            allocatable=Resources(16_000, 32 << 30, 8000, 16 << 30),
        ),
        usage=usage, pods=PodSet(pods, 1, 5.0),
        be_roots=(BeRoot(root, Tree.KUBELET, ((root,),), shares=2, quota_us=-1),),
        support=SUPPORT, workloads=rows,
    )  # fmt: skip
    own = {pod.cgroup for pod in pods if pod.name in "abc"}
    found = {}
    for strategy in STRATEGIES:
        outcome = strategy.decide(view, POLICY, strategy.initial(), 5.0)
        found[strategy.name] = [
            (d.target, d.knob.value, str(d.value))
            for d in outcome.decisions
            if any(d.target.startswith(c) for c in own)
        ]
    return found


def test_the_neighbours_are_worth_watching() -> None:
    assert sum(map(len, judged(NEIGHBOURS).values())) > 8


# What a stranger may rightly change for others: an allocation of CPUs narrows the pools of those who share.
SHARED = {"cpuset.cpus"}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]),
    st.dictionaries(st.sampled_from(LABEL_KEYS), st.text(max_size=12) | st.sampled_from([*Qos]), max_size=4),
    st.dictionaries(st.sampled_from(ANNOTATIONS), TEXTS, max_size=4),
)
def test_a_stranger_stops_nothing_and_touches_nobody_else(
    kube_qos: str, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    alone = judged([*NEIGHBOURS, item("z", kube_qos, {}, {})])
    beside = judged([*NEIGHBOURS, item("z", kube_qos, labels, annotations)])
    for name, decisions in beside.items():
        kept = [row for row in decisions if row[1] not in SHARED]
        assert kept == [row for row in alone[name] if row[1] not in SHARED], name
