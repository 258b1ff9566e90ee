"""Cluster lab: nothing that we write makes a later write of the kubelet or of runc fail.

A kubelet with the static CPU manager, a containerd that asks us by NRI, and every hook and loop of ours at work, while
exclusive pods start and end, pods are resized in place, and both daemons are restarted. What they log must name no file
that is ours to write, and no pod may fail.

That is with -idle-on-be-pods, too, which is off by default. Not resctrl: the kernel here has none, and neither a
kubelet nor runc writes there unless a container's spec says so.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.kernel.knobs import KNOBS, Base
from tests.labs.cluster.agent import Agent
from tests.labs.cluster.api import MERGE_PATCH, path_of
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.manager import SLO_PATH, node_slo
from tests.labs.cluster.node import NAME, Node, pod
from tests.labs.runtime import guard

pytestmark = [
    pytest.mark.lab_cluster,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(guard.CGROUPS in guard.hierarchies(), reason="the values are those of cgroup v1"),
]

NODE = f"/api/v1/nodes/{NAME}"
OURS = re.compile("|".join(sorted(
    re.escape(file) + r"\b"
    for row in KNOBS.values() if row.base is Base.CGROUP
    for file in (row.v1_file, row.v2_file) if file
)))  # fmt: skip
"""Files that we may write, as an error of the kubelet or runc would name them."""
GATES = "CgroupReconcile,CoreSched,CPUNormalization,BlkIOReconcile,OOMScoreAdj,Resctrl"
RATIO = 1.2
PATIENCE_S = 60.0
GONE = "no such file or directory"
"""A kubelet looks at groups of pods that have just ended."""


def slo(suppress: str, cpu_policy: str) -> dict[str, Any]:
    cpu = {"enable": True}
    memory = {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 80, "throttlingPercent": 90, "wmarkRatio": 95}
    disk = {"readIOPS": 100_000, "writeIOPS": 100_000, "readBPS": 1 << 40, "ioWeightPercent": 50}
    blkio = {"enable": True, "blocks": [{"name": block_device(), "type": "device", "ioCfg": disk}]}
    classes = {
        "lsrClass": {"cpuQOS": {**cpu, "groupIdentity": 2}, "memoryQOS": memory},
        "lsClass": {"cpuQOS": {**cpu, "groupIdentity": 2}, "memoryQOS": memory},
        "beClass": {"cpuQOS": {**cpu, "groupIdentity": -1, "schedIdle": 1}, "memoryQOS": memory, "blkioQOS": blkio},
    }
    for qos, end in (("lsrClass", 100), ("lsClass", 100), ("beClass", 30)):
        classes[qos]["resctrlQOS"] = {"enable": True, "catRangeStartPercent": 0, "catRangeEndPercent": end}
    return node_slo(
        resourceUsedThresholdWithBE={"enable": True, "cpuSuppressPolicy": suppress},
        resourceQOSStrategy={"policies": {"cpuPolicy": cpu_policy}, **classes},
        cpuBurstStrategy={"policy": "auto", "sharePoolThresholdPercent": 100},
    )


def block_device() -> str:
    """Of a disk that is there, for the limits of the policy."""
    names = sorted(path.name for path in Path("/sys/block").iterdir() if not path.name.startswith(("loop", "ram")))
    return f"/dev/{names[0]}" if names else "/dev/null"


@pytest.fixture(scope="module", params=[("cfsQuota", "coreSched"), ("cpuset", "groupIdentity")], ids=lambda one: one[0])
def agent(request: pytest.FixtureRequest, cluster: Cluster, cluster_node: Node) -> Iterator[Agent]:
    cluster.admin.delete(SLO_PATH)
    cluster.admin.create(slo(*request.param))
    note(cluster, {"node.koordinator.sh/cpu-normalization-ratio": f"{RATIO:.2f}"})
    made = Agent(
        cluster,
        cluster_node,
        "-feature-gates=" + ",".join(f"{gate}=true" for gate in GATES.split(",")),
        f"-runtime-hooks-nri-socket-path={cluster.sandbox.work}/nri.sock",
        "-idle-on-be-pods",
        kubelet_root=cluster_node.root,
    ).start()
    made.until("NRI is there", lambda: "nri.synchronized" in made.text(), 30)
    yield made
    made.stop()
    note(cluster, {"node.koordinator.sh/cpu-normalization-ratio": None, "node.koordinator.sh/reservation": None})
    cluster.admin.delete(SLO_PATH)


def note(cluster: Cluster, annotations: dict[str, str | None]) -> None:
    cluster.admin.must("PATCH", NODE, {"metadata": {"annotations": annotations}}, MERGE_PATCH)


class Witness:
    """What kubelet and containerd say from now on, and pods to take away at the end."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster, self.node = cluster, node
        self.asked: list[dict[str, Any]] = []
        self.made: list[dict[str, Any]] = []
        self._begun = {name: log.stat().st_size for name, log in self._logs()}

    def run(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(manifest)
        self.made.append(self.node.run(manifest, PATIENCE_S))
        return self.made[-1]

    def end(self, made: dict[str, Any]) -> None:
        self.made.remove(made)
        self.node.remove(made)

    def close(self) -> None:
        for manifest in self.asked:
            self.cluster.admin.delete(path_of(manifest))
        self.node.settle()

    def complaints(self) -> list[str]:
        found = []
        for name, log in self._logs():
            with log.open("rb") as file:
                file.seek(self._begun[name])
                lines = file.read().decode(errors="replace").splitlines()
            found += [f"{name}: {line}" for line in lines if OURS.search(line) and GONE not in line]
        return found

    def failed(self) -> list[str]:
        """Pods that do not run, or whose containers were started again."""
        found = []
        for made in self.made:
            status = self.cluster.admin.get(path_of(made))["status"]
            rows = status["containerStatuses"]
            if status["phase"] != "Running" or any(row["restartCount"] or not row["ready"] for row in rows):
                found.append(f"{made['metadata']['name']}: {json.dumps(status)[:1000]}")
        return found

    def _logs(self) -> Iterator[tuple[str, Path]]:
        for name in ("kubelet", "containerd"):
            yield name, self.cluster.sandbox.work / f"{name}.log"


@pytest.fixture
def witness(cluster: Cluster, cluster_node: Node) -> Iterator[Witness]:
    cluster_node.settle()
    made = Witness(cluster, cluster_node)
    yield made
    made.close()


def online(name: str, cpu: str = "200m", **more: Any) -> dict[str, Any]:
    return pod(
        name, {"cpu": "0", "memory": "32Mi"}, {"cpu": cpu, "memory": "64Mi"},  # exclusive pods take all there is
        labels={"koordinator.sh/qosClass": "LS"}, **more,
    )  # fmt: skip


def exclusive(name: str) -> dict[str, Any]:
    return pod(name, {}, {"cpu": "1", "memory": "32Mi"})


def batch(name: str) -> dict[str, Any]:
    amounts = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "256Mi"}
    spec = json.dumps({"containers": {"main": {"requests": amounts, "limits": amounts}}})
    labels = {"koordinator.sh/qosClass": "BE"}
    return pod(name, labels=labels, annotations={"node.koordinator.sh/extended-resource-spec": spec})


def lsr(name: str, cpuset: str) -> dict[str, Any]:
    labels, status = {"koordinator.sh/qosClass": "LSR"}, json.dumps({"cpuset": cpuset})
    annotations = {"scheduling.koordinator.sh/resource-status": status}
    return pod(name, {}, {"cpu": "1", "memory": "32Mi"}, labels=labels, annotations=annotations)


def value(group: str, file: str) -> str:
    return (guard.CGROUPS / file.partition(".")[0] / group / file).read_text().strip()


def scaled_us(quota_us: int) -> str:
    return str(-(-quota_us * 100 // 120))


def at_work(agent: Agent, node: Node, web: dict[str, Any], job: dict[str, Any]) -> None:
    """All of ours that shows on this machine is in the kernel."""
    main, whole = node.container_group(web), node.group(job)
    agent.until("normalized", lambda: value(main, "cpu.cfs_quota_us") == scaled_us(20_000), 20)
    agent.until("burst", lambda: int(value(main, "cpu.cfs_burst_us")) > 0, 20)
    agent.until("burst of the pod", lambda: int(value(node.group(web), "cpu.cfs_burst_us")) > 0, 20)
    memory = node.container_group(job)
    agent.until("batch memory", lambda: value(memory, "memory.limit_in_bytes") == str(256 << 20), 20)
    agent.until("idle", lambda: value(whole, "cpu.idle") == "1", 20)
    root = whole.rpartition("/")[0]
    agent.until("disk", lambda: "100000" in value(root, "blkio.throttle.read_iops_device"), 20)


def resize(cluster: Cluster, made: dict[str, Any], cpu: str, memory: str = "64Mi") -> None:
    amounts = {"requests": {"cpu": "0", "memory": "32Mi"}, "limits": {"cpu": cpu, "memory": memory}}
    patch = {"spec": {"containers": [{"name": "main", "resources": amounts}]}}
    cluster.admin.must("PATCH", f"{path_of(made)}/resize", patch, "application/strategic-merge-patch+json")


def resized(cluster: Cluster, made: dict[str, Any]) -> bool:
    """The kubelet is done. (The limit in its status is what the runtime tells it, the scaled one.)"""
    found = cluster.admin.get(path_of(made))
    going = [one for one in found["status"]["conditions"] if one["type"].startswith("PodResize")]
    return found["status"].get("observedGeneration") == found["metadata"]["generation"] and not going


def test_exclusive_pods_come_and_go(cluster_node: Node, agent: Agent, witness: Witness) -> None:
    web, job = witness.run(online("web")), witness.run(batch("job"))
    witness.run(pod("plain"))
    at_work(agent, cluster_node, web, job)
    for number in range(2):
        one = witness.run(exclusive(f"own-{number}"))
        taken = value(cluster_node.container_group(one), "cpuset.cpus")
        assert value(cluster_node.container_group(one), "cpu.cfs_quota_us") == "-1"
        agent.until("others leave its CPU", lambda own=taken: own not in cpus_of(cluster_node, (web, job)), 30)  # type: ignore[misc]
        late = witness.run(batch(f"late-{number}"))
        assert value(cluster_node.container_group(one), "cpu.cfs_quota_us") == "-1"
        assert witness.failed() == []
        for made in (late, one):
            witness.end(made)
        cluster_node.settle()
    mine = witness.run(lsr("pinned", "1"))
    agent.until("no quota", lambda: value(cluster_node.container_group(mine), "cpu.cfs_quota_us") == "-1", 20)
    assert value(cluster_node.container_group(mine), "cpuset.cpus") == "1"
    assert witness.failed() == []
    assert witness.complaints() == []


def cpus_of(node: Node, pods: tuple[dict[str, Any], ...]) -> set[str]:
    texts = (value(node.container_group(made), "cpuset.cpus") for made in pods)
    spans = [part.split("-") for text in texts for part in text.split(",")]
    return {str(n) for first, *last in spans for n in range(int(first), int((last or [first])[0]) + 1)}


def test_a_pod_is_resized_in_place(cluster: Cluster, cluster_node: Node, agent: Agent, witness: Witness) -> None:
    """Up, and down below the burst that was set beside the old quota."""
    web, job = witness.run(online("web")), witness.run(batch("job"))
    at_work(agent, cluster_node, web, job)
    main, whole = cluster_node.container_group(web), cluster_node.group(web)
    for cpu, memory in (("400m", "96Mi"), ("100m", "48Mi"), ("300m", "64Mi")):
        begun_s = time.monotonic()
        resize(cluster, web, cpu, memory)
        quota_us = int(cpu.removesuffix("m")) * 100
        either = (str(quota_us), scaled_us(quota_us))  # for a while after a change it is left to the kubelet
        agent.until("its quota", lambda known=either: value(main, "cpu.cfs_quota_us") in known, PATIENCE_S)  # type: ignore[misc]
        cluster.sandbox.wait(f"resize to {cpu}", lambda: resized(cluster, web), PATIENCE_S, "kubelet")
        print(f"\nresized to {cpu} in {time.monotonic() - begun_s:.1f} s")
        assert value(main, "cpu.cfs_quota_us") in either
        assert int(value(whole, "cpu.cfs_quota_us")) >= int(scaled_us(quota_us))
        assert witness.complaints() == []
    agent.until("burst again", lambda: int(value(main, "cpu.cfs_burst_us")) == 30_000 * 100 // 120, 60)
    agent.until("scaled again", lambda: value(main, "cpu.cfs_quota_us") == scaled_us(30_000), 60)
    assert witness.failed() == []
    assert witness.complaints() == []


def test_kubelet_and_containerd_are_restarted(
    cluster: Cluster, cluster_node: Node, agent: Agent, witness: Witness
) -> None:
    web, job, own = witness.run(online("web")), witness.run(batch("job")), witness.run(exclusive("own"))
    at_work(agent, cluster_node, web, job)
    cluster_node.stop_kubelet()
    cluster_node.start_kubelet(keep_cpus=True)
    before = agent.text().count("nri.synchronized")
    cluster_node.restart_containerd()
    agent.until("NRI is there again", lambda: agent.text().count("nri.synchronized") > before, 30)
    cluster.sandbox.wait("node Ready", cluster_node.ready, 60, "kubelet")
    witness.end(own)
    cluster_node.settle(60)
    witness.run(exclusive("next"))
    witness.run(batch("later"))
    at_work(agent, cluster_node, web, job)
    assert witness.failed() == []
    assert witness.complaints() == []


def test_best_effort_begins_beside_reserved_cpus(cluster: Cluster, agent: Agent, witness: Witness) -> None:
    """The kubelet's shared CPUs hold those that koordinator reserves: a parent without them would refuse them."""
    note(cluster, {"node.koordinator.sh/reservation": json.dumps({"reservedCPUs": "0"})})
    agent.until("it is known", lambda: agent.ask("/v1/status")["node"]["reserved_mcpu"] >= 1000, 20)
    ticks = agent.metric("ticks_total")
    agent.until("it is acted on", lambda: agent.metric("ticks_total") >= ticks + 2, 20)
    witness.run(batch("beside"))
    witness.run(pod("plain"))
    assert witness.failed() == []
    assert witness.complaints() == []
