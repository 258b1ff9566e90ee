"""Cluster lab: two at once do not touch each other's pods, and nothing of one stays behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.cluster import served
from tests.labs.cluster.api import path_of
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, Cluster
from tests.labs.cluster.node import Node, pod
from tests.labs.cluster.sandbox import ROOT, tunables
from tests.labs.runtime import guard

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

ORPHAN = """
import json, sys
from tests.labs.cluster.sandbox import Sandbox
s = Sandbox().open()
s.spawn("sleeper", ["sleep", "2147483647"])
s.run(["mount", "-t", "tmpfs", "lab", "/mnt"])
print(json.dumps([s.name, s.processes["sleeper"].pid, s.guard_pid]), flush=True)
sys.stdin.readline()
"""


def remains(name: str) -> list[str]:
    """What is left of the lab with this name: cgroups, files, mounts, processes."""
    left = [str(tree) for tree in guard.trees(name)]
    left += [str(path) for path in Path("/tmp").glob(name) if path.exists()]
    left += [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        if name.encode() in words:
            left.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return left


def test_two_labs_at_once(cluster: Cluster, cluster_node: Node) -> None:
    before = tunables()
    ours = cluster_node.run(pod("ours"))
    other = Cluster().start()
    try:
        node = Node(other).start()
        empty = node.client(other.token(AGENT_NAMESPACE, AGENT)).get("/pods")
        assert empty == served.pod_list([])
        theirs = node.run(pod("theirs"))
        assert other.sandbox.name != cluster.sandbox.name
        names = [p["metadata"]["name"] for p in other.admin.get("/api/v1/namespaces/lab/pods")["items"]]
        assert names == ["theirs"]
        assert node.group(theirs).startswith(other.sandbox.name)
        assert tunables() == before
    finally:
        other.stop()
    assert remains(other.sandbox.name) == []
    assert tunables() == before
    after = cluster.admin.get(path_of(ours))["status"]["containerStatuses"][0]
    assert after["containerID"] == ours["status"]["containerStatuses"][0]["containerID"]
    assert after["ready"]
    cluster_node.remove(ours)


def test_hosts_interfaces_show_nothing_of_it(cluster: Cluster, cluster_node: Node) -> None:
    shown = subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, check=True).stdout
    addresses = {a["local"] for link in json.loads(shown) for a in link["addr_info"]}
    assert cluster_node.address not in addresses
    assert cluster_node.address in cluster.sandbox.run(["ip", "address"])


def test_kubelets_sysctls_stay_inside(cluster: Cluster, cluster_node: Node) -> None:
    """It set kernel.panic, as it does on every node, but a file in its place; the machine's own is whatever it was."""
    inside = "/proc/sys/kernel/panic"
    assert cluster.sandbox.run(["cat", inside]).strip() == "10"
    assert f" {inside} " in cluster.sandbox.run(["cat", "/proc/self/mounts"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_owner_leaves_nothing(number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    name, sleeper, keeper = json.loads(owner.stdout.readline())
    watched = [os.pidfd_open(pid) for pid in (sleeper, keeper)]
    try:
        owner.send_signal(number)
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()
        for descriptor in watched:  # readable once the process has ended
            assert _ended(descriptor), remains(name)
    finally:
        for descriptor in watched:
            os.close(descriptor)
    assert remains(name) == []


def _ended(descriptor: int, seconds: float = 30) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])
