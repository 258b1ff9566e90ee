"""Cluster lab: the reference's DaemonSet arguments unchanged, with its paths, as a container would see them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.hosts.official import OFFICIAL
from tests.labs.cluster.agent import Agent
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.node import Node

pytestmark = [pytest.mark.lab_cluster, pytest.mark.timeout(2400)]

ARGUMENTS = ["-addr=:9316", *OFFICIAL]
# A root of its own: everything that is there, and the host's directories under the reference's names.
ROOT = """set -e
mkdir -p {root}
mount -t tmpfs root {root}
for one in /*; do
  if [ -L $one ]; then cp -P $one {root}$one
  elif [ -d $one ]; then mkdir {root}$one; mount --rbind $one {root}$one
  fi
done
while read name source; do mkdir -p {root}/$name; mount --rbind $source {root}/$name; done <<END
host-cgroup /sys/fs/cgroup
host-sys /sys
host-sys-fs /sys/fs
host-var-run /run
host-run /run
END
mkdir -p {root}/host-var-run-koordlet {root}/metric-data {root}/prediction-checkpoints {root}/host-etc-hookserver
exec chroot {root} "$@"
"""


@pytest.fixture
def daemonset(cluster: Cluster, cluster_node: Node) -> Iterator[Agent]:
    agent = Agent(cluster, cluster_node)
    # The lab's kubelet does not own the root, so that much has to be said.
    agent.args = [*ARGUMENTS, f"--cgroup-root=/{cluster.sandbox.name}", f"-var-lib-kubelet-dir={cluster_node.root}"]
    script = ROOT.format(root=cluster.sandbox.work / "daemonset")
    agent.prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
    agent.environment = {"agent_mode": "dsMode"}
    yield agent.start()
    agent.stop()


def test_it_starts_and_sees_the_node(cluster: Cluster, daemonset: Agent) -> None:
    def answer(path: str) -> tuple[int, str]:
        with contextlib.closing(cluster.sandbox.connect("127.0.0.1", 9316, 5)) as line:
            line.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            text = b"".join(iter(lambda: line.recv(65536), b"")).decode()
        head, _, body = text.partition("\r\n\r\n")
        return int(head.split()[1]), body

    cluster.sandbox.wait("readyz", lambda: answer("/readyz")[0] == 200, 30)
    cluster.sandbox.wait("a fresh answer of the kubelet", lambda: 'path="/pods/"' in answer("/metrics")[1], 30)
    assert 'koordlet_start_time{node="lab-node"}' in answer("/metrics")[1]
    said = [line for line in daemonset.text().splitlines() if "flag.warning" in line]
    assert len(said) == len(set(said))
    assert not [line for line in daemonset.text().splitlines() if "Traceback" in line], daemonset.text()
