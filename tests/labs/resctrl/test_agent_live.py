"""The real agent, real processes in real cgroups, on the mounted lab: groups, a crash, `koordlet undo`, metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.labs.resctrl.lab import Lab
from tests.live.node import Agent, Node, until, why_not

pytestmark = pytest.mark.lab_resctrl

ANNOTATION = '{"llc":{"schemata":{"range":[0,50]}},"mb":{"schemata":{"percent":30}}}'
BE = {"beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 30, "mbaPercent": 50}}}
LIMIT_S = 30
SLEEP = "import time, threading\nthreading.Thread(target=time.sleep, args=(120,)).start()\ntime.sleep(120)"


@pytest.fixture
def node() -> Iterator[Node]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = Node("resctrl")
    try:
        yield made
    finally:
        made.close()


def members(lab: Lab, group: str) -> set[int]:
    path = lab.mount / group / "tasks"
    return {int(line) for line in path.read_text().split()} if path.exists() else set()


def threads(pid: int) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{pid}/task")}


def groups(lab: Lab) -> set[str]:
    return {p.name for p in lab.mount.iterdir() if p.is_dir()} - {"info", "mon_groups", "mon_data"}


def test_groups_crash_and_undo(resctrl: Lab, node: Node) -> None:
    batch = node.run_in(node.add_pod("job", "BE"), SLEEP)
    online = node.run_in(node.add_pod("web", "LS", annotations={"node.koordinator.sh/resctrl": ANNOTATION}), SLEEP)
    uid = node.pods["web"]["metadata"]["uid"]
    node.write_slo({"resourceQOSStrategy": BE})
    gates = "-feature-gates=Resctrl=true,ResctrlCollector=true,CPICollector=true"
    args = (
        f"-sys-fs-root-dir={resctrl.mount.parent}",
        gates,
        "-enable-resctrl-collector",
        "-resctrl-collector-interval=1s",
        "-cpi-collector-interval=1s",
        "-collect-cpi-timewindow=1s",
    )
    with node.agent(*args) as agent:
        until("BE's tasks are in BE", lambda: threads(batch.pid) <= members(resctrl, "BE"), LIMIT_S)
        assert len(threads(batch.pid)) == 2
        until("the pod's are in its own", lambda: threads(online.pid) <= members(resctrl, f"koordlet-{uid}"), LIMIT_S)
        assert "L3:0=f;1=f" in (resctrl.mount / "BE/schemata").read_text()
        assert "MB:0=30;1=30" in (resctrl.mount / f"koordlet-{uid}/schemata").read_text()
        resctrl.counter("BE", 0, "llc_occupancy", 4096)
        want = 'qos="BE"} 4096.0'
        until("occupancy in the metrics", lambda: want in exposition(agent), LIMIT_S)
        assert agent.ask("/v1/interference")["node"]
        assert agent.ask("/v1/status")["effects"]["resctrl"]["state"].keys() >= {"BE", f"koordlet-{uid}"}
        agent.process.kill()
        agent.process.wait()
    assert groups(resctrl) == {"BE", f"koordlet-{uid}"}
    undo = (
        *("undo", "--yes", f"--state-dir={node.tmp}/state", f"--run-dir={node.tmp}/run"),
        *(f"--audit-log-dir={node.tmp}/audit", f"--sys-fs-root-dir={resctrl.mount.parent}"),
    )
    done = subprocess.run([sys.executable, "-m", "koordlet", *undo], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resctrl groups put right" in done.stderr
    assert groups(resctrl) == set()
    assert threads(batch.pid) | threads(online.pid) <= members(resctrl, "")


def exposition(agent: Agent) -> str:
    log = agent.log_path.read_text(errors="replace")
    port = log.split("port=", 1)[1].split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def test_a_clean_stop_takes_all_back(resctrl: Lab, node: Node) -> None:
    batch = node.run_in(node.add_pod("job", "BE"), SLEEP)
    node.write_slo({"resourceQOSStrategy": BE})
    with node.agent(f"-sys-fs-root-dir={resctrl.mount.parent}") as agent:
        until("BE's tasks are in BE", lambda: threads(batch.pid) <= members(resctrl, "BE"), LIMIT_S)
        agent.process.terminate()
        assert agent.process.wait(30) == 0
    assert groups(resctrl) == set()


def test_observe_writes_nothing(resctrl: Lab, node: Node) -> None:
    node.run_in(node.add_pod("job", "BE"), SLEEP)
    node.write_slo({"resourceQOSStrategy": BE})
    with node.agent(f"-sys-fs-root-dir={resctrl.mount.parent}", "-observe") as agent:
        until("three ticks", lambda: agent.ask("/v1/status")["tick"]["ticks"] >= 3, LIMIT_S)
        assert groups(resctrl) == set()
