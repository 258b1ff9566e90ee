"""Declared workloads with CPUs of their own: the real agent, real cpusets, threads that really run there only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from koordlet.model.cpuset import CpuSet
from tests.live.node import CPUS, V2, Agent, Node, koordlet, until
from tests.live.threads import during, running_on

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


def test_a_workload_gets_its_cpus_and_gives_them_back(node: Node) -> None:
    pinned = Pinned(node)
    before = node.knobs()
    with node.agent(*pinned.args, pods=False) as agent:
        until("web is pinned", lambda: len(pinned.cpus(pinned.web)) == pinned.count, 20)
        own = pinned.cpus(pinned.web)
        until("api is kept off", lambda: not pinned.cpus(pinned.api) & own, 20)
        load = node.spin(pinned.web, 1.0, 60, threads=pinned.count + 1)
        other = node.spin(pinned.api, 1.0, 60, threads=2)
        seen: tuple[set[int], set[int]] = (set(), set())
        until("both have run", lambda: all(_watch(seen, load.pid, other.pid)), 30)
        seen[0].clear(), seen[1].clear()
        for _ in range(200):
            _watch(seen, load.pid, other.pid)
        assert seen[0] <= set(own)
        assert not seen[1] & set(own)
        owners = {row["name"]: row["cpus"] for row in agent.ask("/v1/cpus")["owners"]}
        assert owners["local/web"] == str(own)
        node.stop_load()  # cgroup v2 takes no empty list back while something runs there
        agent.process.kill()
        agent.process.wait()
        with node.agent(*pinned.args, pods=False) as second:
            until("web has its old CPUs", lambda: pinned.cpus(pinned.web) == own, 20)
            assert second.stop() == 0
    assert node.knobs() == before


def test_groups_of_a_workloads_own_come_along(node: Node) -> None:
    """cgroup v1 takes no set that a child's exceeds."""
    pinned = Pinned(node)
    inner = f"{pinned.web}/inner"
    node.mkdir(inner)
    before = node.knobs()
    load = node.spin(inner, 0.5, 60)
    with node.agent(*pinned.args, "--cpuset-mems=migrate", pods=False) as agent:
        until("web is pinned", lambda: len(pinned.cpus(pinned.web)) == pinned.count, 20, agent.text)
        own = pinned.cpus(pinned.web)
        until("its memory is bound", lambda: node.read(pinned.web, "cpuset.mems").isdigit(), 20, agent.text)
        assert V2 or node.read(pinned.web, "cpuset.memory_migrate") == "1"
        for _ in during(agent, 2):
            assert pinned.cpus(inner) == own
            assert running_on(load.pid) <= set(own)
        node.stop_load()
        assert agent.stop() == 0
    assert node.knobs() == before


def _watch(seen: tuple[set[int], set[int]], *pids: int) -> list[bool]:
    for found, pid in zip(seen, pids, strict=True):
        found.update(running_on(pid))
    return [bool(found) for found in seen]


@pytest.mark.skipif(not (GUEST and CPU7.exists()), reason="takes a CPU offline: only in the kernel lab")
def test_an_unplugged_cpu_comes_back_to_its_owner(node: Node) -> None:
    pinned = Pinned(node)
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


def faults(agent: Agent, target: str) -> str:
    """Why the partition of a group is not as it should be; "" when it is."""
    rows = agent.ask("/v1/status")["knobs"]["rows"]
    return "".join(row["error"] for row in rows if (row["target"], row["knob"]) == (target, "cpuset.cpus.partition"))


@pytest.mark.skipif(not GUEST, reason="touches interrupts and the machine's top-level cgroups: only in the kernel lab")
def test_an_lse_group_becomes_a_partition_and_interrupts_keep_off(node: Node) -> None:
    lse, other = f"{node.root}-lse", f"{node.root}-other"
    node.mkdir(lse)
    try:
        file = node.tmp / "local.d/all.json"
        file.parent.mkdir()
        item = {
            "name": "lse", "match": {"cgroup": f"/{lse}"}, "qos": "LSE", "priorityClass": "koord-prod",
            "requests": {"cpu": "2", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"},
        }  # fmt: skip
        file.write_text(json.dumps({"kind": "LocalWorkloadList", "items": [item]}))
        before = {path: path.read_text() for path in Path("/proc/irq").glob("*/smp_affinity_list")}
        load = node.spin(lse, 1.0, 60, threads=1)
        node.mkdir(other)  # somebody else's, with CPUs that a partition would have to take from it
        node.write(other, "cpuset.cpus", f"0-{CPUS - 1}")
        options = ("--lse-partition=isolated", "--irq-isolation", "--cpuset-mems=migrate")
        with node.agent("--mode=standalone", f"--workloads={file.parent}", *options, pods=False) as agent:
            until("the kernel cannot make it", lambda: "invalid (" in faults(agent, lse), 30, agent.text)
            own = CpuSet.parse(node.read(lse, "cpuset.cpus"))
            assert len(own) == 2
            for _ in during(agent, 2):
                assert running_on(load.pid) <= set(own), "its plain CPU list has to do"
            node._rmtree([other])
            until("the partition is in force", lambda: node.read(lse, "cpuset.cpus.partition") == "isolated", 30)
            until("nothing is wrong any more", lambda: not faults(agent, lse), 30, agent.text)
            shared = CpuSet.parse((node.path("", "cpuset.cpus.effective")).read_text().strip())
            assert not shared & own
            until("memory is bound", lambda: node.read(lse, "cpuset.mems") != "", 20)
            until("the load runs on them", lambda: running_on(load.pid) <= set(own), 20)
            moved = {
                path for path, text in before.items() if text.strip() and CpuSet.parse(text.strip()) & own
                and not CpuSet.parse(path.read_text().strip()) & own
            }  # fmt: skip
            assert moved, "no interrupt could be moved"
            assert agent.stop() == 0
        assert {path: path.read_text() for path in before} == before
        assert node.read(lse, "cpuset.cpus.partition") == "member"
    finally:
        node.stop_load()
        node._rmtree([lse, other])


BLOCK_BYTES = 64 << 20
FILL = (
    f"import sys; block = bytearray({BLOCK_BYTES}); sys.stdout.write('full\\n'); sys.stdout.flush(); sys.stdin.read()"
)


def held_on(node: Node, target: str) -> dict[int, int]:
    """Bytes of anonymous memory by NUMA node."""
    anon = next(line for line in node.read(target, "memory.numa_stat").splitlines() if line.startswith("anon "))
    return {int(word[1 : word.index("=")]): int(word.partition("=")[2]) for word in anon.split()[1:]}


@pytest.mark.skipif(not (GUEST and CPUS >= 8), reason="needs two NUMA nodes: only in the kernel lab")
def test_memory_lands_on_the_bound_node(node: Node) -> None:
    pinned = Pinned(node)
    balancing = Path("/proc/sys/kernel/numa_balancing")
    balancing.write_text("1")  # as a machine with several nodes has it
    early = node.run_in(pinned.web, f"import os; os.sched_setaffinity(0, {{4, 5}}); {FILL}")
    assert early.stdout is not None
    assert early.stdout.readline() == b"full\n"
    assert held_on(node, pinned.web)[1] >= BLOCK_BYTES
    with node.agent(*pinned.args, "--cpuset-mems=migrate", "--numa-balancing-off", pods=False) as agent:
        until("memory is bound", lambda: node.read(pinned.web, "cpuset.mems").isdigit(), 30)
        until("nobody looks for nearer nodes", lambda: balancing.read_text() == "0\n", 5)
        bound = int(node.read(pinned.web, "cpuset.mems"))
        assert {int(cpu >= 4) for cpu in pinned.cpus(pinned.web)} == {bound} == {0}
        until("what lay on the other node has come along", lambda: held_on(node, pinned.web)[1] < 8 << 20, 20)
        assert held_on(node, pinned.web)[0] >= BLOCK_BYTES
        process = node.run_in(pinned.web, FILL)
        assert process.stdout is not None
        assert process.stdout.readline() == b"full\n"
        held = held_on(node, pinned.web)
        assert held[0] >= 2 * BLOCK_BYTES
        assert held[1] < 8 << 20
        assert agent.stop() == 0, agent.text()
    assert balancing.read_text() == "1\n"


@pytest.mark.skipif(not (GUEST and CPUS >= 8), reason="needs two NUMA nodes: only in the kernel lab")
def test_the_command_has_the_agent_move_workloads_together(node: Node) -> None:
    file = node.tmp / "local.d/all.json"
    file.parent.mkdir()
    for name in ("a", "b", "c", "d", "big"):
        node.mkdir(f"{node.root}/{name}")
    before = node.knobs()

    def declare(**cpus: str) -> None:
        items = [
            {
                "name": name, "match": {"cgroup": f"/{node.root}/{name}"}, "qos": "LSR", "priorityClass": "koord-prod",
                "requests": {"cpu": count}, "limits": {"cpu": count},
            }
            for name, count in cpus.items()
        ]  # fmt: skip
        part = file.with_name(".part")
        part.write_text(json.dumps({"kind": "LocalWorkloadList", "items": items}))
        part.rename(file)

    def owners() -> dict[str, CpuSet]:
        rows = agent.ask("/v1/cpus")["owners"]
        return {row["name"].removeprefix("local/"): CpuSet.parse(row["cpus"]) for row in rows if row["kind"] == "pod"}

    declare(a="2", b="2", c="2", d="2")
    with node.agent("--mode=standalone", f"--workloads={file.parent}", pods=False) as agent:
        until("the machine is full", lambda: len(owners()) == 4, 30, agent.text)
        declare(a="2", b="2", big="4")
        until("the large one has what is left", lambda: len(owners().get("big", ())) == 4, 30, agent.text)
        assert {cpu >= 4 for cpu in owners()["big"]} == {False, True}
        done = koordlet("pins", "defragment", "--yes", "--output", "json", "--socket", str(agent.socket))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["applied"] is True
        held = owners()
        assert len({cpu >= 4 for cpu in held["big"]}) == 1
        assert {name: CpuSet.parse(node.cpuset(f"{node.root}/{name}")) for name in held} == held
        assert sorted(cpu for cpus in held.values() for cpu in cpus) == list(range(8))
        again = koordlet("pins", "defragment", "--yes", "--socket", str(agent.socket))
        assert (again.returncode, "Nothing is gained" in again.stdout) == (0, True)
        assert agent.stop() == 0
    assert node.knobs() == before
