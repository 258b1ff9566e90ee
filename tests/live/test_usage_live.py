"""Figures of the status socket against loads whose size is known, by the kernel's own counters."""

from __future__ import annotations

import time
from statistics import mean
from typing import Any

import pytest

from koordlet.kernel.host import Host
from koordlet.kernel.proc import TICKS_PER_S, busy_mcpu, read_node_cpu
from koordlet.load.child import soon_ns
from tests.live.node import Agent, Node, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

HOLD = (
    "import sys\n"
    "print('up', flush=True); sys.stdin.readline()\n"
    "held = b'\\1' * (64 << 20)\n"
    "print('held', flush=True); sys.stdin.readline()\n"
)
MIB = 1 << 20
HOST = Host.preset("host")


def row(agent: Agent, pod: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [row for row in agent.ask("/v1/top")["pods"] if row["name"] == pod]
    assert len(found) == 1
    return found[0]


def over_ticks(agent: Agent, ticks: int) -> list[dict[str, Any]]:
    """/v1/top of that many ticks from the next one on, in which every pod has a figure."""
    seen: dict[int, dict[str, Any]] = {}
    while len(seen) < 1 + ticks:
        answer = agent.ask("/v1/top")
        if all(row["cpu_mcpu"] is not None for row in answer["pods"]):
            seen[answer["tick"]["ticks"]] = answer
        time.sleep(0.2)
    return list(seen.values())[1:]


def mean_mcpu(answers: list[dict[str, Any]], pod: str) -> float:
    return mean(row["cpu_mcpu"]["value"] for answer in answers for row in answer["pods"] if row["name"] == pod)


def test_cpu_use_is_seen_as_the_kernel_counts_it(node: Node) -> None:
    web, job = node.add_pod("web", "LS"), node.add_pod("job", "BE")
    half, quarter = node.prepare(web, 0.5, 60), node.prepare(job, 0.25, 60)
    with node.agent() as agent:
        half.go(soon_ns(0))
        quarter.go(soon_ns(0))
        until("a figure", lambda: (row(agent, "web")["cpu_mcpu"] or {"value": 0})["value"] > 50, 30)
        ticks = read_node_cpu(HOST)["cpu"]
        begun_s, web_s, job_s = time.monotonic(), node.used_s(web), node.used_s(node.besteffort)
        answers = over_ticks(agent, 8)
        lasted_s = time.monotonic() - begun_s
        web_mcpu = (node.used_s(web) - web_s) / lasted_s * 1000
        job_mcpu = (node.used_s(node.besteffort) - job_s) / lasted_s * 1000
        whole_mcpu = busy_mcpu(ticks, read_node_cpu(HOST)["cpu"], lasted_s, TICKS_PER_S)
    seen_web, seen_job = mean_mcpu(answers, "web"), mean_mcpu(answers, "job")
    print(
        f"web {web_mcpu:.0f} milli-CPU by the kernel, {seen_web:.0f} by the agent; job {job_mcpu:.0f}, {seen_job:.0f}"
    )
    assert 100 < web_mcpu < 550, "half a CPU was asked for"
    assert seen_web == pytest.approx(web_mcpu, rel=0.15)
    assert seen_job == pytest.approx(job_mcpu, rel=0.15, abs=10)
    node_mcpu, be_mcpu = (
        mean(answer["usage"][name]["value"] for answer in answers) for name in ("node_mcpu", "be_mcpu")
    )
    assert be_mcpu == pytest.approx(seen_job, rel=0.05, abs=5), "job is all there is of best effort"
    # /proc/stat samples at timer ticks: it need not be the sum of the exact counters, but we must see what it says.
    assert whole_mcpu is not None
    assert node_mcpu == pytest.approx(whole_mcpu, rel=0.15)


def test_memory_is_seen_to_a_few_mebibytes(node: Node) -> None:
    holder = node.run_in(node.add_pod("web", "LS"), HOLD)
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    with node.agent() as agent:
        until("a figure", lambda: row(agent, "web")["memory_bytes"], 30)
        before = row(agent, "web")["memory_bytes"]["value"]
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"held\n"

        def grown() -> float:
            return float(row(agent, "web")["memory_bytes"]["value"] - before)

        until("64 MiB more", lambda: abs(grown() - 64 * MIB) < 4 * MIB, 30, lambda: f"{before} grew by {grown()}")


def test_a_throttled_container_is_seen(node: Node) -> None:
    web = node.add_pod("web", "LS")
    node.write(web, "cpu.cfs_quota_us", "20000")
    node.spin(web, 1.0, 120)
    with node.agent() as agent:
        until("a figure", lambda: (row(agent, "web")["throttled_ratio"] or {"value": 0})["value"] > 0.5, 30)
        assert mean_mcpu(over_ticks(agent, 4), "web") < 400, "its quota is 200 milli-CPU"
