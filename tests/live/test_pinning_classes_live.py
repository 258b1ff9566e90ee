"""Pods of every QoS class with running threads: nobody ever runs where its class does not belong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from koordlet.load.child import soon_ns
from koordlet.model.cpuset import CpuSet
from tests.live.node import CPUS, Agent, Node, until
from tests.live.threads import during, running_on

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
STATUS = "scheduling.koordinator.sh/resource-status"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
LARGE = CPUS >= 8
"""The kernel lab: CPUs 0-3 on NUMA node 0, 4-7 on node 1."""

SYSTEM = "0-1" if LARGE else "0"
OWN = {"lse": "2-3", "lsr": "4-5"} if LARGE else {}
EXCLUSIVE = (
    {"system": SYSTEM, "ls": "6-7", "near": "6-7", "be": "4-7"} if LARGE else {"system": "0", "ls": "1", "be": "1"}
)
SHARED = (
    {"system": SYSTEM, "ls": "0-1,6-7", "near": "6-7", "be": "0-1,4-7"}
    if LARGE
    else {"system": "0", "ls": "0-1", "be": "0-1"}
)


def pods(node: Node) -> dict[str, str]:
    """Containers by name. near: of class LS, on NUMA node 1."""
    made = {name: node.add_pod(name, name.upper()) for name in ("system", "ls", "be")}
    for name, cpus in OWN.items():
        made[name] = node.add_pod(name, name.upper(), annotations={STATUS: json.dumps({"cpuset": cpus})})
    if LARGE:
        placed = {"numaNodeResources": [{"node": 1, "resources": {"cpu": "1"}}]}
        made["near"] = node.add_pod("near", "LS", annotations={STATUS: json.dumps(placed)})
    return made


def declare(node: Node, *, exclusive: bool) -> None:
    """The node's annotation, as the file of --node has it."""
    annotations = {SYSTEM_QOS: json.dumps({"cpuset": SYSTEM, "cpusetExclusive": exclusive})}
    part = node.tmp / ".node"
    part.write_text(json.dumps({"kind": "Node", "metadata": {"name": "n", "annotations": annotations}}))
    part.rename(node.tmp / "node.json")


class Watched:
    """A thread in each of these groups that runs a quarter of the time: an emulated guest has little to give."""

    def __init__(self, node: Node, targets: dict[str, str]) -> None:
        self.node, self.targets = node, targets
        self.children = {name: node.prepare(target, 0.25, 600) for name, target in targets.items()}
        for child in self.children.values():
            child.go(soon_ns(0))

    def keep_to(self, wanted: dict[str, str], agent: Agent) -> None:
        """Everybody gets these CPUs, keeps them and runs nowhere else for two ticks and until all have been seen."""
        until(f"the CPUs of each class: {wanted}", lambda: self._cpus() == wanted, 60, agent.text)
        seen: dict[str, set[int]] = {name: set() for name in self.targets}

        def all_seen() -> bool:
            for name, child in self.children.items():
                seen[name] |= running_on(child.pid)
            return all(seen.values())

        for _ in during(agent, 2):
            all_seen()
            assert self._cpus() == wanted
        until("everybody has run", all_seen, 30, lambda: str(seen))
        assert {name for name, cpus in wanted.items() if not seen[name] <= set(CpuSet.parse(cpus))} == set(), seen

    def _cpus(self) -> dict[str, str]:
        return {name: self.node.cpuset(target) for name, target in self.targets.items()}


@pytest.mark.skipif(CPUS < 2 or 2 < CPUS < 8, reason="laid out for two CPUs and for the kernel lab's eight")
def test_every_class_runs_only_on_its_cpus(node: Node) -> None:
    """System-QoS pods on the System-QoS CPUs and, as long as these are exclusive, the other classes on the rest."""
    targets = pods(node)
    node.write_slo({})
    declare(node, exclusive=True)
    watched = Watched(node, targets)
    before = node.knobs()
    with node.agent(f"--node={node.tmp}/node.json") as agent:
        for exclusive, shared in ((False, SHARED), (True, EXCLUSIVE)):
            declare(node, exclusive=exclusive)
            watched.keep_to({**OWN, **shared}, agent)
            owners = {row["name"]: row["cpus"] for row in agent.ask("/v1/cpus")["owners"]}
            named = {f"default/{name}": cpus for name, cpus in OWN.items()} | ({"system": SYSTEM} if exclusive else {})
            assert {name: cpus for name, cpus in owners.items() if name != "shared"} == named
        assert "knob.write_failed" not in agent.text()
        node.stop_load()  # cgroup v2 takes no empty list back while something runs there
        assert agent.stop() == 0
    assert node.knobs() == before


@pytest.mark.skipif(
    not (LARGE and os.environ.get("KOORDLET_GUEST")), reason="takes a CPU offline: only in the kernel lab"
)
def test_a_cpu_of_an_lsr_pod_goes_offline_and_comes_back(node: Node) -> None:
    """It is nobody else's meanwhile, and the pod's again once it is back."""
    targets = pods(node)
    node.write_slo({})
    declare(node, exclusive=True)
    watched = Watched(node, {name: targets[name] for name in ("lsr", "ls", "be")})
    switch = Path("/sys/devices/system/cpu/cpu5/online")
    with node.agent(f"--node={node.tmp}/node.json") as agent:
        try:
            for there, wanted in (
                ("1", {"lsr": "4-5", "ls": "6-7", "be": "4-7"}),
                ("0", {"lsr": "4", "ls": "6-7", "be": "4,6-7"}),
                ("1", {"lsr": "4-5", "ls": "6-7", "be": "4-7"}),
            ):
                switch.write_text(there)
                watched.keep_to(wanted, agent)
        finally:
            switch.write_text("1")
        assert agent.stop() == 0
