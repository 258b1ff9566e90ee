"""What the running agent costs, everything included: CPU, memory, descriptors, wake-ups, and the time until READY.

    python bench/daemon.py [--pods 110,250,500] [--policy off,cap] [--seconds 60] [--warm 15] [--output table|json]

The real `koordlet run`, standalone, on a scratch node of N pods x 2 containers: once with its default policy (suppress
off) and once with a cfsQuota cap (suppress on, the sentinel looks every 20 ms). README.md has the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass

from process import Agent, Cost, cost_between, look
from scratch import ScratchNode, why_not
from yardstick import c_loop_percent


@dataclass(frozen=True)
class Result:
    """cost: over the measured time. ready_cpu_s: CPU of the whole start. c_loop_percent: the yardstick, after it."""

    pods: int
    cgroups: int
    policy: str
    ready_s: float
    ready_cpu_s: float
    seconds: float
    cost: Cost
    c_loop_percent: float


def main() -> int:
    args = _arguments()
    if reason := why_not():
        print(f"bench/daemon.py: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is removed
    results = []
    for pods in args.pods.split(","):
        with contextlib.closing(ScratchNode(int(pods))) as node:
            for policy in args.policy.split(","):
                results.append(measure(node, int(pods), policy, args.warm, args.seconds))
                if args.output == "table":
                    _print(results[-1], header=len(results) == 1)
    if args.output == "json":
        print(json.dumps({"load_average": os.getloadavg(), "results": [asdict(r) for r in results]}, indent=2))
    return 0


def measure(node: ScratchNode, pods: int, policy: str, warm_s: float, seconds: float) -> Result:
    with contextlib.closing(Agent(node, cap=policy == "cap")) as agent:
        agent.await_ready()
        time.sleep(warm_s)
        before = look(agent.pid)
        time.sleep(seconds)
        after = look(agent.pid)
    return Result(
        pods=pods,
        cgroups=len(node.measured()),
        policy=policy,
        ready_s=agent.ready_s,
        ready_cpu_s=agent.ready_cpu_s,
        seconds=after.at_s - before.at_s,
        cost=cost_between(before, after),
        c_loop_percent=c_loop_percent(node),
    )


def _print(r: Result, header: bool) -> None:
    if header:
        print(f"% of one core; MB; load average {os.getloadavg()[0]:.2f}")
        print(
            f"{'pods':>5} {'policy':>6} {'CPU %':>6} {'C loop':>6} {'main':>6} {'sentinel':>8} {'rest':>6}"
            f" {'RSS':>6} {'PSS':>6} {'private':>7} {'fds':>5} {'threads':>7} {'switches/s':>10}"
            f" {'ready s':>8} {'(CPU s)':>8}"
        )
    c = r.cost
    print(
        f"{r.pods:>5} {r.policy:>6} {c.cpu_percent:>6.2f} {r.c_loop_percent:>6.2f} {c.main_percent:>6.2f}"
        f" {c.sentinel_percent:>8.2f} {c.rest_percent:>6.2f} {c.rss_mb:>6.1f} {c.pss_mb:>6.1f} {c.private_mb:>7.1f}"
        f" {c.descriptors:>5} {c.threads:>7} {c.switches_per_s:>10.1f} {r.ready_s:>8.2f} {r.ready_cpu_s:>8.2f}",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", default="110,250,500", help="comma-separated numbers of pods, two containers each")
    parser.add_argument("--policy", default="off,cap", help="off: the default; cap: cfsQuota suppression")
    parser.add_argument("--seconds", type=float, default=60, help="measured time of each")
    parser.add_argument("--warm", type=float, default=15, help="time from READY until the measurement")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
