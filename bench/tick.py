"""What a tick costs: CPU time of the agent's whole tick against a plain C loop over the same cgroups, in the same run.

    python bench/tick.py [--pods 110,250,500] [--passes 20] [--output table|json] [--limit 0.45]

Both are paced one second apart, so kernel data is cache-cold as in a real agent; the first pass of each block is not
counted. README.md says how the numbers come about and what would make them invalid.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from process import CAP, WIDE
from scratch import ScratchNode, why_not
from yardstick import c_loop, paced

from koordlet import daemon
from koordlet.config import flags
from koordlet.loops import Engine
from koordlet.sense.sampler import Sampler, raise_descriptor_limit
from koordlet.wiring import lifetime

BLOCK = 10


@dataclass(frozen=True)
class Result:
    """CPU ms per pass, medians; ratios to the C loop. mean_ratio: of means, as one tick in five asks for all inputs.
    writes: counted ticks that wrote a knob (about 0.8 ms more)."""

    pods: int
    cgroups: int
    passes: int
    baseline_ms: float
    baseline_range_ms: tuple[float, float]
    tick_ms: float
    tick_range_ms: tuple[float, float]
    sample_ms: float
    tick_ratio: float
    mean_ratio: float
    sample_ratio: float
    writes: int
    descriptors: int


def main() -> int:
    args = _arguments()
    if reason := why_not():
        print(f"bench/tick.py: {reason}", file=sys.stderr)
        return 2
    raise_descriptor_limit()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    results = [measure(int(pods), args.passes) for pods in args.pods.split(",")]
    if args.output == "json":
        print(json.dumps({"load_average": os.getloadavg(), "results": [asdict(r) for r in results]}, indent=2))
    else:
        _print(results)
    return int(any(result.tick_ratio > args.limit for result in results))


def measure(pods: int, passes: int) -> Result:
    """Blocks of passes of the C loop and of the agent, in turn."""
    with contextlib.ExitStack() as stack:
        node = ScratchNode(pods)
        stack.callback(node.close)
        baseline = c_loop(node, stack)
        engine, sampler, sampled = _engine(node, stack)
        lifetime.settle()
        plain: list[float] = []
        ticks: list[float] = []
        writes = 0

        def tick() -> None:
            nonlocal writes
            writes += engine.tick(time.monotonic()).apply.written > 0

        for _ in range(12):  # the first round through the rotation
            paced(tick, 1)
        sampled.clear()
        writes = 0
        while len(ticks) < passes:
            plain += paced(baseline, BLOCK + 1)[1:]
            ticks += paced(tick, BLOCK + 1)[1:]
            del sampled[len(ticks)]
        base_ms = statistics.median(plain)
        return Result(
            pods=pods,
            cgroups=len(node.measured()),
            passes=len(ticks),
            baseline_ms=base_ms,
            baseline_range_ms=(min(plain), max(plain)),
            tick_ms=statistics.median(ticks),
            tick_range_ms=(min(ticks), max(ticks)),
            sample_ms=statistics.median(sampled),
            tick_ratio=statistics.median(ticks) / base_ms,
            mean_ratio=statistics.fmean(ticks) / statistics.fmean(plain),
            sample_ratio=statistics.median(sampled) / base_ms,
            writes=writes,
            descriptors=sampler.counts().descriptors,
        )


def _engine(node: ScratchNode, stack: contextlib.ExitStack) -> tuple[Engine, Sampler, list[float]]:
    """The agent as the daemon builds it, without its loop; and the CPU ms of each sampling inside a tick."""
    (node.tmp / "policy.json").write_text(json.dumps(CAP))
    (node.tmp / "node.json").write_text(json.dumps(WIDE))
    argv = [
        *(f"--state-dir={node.tmp}/state", f"--run-dir={node.tmp}/run", f"-audit-log-dir={node.tmp}/audit"),
        *(f"--cgroup-root=/{node.root}", "--cgroup-driver=cgroupfs", "-addr=127.0.0.1:0"),
        *(f"--pods={node.tmp}/pods.json", f"--policy={node.tmp}/policy.json", f"--node={node.tmp}/node.json"),
    ]
    with _own_signals():
        agent = daemon.build(flags.parse(argv, {}), stack, lifetime.Stop())
    stack.callback(lambda: agent.executor.restore_all(time.monotonic(), "benchmark ends"))
    sampler = agent.engine.parts.sense
    assert isinstance(sampler, Sampler)
    sampled: list[float] = []
    plain = sampler.sample

    def timed(*args: Any) -> object:
        begun_ns = time.thread_time_ns()
        usage = plain(*args)
        sampled.append((time.thread_time_ns() - begun_ns) / 1e6)
        return usage

    sampler.sample = timed  # type: ignore[assignment, method-assign]
    return agent.engine, sampler, sampled


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """The daemon takes over SIGTERM and SIGINT; a benchmark keeps the usual ones."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _print(results: list[Result]) -> None:
    print(f"CPU ms per pass, paced 1 s; load average {os.getloadavg()[0]:.2f}")
    print(
        f"{'pods':>5} {'cgroups':>8} {'C loop':>20} {'tick':>20} {'ratio':>6} {'means':>6}"
        f" {'sample':>7} {'ratio':>6} {'writes':>6} {'fds':>6}"
    )
    for r in results:
        plain = f"{r.baseline_ms:.2f} ({r.baseline_range_ms[0]:.1f}-{r.baseline_range_ms[1]:.1f})"
        tick = f"{r.tick_ms:.2f} ({r.tick_range_ms[0]:.1f}-{r.tick_range_ms[1]:.1f})"
        print(
            f"{r.pods:>5} {r.cgroups:>8} {plain:>20} {tick:>20} {r.tick_ratio:>6.2f} {r.mean_ratio:>6.2f}"
            f" {r.sample_ms:>7.2f} {r.sample_ratio:>6.2f} {r.writes:>6} {r.descriptors:>6}"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", default="110,250,500", help="comma-separated numbers of pods, two containers each")
    parser.add_argument("--passes", type=int, default=20, help="counted passes of each kind, at least")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--limit", type=float, default=0.45, help="exit 1 when a tick costs more of the C loop")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
