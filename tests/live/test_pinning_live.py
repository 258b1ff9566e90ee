"""Declared workloads with CPUs of their own: the real agent, real cpusets, threads that really run there only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from koordlet.model.cpuset import CpuSet
from tests.live.node import CPUS, Node, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

GUEST = bool(os.environ.get("KOORDLET_GUEST"))
CPU7 = Path("/sys/devices/system/cpu/cpu7/online")


class Pinned:
    """web: LSR with whole cores. api: LS, on what is left."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.web, self.api = f"{node.root}/web", f"{node.root}/api"
        for target in (self.web, self.api):
            node.mkdir(target)
        self.count = 2 if CPUS >= 8 else 1
        file = node.tmp / "local.d/all.json"
        file.parent.mkdir()
        cpus = str(self.count)
        items = [
            {
                "name": "web", "match": {"cgroup": f"/{self.web}"}, "qos": "LSR", "priorityClass": "koord-prod",
                "requests": {"cpu": cpus, "memory": "64Mi"}, "limits": {"cpu": cpus, "memory": "1Gi"},
                "cpu": {"bindPolicy": "FullPCPUs", "numaPolicy": "BestEffort"},
            },
            {"name": "api", "match": {"cgroup": f"/{self.api}"}, "qos": "LS"},
        ]  # fmt: skip
        file.write_text(json.dumps({"kind": "LocalWorkloadList", "items": items}))
        self.args = ("--mode=standalone", f"--workloads={file.parent}")

    def cpus(self, target: str) -> CpuSet:
        return CpuSet.parse(self.node.cpuset(target))


def running_on(pid: int) -> set[int]:
    """CPU of each thread's last run, field 39 of /proc/<pid>/task/<tid>/stat."""
    seen = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            seen.add(int((task / "stat").read_text().rpartition(")")[2].split()[36]))
        except OSError:
            continue
    return seen


def test_a_workload_gets_its_cpus_and_gives_them_back(node: Node) -> None:
    pinned = Pinned(node)
    before = node.knobs()
    load = node.spin(pinned.web, 1.0, 60, threads=pinned.count + 1)
    other = node.spin(pinned.api, 1.0, 60, threads=2)
    with node.agent(*pinned.args, pods=False) as agent:
        until("web is pinned", lambda: len(pinned.cpus(pinned.web)) == pinned.count, 20)
        own = pinned.cpus(pinned.web)
        until("api is kept off", lambda: not pinned.cpus(pinned.api) & own, 20)
        seen: tuple[set[int], set[int]] = (set(), set())
        until("both have run", lambda: all(_watch(seen, load.pid, other.pid)), 30)
        seen[0].clear(), seen[1].clear()  # what ran before the write does not count
        for _ in range(200):
            _watch(seen, load.pid, other.pid)
        assert seen[0] <= set(own)
        assert not seen[1] & set(own)
        owners = {row["name"]: row["cpus"] for row in agent.ask("/v1/cpus")["owners"]}
        assert owners["local/web"] == str(own)
        agent.process.kill()
        agent.process.wait()
        with node.agent(*pinned.args, pods=False) as second:
            until("web has its old CPUs", lambda: pinned.cpus(pinned.web) == own, 20)
            assert second.stop() == 0
    assert node.knobs() == before


def _watch(seen: tuple[set[int], set[int]], *pids: int) -> list[bool]:
    for found, pid in zip(seen, pids, strict=True):
        found.update(running_on(pid))
    return [bool(found) for found in seen]


@pytest.mark.skipif(not (GUEST and CPU7.exists()), reason="takes a CPU offline: only in the kernel lab")
def test_an_unplugged_cpu_comes_back_to_its_owner(node: Node) -> None:
    pinned = Pinned(node)
    pinned.args += ("-log-level=info",)
    with node.agent(*pinned.args, pods=False) as agent:
        until("web is pinned", lambda: len(pinned.cpus(pinned.web)) == pinned.count, 30)
        own = pinned.cpus(pinned.web)
        victim = max(own)
        switch = Path(f"/sys/devices/system/cpu/cpu{victim}/online")
        if not switch.exists():
            pytest.skip(f"cpu{victim} cannot be taken offline")
        switch.write_text("0")
        try:
            until("the map shows it gone", lambda: victim not in {c["id"] for c in agent.ask("/v1/cpus")["cpus"]}, 20)
            until("web has the rest", lambda: pinned.cpus(pinned.web) == own - CpuSet((victim,)), 20)
            assert pinned.cpus(pinned.api)
            assert not pinned.cpus(pinned.api) & own
        finally:
            switch.write_text("1")
        until("web has it again", lambda: pinned.cpus(pinned.web) == own, 20)
