"""Pods' values on real kernel files and real processes, set by the real agent and given back when it stops."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from koordlet.kernel import coresched
from koordlet.kernel.host import Host
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from tests.hosts.knobs import read_knob
from tests.live.node import CPUS, Node, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
STATUS = "scheduling.koordinator.sh/resource-status"
WAIT_S = 60


def value(target: str, knob: Knob) -> object:
    return read_knob(Host.preset("host"), target, knob)


def give(node: Node, name: str, requests: dict[str, str], limits: dict[str, str] | None = None) -> None:
    """Resources of a pod's only container."""
    resources = {"requests": requests, "limits": requests if limits is None else limits}
    node.pods[name]["spec"]["containers"][0]["resources"] = resources
    node.write_pods()


def test_batch_resources_of_a_pod_that_comes_and_is_resized(node: Node) -> None:
    node.write_slo({})
    with node.agent() as agent:
        container = node.add_pod("job", "BE")
        give(node, "job", {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "256Mi"})
        pod = container.rpartition("/")[0]
        node.spin(container, 0.05, 200)

        def has(mcpu: int, size: int) -> bool:
            found = [(value(target, Knob.CPU_QUOTA), value(target, Knob.MEMORY_LIMIT)) for target in (pod, container)]
            return found == [(mcpu * 100, size << 20)] * 2

        until("the batch limits", lambda: has(1000, 256), WAIT_S, agent.text)
        give(node, "job", {"kubernetes.io/batch-cpu": "400", "kubernetes.io/batch-memory": "128Mi"})
        until("smaller ones, children first", lambda: has(400, 128), WAIT_S, agent.text)
        give(node, "job", {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "512Mi"})
        until("larger ones, parents first", lambda: has(1500, 512), WAIT_S, agent.text)
        assert "refused" not in agent.text()
        assert "knob.write_failed" not in agent.text()
        assert agent.stop() == 0
    assert value(pod, Knob.CPU_QUOTA) == -1
    assert value(container, Knob.MEMORY_LIMIT) == -1


@pytest.mark.skipif(CPUS < 2, reason="one CPU for the pinned pod, one for the others")
def test_a_pinned_pod_and_those_that_make_room(node: Node) -> None:
    node.write_slo({})
    with node.agent() as agent:
        web = node.add_pod("web", "LS")
        last = CPUS - 1
        pinned = node.add_pod("db", "LSR", annotations={STATUS: json.dumps({"cpuset": str(last)})})
        node.write(pinned, "cpu.cfs_quota_us", "50000")
        for target in (web, pinned):
            node.spin(target, 0.05, 200)
        rest = f"0-{last - 1}" if last > 1 else "0"
        until("its CPU", lambda: node.cpuset(pinned) == str(last), WAIT_S, agent.text)
        until("the others beside it", lambda: node.cpuset(web) == rest, WAIT_S, agent.text)
        until("no quota", lambda: value(pinned, Knob.CPU_QUOTA) == -1, WAIT_S, agent.text)
        node.write(pinned, "cpuset.cpus", "0")  # somebody interferes while the pod is new
        until("its CPU again", lambda: node.cpuset(pinned) == str(last), 10, agent.text)


@pytest.mark.skipif(CPUS < 2, reason="one reserved CPU, one for the others")
def test_reserved_cpus_are_nobodys_without_suppress_too(node: Node) -> None:
    """Recorded as ls-share-pool: pods, sandboxes and all of best effort leave the reserved CPU, and come back."""
    node.write_slo({})
    web, job = node.add_pod("web", "LS"), node.add_pod("job", "BE")
    pods = [target.rpartition("/")[0] for target in (web, job)]
    for pod in pods:
        node.mkdir(f"{pod}/pause")
    held = [web, f"{pods[0]}/pause", node.besteffort, pods[1], job, f"{pods[1]}/pause"]
    facts = node.tmp / "node.json"

    def reserve(cpus: str) -> None:
        annotations = {"node.koordinator.sh/reservation": json.dumps({"reservedCPUs": cpus})} if cpus else {}
        facts.write_text(json.dumps({"kind": "Node", "metadata": {"name": "n", "annotations": annotations}}))

    everywhere, rest = {node.cpuset(target) for target in held}, f"1-{CPUS - 1}" if CPUS > 2 else "1"
    reserve("0")
    with node.agent(f"--node={facts}") as agent:
        until("the rest for all", lambda: {node.cpuset(target) for target in held} == {rest}, WAIT_S, agent.text)
        reserve("")
        until("all again", lambda: {node.cpuset(target) for target in held} == everywhere, WAIT_S, agent.text)
        assert "knob.write_failed" not in agent.text()
        assert agent.stop() == 0


def test_oom_scores_of_real_processes(node: Node) -> None:
    node.write_slo({})
    batch = node.add_pod("job", "BE", annotations={"koordinator.sh/oom-score-adj": "900"})
    child = node.run_in(batch, "input()")
    path = Path(f"/proc/{child.pid}/oom_score_adj")
    before = path.read_text()
    with node.agent("--feature-gates=OOMScoreAdj=true") as agent:
        until("the score", lambda: path.read_text().strip() == "900", WAIT_S, agent.text)
        assert agent.stop() == 0
    assert path.read_text() == before


@pytest.mark.skipif(CPUS < 2, reason="one CPU for the pinned pods, one for the others")
def test_pairs_that_fight_in_the_reference_come_to_rest(node: Node) -> None:
    """Recorded as cpuset-other-qos: there burst takes back the quota that a pinned pod without label is to run without
    (seen 11), and suppress takes a pinned best-effort pod its CPU (12). With every hook and loop on, and BE on a part
    of the node as well as on all of it."""
    cpu = {"cpu": "500m"}
    free = node.add_pod("none", "", annotations={STATUS: json.dumps({"cpuset": "0"})}, resources={"limits": cpu})
    node.pods["none"]["metadata"]["labels"] = {}
    del node.pods["none"]["spec"]["priority"]
    batch = node.add_pod("be", "BE", annotations={STATUS: json.dumps({"cpuset": str(CPUS - 1)})})
    for target in (free.rpartition("/")[0], free):
        node.write(target, "cpu.cfs_quota_us", "50000")
    strategy = {"cpuBurstStrategy": {"policy": "auto"}, "cpuNormalizationStrategy": {"enable": True}}
    lend = {"enable": True, "cpuSuppressThresholdPercent": 90, "cpuSuppressPolicy": "cpuset"}
    targets = [free.rpartition("/")[0], free, batch.rpartition("/")[0], batch]

    def now() -> list[tuple[object, str]]:
        return [(value(target, Knob.CPU_QUOTA), node.cpuset(target)) for target in targets]

    def at_rest() -> bool:
        """For two ticks; those that fight write at each."""
        seen = set()
        for _ in range(22):
            seen.add(str(now()))
            time.sleep(0.1)
        return len(seen) == 1

    node.write_slo(strategy)
    with node.agent("--feature-gates=CPUNormalization=true,CPUBurst=true") as agent:
        for slo in (strategy, {**strategy, "resourceUsedThresholdWithBE": lend}, strategy):
            node.write_slo(slo)
            until("no quota", lambda: value(free, Knob.CPU_QUOTA) == -1, WAIT_S, agent.text)
            until("its CPU", lambda: node.cpuset(batch) == str(CPUS - 1), WAIT_S, agent.text)
            until("at rest", at_rest, WAIT_S, agent.text)
            assert value(free, Knob.CPU_QUOTA) == -1
            lent, own = CpuSet.parse(node.cpuset(node.besteffort)), CpuSet((CPUS - 1,))
            assert node.cpuset(free) == "0"
            assert CpuSet.parse(node.cpuset(batch)) == (own & lent or lent)  # what is not lent it cannot have
        assert "knob.write_failed" not in agent.text()
        assert agent.stop() == 0


FORK = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.mark.skipif(bool(coresched.unsupported()), reason=f"core scheduling: {coresched.unsupported()}")
def test_core_scheduling_cookies(node: Node) -> None:
    classes = {name: {"cpuQOS": {"enable": True}} for name in ("lsClass", "beClass")}
    node.write_slo({"resourceQOSStrategy": {"policies": {"cpuPolicy": "coreSched"}, **classes}})
    pods = {name: node.add_pod(name, qos) for name, qos in (("a", "LS"), ("b", "LS"), ("j", "BE"))}
    children = {name: node.run_in(target, FORK) for name, target in pods.items()}
    forked = {name: int(child.stdout.readline()) for name, child in children.items() if child.stdout}

    def cookies(name: str) -> set[int]:
        return {coresched.cookie_of(pid) for pid in (children[name].pid, forked[name])}

    with node.agent("--feature-gates=CoreSched=true") as agent:
        until("cookies", lambda: all(0 not in cookies(name) for name in pods), WAIT_S, agent.text)
        until("one for the online pods", lambda: cookies("a") == cookies("b"), WAIT_S, agent.text)
        assert len(cookies("a")) == 1
        assert cookies("j") != cookies("a"), "no batch beside online work on a core"
        late = node.run_in(pods["j"], "input()")
        until("a late process has it", lambda: coresched.cookie_of(late.pid) in cookies("j"), 30, agent.text)
        assert coresched.cookie_of(agent.process.pid) == 0
        assert agent.stop() == 0
    assert [cookies(name) for name in pods] == [{0}] * 3
