"""A container's values as they leave the three doors: a hook reply over gRPC, an adjustment over NRI, and what the
reconciler wants of the same pod as a kubelet lists it. All by real sockets and messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordlet.decide.podrules import PodContext, answer
from koordlet.doors.runtime_hook import SERVICE, RuntimeHookDoor
from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.podevent import Hook, LinuxResources, PodEvent
from koordlet.model.qos import Qos
from koordlet.sources.podlist import decode_pods
from koordlet.wire import hook_pb2 as hook
from koordlet.wire import nri_pb2 as nri
from tests.property.test_podrules import contexts, merged
from tests.unit.doors.line import Line
from tests.unit.doors.stand import Stand

CREATE = f"/{SERVICE}/PreCreateContainerHook"
UPDATE = f"/{SERVICE}/PreUpdateContainerResourcesHook"
KUBE = ("Guaranteed", "Burstable", "BestEffort")
LENT = st.sampled_from(["0", "1", "500", "1000", "2500"])


class Doors:
    """Both doors before one set of rules, which each example replaces."""

    def __init__(self, folder: Path) -> None:
        self.stand = Stand()
        self.proxy = RuntimeHookDoor(str(folder / "k.sock"), self.stand.teller("proxy", hold_s=30.0))
        self.proxy.start()
        self.channel = grpc.insecure_channel(f"unix:{folder}/k.sock")
        self.line = Line(self.stand)
        self.line.runtime.handshake()

    def ask_proxy(self, path: str, request: hook.ContainerResourceHookRequest) -> LinuxResources:
        call = self.channel.unary_unary(
            path, lambda m: m.SerializeToString(), hook.ContainerResourceHookResponse.FromString
        )
        found = call(request, timeout=10.0).container_resources
        return LinuxResources(
            cpu_shares=found.cpu_shares or None,
            cpu_quota_us=found.cpu_quota or None,
            cpuset=CpuSet.parse(found.cpuset_cpus) if found.cpuset_cpus else None,
            memory_limit_bytes=found.memory_limit_in_bytes or None,
        )

    def ask_runtime(self, method: str, request: Any) -> LinuxResources:
        code, text, data = self.line.runtime.ask(method, request)
        assert code == 0, text
        if method == "CreateContainer":
            found = nri.CreateContainerResponse.FromString(data).adjust.linux.resources
        else:
            updates = nri.UpdateContainerResponse.FromString(data).update
            found = updates[0].linux.resources if updates else nri.LinuxResources()
        return LinuxResources(
            cpu_shares=found.cpu.shares.value or None,
            cpu_quota_us=found.cpu.quota.value or None,
            cpuset=CpuSet.parse(found.cpu.cpus) if found.cpu.cpus else None,
            memory_limit_bytes=found.memory.limit.value or None,
        )

    def close(self) -> None:
        self.channel.close()
        self.line.close()
        self.proxy.close()
        self.stand.close()


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    made = Doors(tmp_path_factory.mktemp("doors"))
    yield made
    made.close()


@st.composite
def items(draw: st.DrawFn) -> dict[str, Any]:
    """A pod as a kubelet lists it, with what the webhook wrote for those who do not see its spec."""
    kube = draw(st.sampled_from(KUBE))
    qos = draw(st.none() | st.sampled_from([qos.value for qos in Qos]))
    batch = draw(st.booleans())
    limits = draw(st.lists(st.none() | st.sampled_from([100, 500, 2000]), min_size=1, max_size=2))
    containers, rows, statuses = [], {}, []
    for number, limit in enumerate(limits):
        name = "ab"[number]
        lent = {"kubernetes.io/batch-cpu": draw(LENT), "kubernetes.io/batch-memory": draw(LENT)} if batch else {}
        own = {"cpu": f"{limit}m"} if limit else {}
        containers.append({"name": name, "resources": {"requests": lent, "limits": {**lent, **own}}})
        statuses.append({"name": name, "containerID": f"containerd://{name * 64}", "state": {"running": {}}})
        if lent:
            rows[name] = {"requests": lent, "limits": lent}
    status = {"cpuset": draw(st.sampled_from(["2-3", "0", "9"]))} if draw(st.booleans()) else {}
    annotations = {"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": rows})} if rows else {}
    if status:
        annotations["scheduling.koordinator.sh/resource-status"] = json.dumps(status)
    return {
        "metadata": {
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
            "annotations": annotations,
        },
        "spec": {"containers": containers},
        "status": {"phase": "Running", "qosClass": kube, "containerStatuses": statuses},
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items(), contexts())
def test_three_doors_one_value(doors: Doors, item: dict[str, Any], context: PodContext) -> None:
    doors.stand.rule = lambda event: answer(event, context)
    (pod,) = decode_pods(json.dumps({"items": [item]}).encode(), Kubepods(Driver.CGROUPFS)).pods
    meta, parent = item["metadata"], f"/{pod.cgroup}"
    doors.stand.source.synchronized("containerd", (), ())
    sandbox = nri.PodSandbox(
        id="sb", uid="u", name="p", namespace="n", labels=meta["labels"], annotations=meta["annotations"],
        linux=nri.LinuxPodSandbox(cgroup_parent=parent),
    )  # fmt: skip
    for listed in pod.containers:
        wanted = {
            decision.knob: decision.value
            for decision in answer(PodEvent(Hook.RECONCILE, pod, listed, cgroup=listed.cgroup), context).decisions
        }
        limit = listed.limits.cpu_mcpu
        asked = LinuxResources(cpu_shares=77, cpu_quota_us=limit * 100 if limit else None)
        words = {"cpu_shares": 77, **({"cpu_quota": asked.cpu_quota_us} if limit else {})}
        linux = nri.LinuxResources(cpu=nri.LinuxCPU(shares=nri.OptionalUInt64(value=77)))
        if limit:
            linux.cpu.quota.value = limit * 100
        told = nri.Container(
            id=listed.name * 64, pod_sandbox_id="sb", name=listed.name,
            linux=nri.LinuxContainer(cgroups_path=f"/{listed.cgroup}", resources=linux),
        )  # fmt: skip
        request = hook.ContainerResourceHookRequest(
            pod_meta={"name": "p", "namespace": "n", "uid": "u"},
            container_meta={"name": listed.name},
            container_resources=words,
            pod_annotations=meta["annotations"],
            pod_labels=meta["labels"],
            pod_cgroup_parent=parent,
        )
        for reply in (
            doors.ask_proxy(CREATE, request),
            doors.ask_runtime("CreateContainer", nri.CreateContainerRequest(pod=sandbox, container=told)),
            doors.ask_proxy(UPDATE, request),
            doors.ask_runtime(
                "UpdateContainer", nri.UpdateContainerRequest(pod=sandbox, container=told, linux_resources=linux)
            ),
        ):
            after = merged(asked, reply)
            # "Unlimited" is what a memory limit is that nobody mentions: neither protocol can say it.
            found = {knob: after.get(knob, -1 if knob is Knob.MEMORY_LIMIT else None) for knob in wanted}
            assert found == wanted, reply
