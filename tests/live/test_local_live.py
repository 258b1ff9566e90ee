"""Declared workloads on a machine without a cluster: the real agent, standalone, in cgroups of our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordlet.load.child import soon_ns
from tests.live.node import BASE, CPUS, V2, Agent, Node, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

NODE_US = CPUS * 100_000
CAP = {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 90}


class Declared:
    """web: online by its pid file, waiting for `go`. batch/job-1 and job-2: best effort by a glob.

    Something runs in web, so the topmost cgroup with nothing but best effort is `batch`: the BE root.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.web, self.batch = f"{node.root}/web", f"{node.root}/batch"
        self.jobs = [f"{self.batch}/job-1", f"{self.batch}/job-2"]
        for target in (self.web, self.batch, *self.jobs):
            node.mkdir(target)
        node.write(self.batch, "cpu.shares", "300")
        node.write(self.jobs[0], "cpu.shares", "700")
        self.file = node.tmp / "local.d/all.json"
        self.file.parent.mkdir()
        self.burst = node.prepare(self.web, 0.9, 5, threads=CPUS)
        self.pid_file = node.tmp / "web.pid"
        self.pid_file.write_text(f"{self.burst.pid}\n")
        self.declare("BE")

    def declare(self, qos: str) -> None:
        items = [
            {"name": "web", "match": {"pidFile": str(self.pid_file)}, "qos": "LS"},
            {"name": "job", "match": {"cgroup": f"/{self.batch}/job-*"}, "qos": qos},
        ]
        part = self.file.with_name(".part")
        part.write_text(json.dumps({"kind": "LocalWorkloadList", "items": items}))
        part.rename(self.file)

    @property
    def args(self) -> tuple[str, ...]:
        return ("--mode=standalone", f"--workloads={self.file.parent}")

    def idle(self, target: str) -> str:
        return ((BASE if V2 else BASE / "cpu") / target / "cpu.idle").read_text().strip()


@pytest.fixture
def declared(node: Node) -> Declared:
    made = Declared(node)
    if not ((BASE if V2 else BASE / "cpu") / made.batch / "cpu.idle").exists():
        pytest.skip("this kernel has no cpu.idle")
    return made


def names(agent: Agent) -> set[str]:
    return {row["name"] for row in agent.ask("/v1/top")["pods"]}


def test_best_effort_is_idle_while_the_agent_runs_and_as_before_afterwards(node: Node, declared: Declared) -> None:
    first = node.knobs()
    with node.agent(*declared.args, pods=False) as agent:
        until("cpu.idle on the root", lambda: declared.idle(declared.batch) == "1", 15, agent.text)
        assert names(agent) == {"web", "job-0", "job-1"}
        assert [declared.idle(job) for job in declared.jobs] == ["0", "0"], "weights of the jobs stay theirs"
        changed = {path for path, raw in node.knobs().items() if raw != first[path]}
        assert {str(Path(path).parent).rpartition("/")[2] for path in changed} == {"batch"}
        assert agent.stop() == 0, agent.text()
    assert node.knobs() == first


def test_a_surge_of_the_declared_service_shrinks_the_cap(node: Node, declared: Declared) -> None:
    first = node.knobs()
    node.write_policy(CAP)
    with node.agent(*declared.args, pods=False) as agent:

        def enough() -> bool:
            quota = node.quota(declared.batch)
            if quota < 3 * NODE_US // 10:
                agent.skip_if_busy()
            return quota >= 3 * NODE_US // 10

        until("a quota", enough, 30, agent.explain)
        assert names(agent) == {"web", "job-0", "job-1"}
        before = node.quota(declared.batch)
        declared.burst.go(soon_ns(0))
        until("half the quota", lambda: 0 < node.quota(declared.batch) <= before // 2, 10, agent.explain)
        declared.burst.wait(60)
        low = node.quota(declared.batch)
        until("a larger quota", lambda: node.quota(declared.batch) > low, 20, agent.explain)
        assert agent.stop() == 0, agent.text()
    assert node.knobs() == first


def test_work_that_is_no_longer_best_effort_is_let_go(node: Node, declared: Declared) -> None:
    first = node.knobs()
    node.write_policy(CAP)
    with node.agent(*declared.args, pods=False) as agent:
        until("cpu.idle on the root", lambda: declared.idle(declared.batch) == "1", 15, agent.text)
        until("a quota", lambda: node.quota(declared.batch) > 0, 30, agent.explain)
        declared.declare("LS")
        until("its first bytes", lambda: node.knobs() == first, 15, agent.text)


def test_a_pid_file_of_a_dead_process_is_no_workload(node: Node, declared: Declared) -> None:
    declared.pid_file.write_text("4194304\n")  # above any pid_max
    with node.agent(*declared.args, pods=False) as agent:
        until("cpu.idle on the root", lambda: declared.idle(declared.batch) == "1", 15, agent.text)
        assert names(agent) == {"job-0", "job-1"}
