"""Does anything grow? The real agent beside pods that come and go, for minutes; slopes of memory and descriptors.

    python bench/soak.py [--minutes 10] [--pods 20] [--churn 1] [--output table|json]

Every second `churn` pods of two containers are made and as many of the oldest removed. The agent caps best-effort
work, so decide, act, journal and audit take part. README.md says how to read the slopes.
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

from process import Agent, Look, look
from scratch import ScratchNode, why_not

EVERY_S = 10.0
WINDOW_S = 300.0
"""The sample rings of a pod are full after this time. Those of the node take half an hour: 192 bytes per second."""


@dataclass(frozen=True)
class Point:
    at_s: float
    rss_kb: int
    anonymous_kb: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Result:
    """Slopes by least squares, of the points after WINDOW_S (all of them in a shorter run)."""

    minutes: float
    pods: int
    replaced: int
    points: list[Point]
    anonymous_kb_per_hour: float
    descriptors_per_hour: float
    exit_code: int


def main() -> int:
    args = _arguments()
    if reason := why_not():
        print(f"bench/soak.py: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is removed
    result = soak(args.minutes, args.pods, args.churn)
    if args.output == "json":
        print(json.dumps({"load_average": os.getloadavg(), **asdict(result)}, indent=2))
    else:
        _print(result)
    return result.exit_code


def soak(minutes: float, pods: int, churn: int) -> Result:
    points: list[Point] = []
    newest = pods
    with contextlib.closing(ScratchNode(pods)) as node, contextlib.closing(Agent(node, cap=True)) as agent:
        agent.await_ready()
        begun_s = next_s = time.monotonic()
        while time.monotonic() - begun_s < minutes * 60:
            if time.monotonic() - begun_s >= len(points) * EVERY_S:
                points.append(_point(look(agent.pid), begun_s))
            for number in range(newest, newest + churn):
                node.add_pod(number)
                node.remove_pod(number - pods)
            newest += churn
            node.write_pods()
            next_s += 1.0
            time.sleep(max(0.0, next_s - time.monotonic()))
        points.append(_point(look(agent.pid), begun_s))
        exit_code = agent.stop()
    settled = [point for point in points if point.at_s >= WINDOW_S] if minutes * 60 > 1.5 * WINDOW_S else points
    return Result(
        minutes=minutes,
        pods=pods,
        replaced=newest - pods,
        points=points,
        anonymous_kb_per_hour=_slope([(p.at_s, p.anonymous_kb) for p in settled]) * 3600,
        descriptors_per_hour=_slope([(p.at_s, p.descriptors) for p in settled]) * 3600,
        exit_code=exit_code,
    )


def _point(seen: Look, begun_s: float) -> Point:
    return Point(seen.at_s - begun_s, seen.rss_kb, seen.anonymous_kb, seen.descriptors, len(seen.tasks))


def _slope(points: list[tuple[float, int]]) -> float:
    """Per second, least squares."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def _print(result: Result) -> None:
    print(f"{result.pods} pods, {result.replaced} replaced; load average {os.getloadavg()[0]:.2f}")
    print(f"{'minute':>6} {'RSS kB':>8} {'anon':>8} {'fds':>5} {'threads':>7}")
    step = max(1, len(result.points) // 10)
    for p in [*result.points[:-1:step], result.points[-1]]:
        print(f"{p.at_s / 60:>6.1f} {p.rss_kb:>8} {p.anonymous_kb:>8} {p.descriptors:>5} {p.threads:>7}")
    print(
        f"slope once the windows are full: {result.anonymous_kb_per_hour:+.0f} kB/h anonymous memory,"
        f" {result.descriptors_per_hour:+.1f} descriptors/h; exit code {result.exit_code}"
    )


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--pods", type=int, default=20, help="pods of two containers at any time")
    parser.add_argument("--churn", type=int, default=1, help="pods replaced every second")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
