"""Memory and descriptors of the agent with 500 pods of two containers and full sample windows."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.native.trees import Tree

ROOT = Path(__file__).parents[2]
PODS = 500
DESCRIPTORS = 4 * PODS + 3 * 2 * PODS  # four of a pod, three of a container on v1
BUDGET_KB = 64 * 1024
POLICY = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
# 310 ticks fill the windows of five minutes; with the clock in our hands that takes seconds.
SCRIPT = """
import json, os, sys, time
from contextlib import ExitStack
from koordlet.cli.run import load_agent
load_agent()
from koordlet import daemon
from koordlet.config.flags import parse
from koordlet.wiring import lifetime
with ExitStack() as stack:
    agent = daemon.build(parse(sys.argv[1:], {}), stack, lifetime.Stop())
    begun_s = time.monotonic()
    for tick in range(310):
        snapshot = agent.engine.tick(begun_s + tick)
    rows = agent.engine.parts.sense.counts().rows
    lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
    rss_kb = next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    print(json.dumps({"rss_kb": rss_kb, "rows": rows, "descriptors": len(os.listdir("/proc/self/fd"))}))
"""


def pod(number: int) -> dict[str, Any]:
    uid = f"uid-{number:04}"
    return {
        "metadata": {"name": f"pod-{number}", "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": name, "resources": {}} for name in ("main", "side")]},
        "status": {
            "phase": "Running",
            "qosClass": "BestEffort" if number % 2 else "Burstable",
            "containerStatuses": [
                {"name": name, "containerID": f"containerd://{name}-{number}", "state": {"running": {}}}
                for name in ("main", "side")
            ],
        },
    }


def test_five_hundred_pods_fit_the_budget(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < DESCRIPTORS + 200:
        pytest.skip(f"needs a limit of {DESCRIPTORS + 200} open files")
    tree = Tree(tmp_path / "node")
    for number in range(PODS):
        above = f"kubepods/{'besteffort' if number % 2 else 'burstable'}/poduid-{number:04}"
        for cgroup in (above, f"{above}/main-{number}", f"{above}/side-{number}"):
            tree.make(cgroup)
    tree.make("kubepods/besteffort")
    tree.put("cpu", "kubepods/besteffort", "cpu.shares", "2\n")
    (tmp_path / "pods.json").write_text(json.dumps({"items": [pod(number) for number in range(PODS)]}))
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    argv = [
        *(f"--state-dir={tmp_path}/state", f"--run-dir={tmp_path}/run", f"-audit-log-dir={tmp_path}/audit"),
        *("-addr=127.0.0.1:0", "--cgroup-driver=cgroupfs", f"--pods={tmp_path}/pods.json"),
        *(f"--policy={tmp_path}/policy.json", f"-cgroup-root-dir={tmp_path}/node/cgroup"),
        f"-proc-root-dir={tmp_path}/node/proc",
    ]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *argv], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == 3 * PODS + 1
    assert found["rss_kb"] <= BUDGET_KB
    assert found["descriptors"] <= DESCRIPTORS + 50
