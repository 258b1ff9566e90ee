"""What counting costs: one pass over the counters of 250 containers, opening them, and what the counted work pays.

    python bench/perf.py [--containers 250] [--passes 50] [--output table|json]

Root; scratch cgroups in the unified hierarchy, removed at the end. The pass reads all groups of all CPUs, kept open.
"cost of being counted": context switches per second of two tasks in two groups that wake each other, with and without
counters on, in alternation. README.md says what would make the figures invalid.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from koordlet.kernel.host import Host
from koordlet.model.cpuset import CpuSet
from koordlet.sense.counts import CountsMeter
from koordlet.sense.sampler import raise_descriptor_limit

PING = """
import os, sys, time
rounds = int(sys.argv[1])
a, b = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(a[1])
    with open(sys.argv[3] + "/cgroup.procs", "w") as file:
        file.write("0")
    while os.read(a[0], 1):
        os.write(b[1], b"x")
    os._exit(0)
with open(sys.argv[2] + "/cgroup.procs", "w") as file:
    file.write("0")
os.close(a[0])
begun = time.perf_counter()
for _ in range(rounds):
    os.write(a[1], b"x")
    os.read(b[0], 1)
print(time.perf_counter() - begun)
"""


@dataclass(frozen=True)
class Result:
    """Times are medians. descriptors: kept open. switch_cost_us: added to a hand-over between two counted groups."""

    containers: int
    cpus: int
    events: tuple[str, ...]
    descriptors: int
    open_us_per_container: float
    pass_us: float
    pass_us_range: tuple[float, float]
    switch_plain_us: float
    switch_counted_us: float


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--containers", type=int, default=250)
    parse.add_argument("--passes", type=int, default=50)
    parse.add_argument("--rounds", type=int, default=20000, help="hand-overs per measurement")
    parse.add_argument("--output", choices=("table", "json"), default="table")
    args = parse.parse_args()
    host = Host.preset("host")
    unified = host.unified_dir("")
    if os.geteuid() != 0 or unified is None or not os.access(unified, os.W_OK):
        print("bench/perf.py: needs root and a writable unified hierarchy", file=sys.stderr)
        return 2
    raise_descriptor_limit()
    with ExitStack() as stack:
        top = unified / f"koordlet-bench-{os.getpid()}"
        stack.callback(_remove, top)
        result = measure(host, top, unified, args)
    if result is None:
        return 2
    if args.output == "json":
        print(json.dumps(asdict(result)))
    else:
        _table(result)
    return 0


def measure(host: Host, top: Path, unified: Path, args: argparse.Namespace) -> Result | None:
    paths = [top / f"c{n}" for n in range(args.containers)]
    for path in paths:
        path.mkdir(parents=True)
    names = [str(path.relative_to(unified)) for path in paths]
    cpus = CpuSet.parse(Path("/sys/devices/system/cpu/online").read_text().strip())
    plain = [_ping(args.rounds, paths[0], paths[1]) for _ in range(3)]
    meter = CountsMeter(host, interval_s=1, window_s=1)
    begun = time.perf_counter()
    meter.collect(0.0, names, cpus)
    opened_s = time.perf_counter() - begun
    if meter.unsupported:
        print(f"bench/perf.py: {meter.unsupported}", file=sys.stderr)
        return None
    counted = [_ping(args.rounds, paths[0], paths[1]) for _ in range(3)]
    slots = meter._slots  # the pass alone, without the book around it
    assert slots is not None
    passes = []
    for _ in range(args.passes):
        time.sleep(0.02)
        begun = time.process_time_ns()
        meter._read(slots)
        passes.append((time.process_time_ns() - begun) / 1e3)
    result = Result(
        containers=args.containers,
        cpus=len(cpus),
        events=meter.events,
        descriptors=meter.descriptors,
        open_us_per_container=opened_s * 1e6 / args.containers,
        pass_us=statistics.median(passes),
        pass_us_range=(min(passes), max(passes)),
        switch_plain_us=statistics.median(plain),
        switch_counted_us=statistics.median(counted),
    )
    meter.close()
    return result


def _ping(rounds: int, first: Path, second: Path) -> float:
    """us per hand-over there and back."""
    done = subprocess.run(
        [sys.executable, "-c", PING, str(rounds), str(first), str(second)], capture_output=True, text=True, check=True
    )
    return float(done.stdout) * 1e6 / rounds


def _remove(top: Path) -> None:
    deadline = time.monotonic() + 5
    while top.exists() and time.monotonic() < deadline:
        for path in [*top.iterdir(), top]:
            with suppress(OSError):  # a child that is still dying
                path.rmdir()
        time.sleep(0.01)


def _table(r: Result) -> None:
    print(f"{r.containers} containers, {r.cpus} CPUs, events {' '.join(r.events)}: {r.descriptors} descriptors kept")
    print(f"  one pass             {r.pass_us:8.0f} us CPU  ({r.pass_us_range[0]:.0f}-{r.pass_us_range[1]:.0f})")
    print(f"  opening a container  {r.open_us_per_container:8.0f} us, once in its life")
    print(f"  a hand-over          {r.switch_plain_us:8.2f} us plain, {r.switch_counted_us:.2f} us counted")


if __name__ == "__main__":
    sys.exit(main())
