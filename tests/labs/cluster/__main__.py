"""A long-lived cluster lab by hand: `make lab-cluster`. Ends, and takes everything with it, on Enter or Ctrl-C."""

from __future__ import annotations

import contextlib
import sys

from tests.labs.cluster.fixture import missing
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.node import Node
from tests.labs.cluster.standin import StandIn

HINT = """
{parts}
Enter its network:   nsenter -t {guard} --net --mount
Administrator:       {admin}
The agent's token:   {token}
From outside, e.g. the kubelet's pods as the agent sees them:
    nsenter -t {guard} --net curl -s --cacert {ca} -H "Authorization: Bearer $(cat {token})" https://{node}:10250/pods
Pods' cgroups:       /sys/fs/cgroup/*/{name}/kubepods
Logs and state:      {work}/*.log, {work}/kubelet
A stand-in kubelet for node {stand_in} listens on {stand_in_address}:10250.
Enter or Ctrl-C ends the lab.
"""


def main() -> int:
    reason = missing()
    if reason:
        print(f"cluster lab: {reason}", file=sys.stderr)
        return 1
    cluster = Cluster().start()
    try:
        node, stand_in = Node(cluster).start(), StandIn(cluster).start()
        token = cluster.sandbox.work / "agent.token"
        token.write_text(cluster.token("koordinator-system", "koordlet", 86400))
        token.chmod(0o600)
        pair = cluster.admin_pair
        admin = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        print(
            HINT.format(
                parts=", ".join(f"{k} {v}" for k, v in cluster.versions.items()),
                guard=cluster.sandbox.guard_pid,
                admin=f"kubectl --kubeconfig {cluster.kubeconfig('admin', admin)} get nodes",
                token=token,
                ca=cluster.authority.own.certificate,
                node=node.address,
                name=cluster.sandbox.name,
                work=cluster.sandbox.work,
                stand_in=stand_in.name,
                stand_in_address=stand_in.address,
            ),
            flush=True,
        )
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.readline()
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
