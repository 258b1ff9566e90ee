"""What the agent costs as a member of a cluster: CPU, memory, start until READY, and its traffic to the API server.

    python bench/cluster.py [--pods 110,500] [--seconds 120] [--warm 30] [--output table|json] [-- AGENT FLAGS]

The real `koordlet run` with its default features, in the cluster lab (tests/labs/cluster): a real API server, a
stand-in kubelet that serves N pods of two containers with full-size objects, and their cgroups with processes in them.
README.md has the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from process import Agent, Cost, cost_between, look
from scratch import HERE, ScratchNode, why_not
from yardstick import c_loop_percent

sys.path.insert(0, str(HERE.parent))

from koordlet.cli.client import ask
from koordlet.model.places import SOCKET_FILE
from tests.labs.cluster import served
from tests.labs.cluster.agent import ACCOUNT
from tests.labs.cluster.fixture import missing
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, API_PORT, Cluster
from tests.labs.cluster.node import pod
from tests.labs.cluster.standin import NAME, StandIn


@dataclass(frozen=True)
class Result:
    """cost: over the measured time. writes_per_min, reads_per_min: calls of the API server that are no watch.
    c_loop_percent: the yardstick, after it."""

    pods: int
    ready_s: float
    ready_cpu_s: float
    seconds: float
    answer_mb: float
    writes_per_min: float
    reads_per_min: float
    cost: Cost
    c_loop_percent: float


def main() -> int:
    args = _arguments()
    if reason := why_not() or missing(("kubernetes",)):
        print(f"bench/cluster.py: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is removed
    results = []
    cluster = Cluster().start()
    try:
        stand_in = StandIn(cluster).start()
        _objects(cluster)
        for pods in args.pods.split(","):
            with contextlib.closing(ScratchNode(int(pods))) as node:
                results.append(measure(cluster, stand_in, node, args))
                if args.output == "table":
                    _print(results[-1], header=len(results) == 1)
    finally:
        cluster.stop()
    if args.output == "json":
        print(json.dumps({"load_average": os.getloadavg(), "results": [asdict(r) for r in results]}, indent=2))
    return 0


def measure(cluster: Cluster, stand_in: StandIn, node: ScratchNode, args: argparse.Namespace) -> Result:
    stand_in.serve_as_is([_full(item, stand_in.address) for item in node.items()])
    _account(cluster)
    environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(API_PORT),
        "NODE_NAME": NAME,
        "agent_mode": "hostMode",
    }
    with contextlib.closing(
        Agent(node, False, args.flags or ["--mode=k8s"], cluster.sandbox.inside, environment)
    ) as agent:
        agent.await_ready()
        time.sleep(args.warm)
        before, calls = look(agent.pid), _calls(node)
        time.sleep(args.seconds)
        after, calls_after = look(agent.pid), _calls(node)
        seconds = after.at_s - before.at_s
    reads, writes = (60 * (calls_after[kind] - calls[kind]) / seconds for kind in ("reads", "writes"))
    return Result(
        pods=len(node.items()),
        ready_s=agent.ready_s,
        ready_cpu_s=agent.ready_cpu_s,
        seconds=seconds,
        answer_mb=(stand_in.folder / "pods").stat().st_size / 1e6,
        writes_per_min=writes,
        reads_per_min=reads,
        cost=cost_between(before, after),
        c_loop_percent=c_loop_percent(node),
    )


def _full(item: dict[str, Any], address: str) -> dict[str, Any]:
    """The scratch node's pod with everything that a kubelet serves for it."""
    batch = item["status"]["qosClass"] == "BestEffort"
    requests = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"} if batch else {"cpu": "100m"}
    labels, priority = item["metadata"]["labels"], item["spec"]["priority"]
    manifest = pod(item["metadata"]["name"], requests, requests if batch else None, labels=labels, priority=priority)
    (main,) = manifest["spec"]["containers"]
    manifest["spec"]["containers"] = [main, copy.deepcopy(main) | {"name": "side"}]
    full = served.served(manifest, NAME, address)
    full["metadata"]["uid"] = item["metadata"]["uid"]
    for status, known in zip(full["status"]["containerStatuses"], item["status"]["containerStatuses"], strict=True):
        status["containerID"] = known["containerID"]
    return full


def _objects(cluster: Cluster) -> None:
    """What koord-manager makes for a node."""
    for kind in ("NodeSLO", "NodeMetric"):
        manifest = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": kind, "metadata": {"name": NAME}, "spec": {}}
        cluster.admin.create(manifest)


def _account(cluster: Cluster) -> None:
    token, authority = cluster.token(AGENT_NAMESPACE, AGENT), cluster.authority.own.certificate
    commands = [f"mkdir -p {ACCOUNT}", f"cp {authority} {ACCOUNT}/ca.crt", f"printf %s {token} > {ACCOUNT}/token"]
    cluster.sandbox.run(["sh", "-c", " && ".join(commands)])


def _calls(node: ScratchNode) -> dict[str, float]:
    text = str(ask(str(node.tmp / "run" / SOCKET_FILE), "/metrics")[1])
    counts = {"reads": 0.0, "writes": 0.0}
    for line in text.splitlines():
        if line.startswith("koordlet_api_requests_total{"):
            counts["reads" if 'verb="get"' in line else "writes"] += float(line.rpartition(" ")[2])
    return counts


def _print(r: Result, header: bool) -> None:
    if header:
        print(f"% of one core; MB; load average {os.getloadavg()[0]:.2f}")
        print(
            f"{'pods':>5} {'CPU %':>6} {'C loop':>6} {'main':>6} {'rest':>6} {'RSS':>6} {'private':>7}"
            f" {'fds':>5} {'threads':>7}"
            f" {'ready s':>8} {'(CPU s)':>8} {'writes/min':>10} {'reads/min':>9} {'answer MB':>9}"
        )
    c = r.cost
    print(
        f"{r.pods:>5} {c.cpu_percent:>6.2f} {r.c_loop_percent:>6.2f} {c.main_percent:>6.2f} {c.rest_percent:>6.2f}"
        f" {c.rss_mb:>6.1f} {c.private_mb:>7.1f} {c.descriptors:>5} {c.threads:>7} {r.ready_s:>8.2f}"
        f" {r.ready_cpu_s:>8.2f} {r.writes_per_min:>10.2f} {r.reads_per_min:>9.2f} {r.answer_mb:>9.2f}",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", default="110,500", help="comma-separated numbers of pods, two containers each")
    parser.add_argument("--seconds", type=float, default=120, help="measured time of each")
    parser.add_argument("--warm", type=float, default=30, help="time from READY until the measurement")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("flags", nargs="*", help="flags of the agent, after --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
