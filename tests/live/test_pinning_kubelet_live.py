"""The kubelet's static CPU manager gives CPUs to pods and takes them back: nobody of ours is ever there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordlet.load.child import soon_ns
from koordlet.model.cpuset import CpuSet
from tests.live.node import CPUS, Node, until
from tests.live.threads import during, running_on

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


class Static:
    """A kubelet with the static CPU manager, of whom only the state file is there: own: a pod it gave CPUs to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.online = CpuSet.parse(Path("/sys/devices/system/cpu/online").read_text().strip())
        whole = {name: {"cpu": "1", "memory": "64Mi"} for name in ("requests", "limits")}
        self.own = node.add_pod("own", "LSR", kube="Guaranteed", resources=whole)
        self.api, self.job = node.add_pod("api", "LS"), node.add_pod("job", "BE")
        self.uid = node.pods["own"]["metadata"]["uid"]
        self.kubelet = node.tmp / "kubelet"
        self.kubelet.mkdir()
        static = {"kubelet.koordinator.sh/cpu-manager-policy": json.dumps({"policy": "static"})}
        (node.tmp / "node.json").write_text(json.dumps({"metadata": {"annotations": static}}))
        node.write_policy({"enable": True, "cpuSuppressPolicy": "cpuset", "cpuSuppressThresholdPercent": 90})
        self.args = (f"--node={node.tmp}/node.json", f"-var-lib-kubelet-dir={self.kubelet}")

    def give(self, cpus: CpuSet) -> None:
        """As the kubelet does: the whole file anew, renamed into place."""
        state = {
            "policyName": "static",
            "defaultCpuSet": str(self.online - cpus),
            "entries": {self.uid: {"main": str(cpus)}} if cpus else {},
            "checksum": 1,
        }
        self.put(json.dumps(state))

    def put(self, text: str) -> None:
        fresh = self.kubelet / ".state"
        fresh.write_text(text)
        fresh.rename(self.kubelet / "cpu_manager_state")

    def cpus(self, target: str) -> CpuSet:
        return CpuSet.parse(self.node.cpuset(target))


@pytest.mark.skipif(CPUS < 2, reason="one CPU for the kubelet's pod, one for the others")
def test_the_kubelets_cpus_change_under_running_pods(node: Node) -> None:
    """From the first tick that began after the change on nobody else is allowed there, and nobody else runs there."""
    static = Static(node)
    first, second = CpuSet((max(static.online),)), CpuSet((min(static.online),))
    static.give(first)
    children = [node.prepare(target, 1.0, 600, threads=2) for target in (static.api, static.job)]
    for child in children:  # both are there before one spins: an emulated guest starts nothing beside it
        child.go(soon_ns(0))
    load = [child.pid for child in children]
    before = node.raw(static.own, "cpuset.cpus")
    with node.agent(*static.args) as agent:
        until("the kubelet's CPU is left alone", lambda: not static.cpus(static.job) & first, 30, agent.text)
        for given, text in ((second, ""), (second, "{"), (CpuSet(), ""), (first, "")):
            old, shared = static.cpus(static.api), static.online - given
            static.put(text) if text else static.give(given)
            for _ in during(agent, 2):  # the tick under way may have looked already
                # The order of writes has both together for a moment, so that no child ever exceeds its parent.
                assert static.cpus(static.api) in (old, old | shared, shared)
            for _ in during(agent, 1):
                assert static.cpus(static.api) == shared, agent.text()
                assert static.cpus(static.job) <= shared, agent.text()
                assert static.cpus(static.job), "an empty set means all of the parent's"
                assert not {cpu for pid in load for cpu in running_on(pid)} & set(given)
                assert node.raw(static.own, "cpuset.cpus") == before, "the kubelet's own pod is the kubelet's"
        assert agent.stop() == 0
