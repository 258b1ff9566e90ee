"""Cluster lab: a pod of a real kubelet has our values before its first instruction; a stopped agent fails none; and at
a pod's end nothing of ours is in the kubelet's way.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs.cluster.agent import Agent
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.manager import SLO_PATH, node_slo
from tests.labs.cluster.node import Node, pod
from tests.labs.cluster.test_cluster_hooks import Witness, batch, lsr, value, witness
from tests.labs.runtime import guard

__all__ = ["witness"]
pytestmark = [
    pytest.mark.lab_cluster,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(guard.CGROUPS in guard.hierarchies(), reason="the values are those of cgroup v1"),
]

READY = "nri.synchronized"
REPAIRED_S = 1.0
# What the container's first instruction sees: its own cgroup and its pod's.
FIRST = """
p=$(busybox sed -n 's/^[0-9]*:cpuset://p' /proc/self/cgroup); u=${p%/*}; c=/host/cpu
echo cpuset=$(cat /host/cpuset$p/cpuset.cpus) quota=$(cat $c$p/cpu.cfs_quota_us) shares=$(cat $c$p/cpu.shares) \\
 memory=$(cat /host/memory$p/memory.limit_in_bytes) idle=$(cat $c$u/cpu.idle) >/words/first
exec sleep 2147483647
"""


@pytest.fixture(scope="module")
def agent(cluster: Cluster, cluster_node: Node) -> Iterator[Agent]:
    cluster.admin.delete(SLO_PATH)
    cluster.admin.create(node_slo(resourceUsedThresholdWithBE={"enable": False}))
    made = Agent(
        cluster,
        cluster_node,
        f"-runtime-hooks-nri-socket-path={cluster.sandbox.work}/nri.sock",
        "-idle-on-be-pods",
        kubelet_root=cluster_node.root,
    ).start()
    made.until("NRI is there", lambda: READY in made.text(), 30)
    yield made
    made.stop()
    cluster.admin.delete(SLO_PATH)


def first_words(cluster: Cluster, node: Node, pods: list[dict[str, Any]], manifest: dict[str, Any]) -> dict[str, str]:
    name = manifest["metadata"]["name"]
    words = cluster.sandbox.work / f"words-{name}"
    words.mkdir()
    places = {"host": "/sys/fs/cgroup", "words": str(words)}
    spec, (main,) = manifest["spec"], manifest["spec"]["containers"]
    spec["volumes"] = [{"name": key, "hostPath": {"path": path}} for key, path in places.items()]
    main["volumeMounts"] = [{"name": key, "mountPath": f"/{key}"} for key in places]
    main["command"] = ["/bin/busybox", "sh", "-c", FIRST]
    pods.append(node.run(manifest))
    first = words / "first"
    cluster.sandbox.wait("the first words", lambda: "idle=" in first.read_text(), 20)
    return dict(word.split("=", 1) for word in first.read_text().split())


def test_values_are_there_before_the_first_instruction(
    cluster: Cluster, cluster_node: Node, agent: Agent, pods: list[dict[str, Any]]
) -> None:
    pinned = first_words(cluster, cluster_node, pods, lsr("pinned", "1"))
    assert (pinned["cpuset"], pinned["quota"]) == ("1", "-1")
    lent = first_words(cluster, cluster_node, pods, batch("lent"))
    assert (lent["shares"], lent["quota"], lent["memory"]) == ("1024", "100000", str(256 << 20))
    assert lent["idle"] == "1"
    plain = first_words(cluster, cluster_node, pods, pod("plain", {"cpu": "0"}, {"cpu": "200m"}))
    assert (plain["shares"], plain["quota"], plain["idle"]) == ("2", "20000", "0")


def test_a_stopped_agent_fails_no_pod_and_repairs_within_a_second(
    cluster: Cluster, cluster_node: Node, agent: Agent, pods: list[dict[str, Any]]
) -> None:
    before = agent.text().count(READY)
    process = cluster.sandbox.processes["koordlet"]
    process.send_signal(signal.SIGSTOP)
    try:
        pods.append(cluster_node.run(batch("missed"), 60))
        main, whole = cluster_node.container_group(pods[0]), cluster_node.group(pods[0])
        assert value(main, "cpu.shares") == "2"
    finally:
        process.send_signal(signal.SIGCONT)

    def right() -> bool:
        shares, limit = value(main, "cpu.shares"), value(main, "memory.limit_in_bytes")
        return (shares, limit, value(whole, "cpu.idle")) == ("1024", str(256 << 20), "1")

    took_s = agent.until("what it missed", right, 20)
    print(f"\nrepaired {took_s:.2f} s after SIGCONT")
    assert took_s < REPAIRED_S
    agent.until("NRI is there again", lambda: agent.text().count(READY) > before, 30)
    pods.append(cluster_node.run(batch("next")))
    assert value(cluster_node.container_group(pods[1]), "cpu.shares") == "1024"


def test_the_volume_of_a_best_effort_pod_outlives_it(
    cluster: Cluster, cluster_node: Node, agent: Agent, witness: Witness
) -> None:
    """Until it is unmounted the kubelet keeps the pod's cgroup, and writes its weight each time it comes by."""
    manifest = batch("keeper")
    manifest["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    made = witness.run(manifest)
    whole = cluster_node.group(made)
    agent.until("it idles", lambda: value(whole, "cpu.idle") == "1", 20)
    volume = cluster_node.root / "pods" / made["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/scratch"
    cluster.sandbox.spawn("holder", ["sh", "-c", f"cd {volume} && exec sleep 2147483647"])
    try:
        witness.end(made)
        agent.until("it idles no more", lambda: value(whole, "cpu.idle") == "0", 20)
        agent.until("its own weight", lambda: value(whole, "cpu.shares") == "2", 5)
        (guard.CGROUPS / "cpu" / whole / "cpu.shares").write_text("77")
        cluster.sandbox.wait("the kubelet's visit", lambda: value(whole, "cpu.shares") == "2", 20, "kubelet")
        assert value(whole, "cpu.idle") == "0"
    finally:
        cluster.sandbox.end("holder")
    assert witness.complaints() == []
