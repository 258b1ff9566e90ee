"""What a large machine costs: finding its CPUs, dividing them into pools, giving some away, planning to move them.

    python bench/cpus.py [--sockets 4] [--cores 64] [--limit-ms 50] [--output table|json]

On a copied sysfs of that many CPUs (two threads per core, an L3 per eight cores). README.md has the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from koordlet.decide.pinning.assign import assign
from koordlet.decide.pinning.defragment import make_plan
from koordlet.decide.pinning.machine import machine
from koordlet.decide.pools import share_pools
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.topology import read_topology
from koordlet.model.view import NodeInfo
from tests.hosts.tree import HostTree, numa, proc
from tests.unit.decide.pinning.test_assign import workload

PASSES = 15
PODS = 60


@dataclass(frozen=True)
class Figures:
    """Milliseconds of CPU time, medians. sum_ms: what a changed machine costs a tick (discovery, pools, one
    allocation). yardstick_ms: one read of each file of the copied sysfs that tells of CPUs, caches and nodes."""

    cpus: int
    discovery_ms: float
    pools_ms: float
    allocation_ms: float
    filling_ms: float
    plan_ms: float
    yardstick_ms: float

    @property
    def sum_ms(self) -> float:
        return self.discovery_ms + self.pools_ms + self.allocation_ms


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sockets", type=int, default=4)
    options.add_argument("--cores", type=int, default=64, help="of each socket")
    options.add_argument("--limit-ms", type=float, default=50.0, help="of discovery, pools and one allocation")
    options.add_argument("--output", choices=("table", "json"), default="table")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(Path(place), given.sockets, given.cores)
    if given.output == "json":
        print(json.dumps({**asdict(found), "sum_ms": found.sum_ms, "load": os.getloadavg()[0]}, indent=1))
    else:
        for name, value in asdict(found).items():
            print(f"{name:14} {value:8.2f}" if isinstance(value, float) else f"{name:14} {value:8}")
        print(f"{'sum_ms':14} {found.sum_ms:8.2f}   limit {given.limit_ms:g}, load {os.getloadavg()[0]:.1f}")
    return 0 if found.sum_ms <= given.limit_ms else 1


def measure(place: Path, sockets: int, cores: int) -> Figures:
    tree = copied(place, sockets, cores)
    files = [path for path in (tree.root / "sys/devices/system").rglob("*") if path.is_file()]
    shape = read_topology(tree.host)
    node = NodeInfo(topology=shape)
    # As many as fit: one after the other, then every second one leaves, and half as many come that are twice as large.
    size = max(2, len(shape.online) // PODS // 2 * 2)
    everybody = [workload(f"w{number:03}", size) for number in range(PODS)]
    full = assign(everybody, {}, node)
    left = everybody[::2]
    large = [workload(f"x{number:03}", 2 * size) for number in range(PODS // 4)]
    scattered = assign([*left, *large], assign(left, full.held, node).held, node)
    pinned = [replace(pod, cpuset=scattered.held[pod.uid].cpus) for pod in left]
    machine(shape)  # once per topology
    return Figures(
        cpus=len(shape.online),
        discovery_ms=timed(lambda: read_topology(tree.host)),
        pools_ms=timed(lambda: share_pools(shape, pinned, node)),
        allocation_ms=timed(lambda: assign(everybody, {k: v for k, v in full.held.items() if k != "w030"}, node)),
        filling_ms=timed(lambda: assign(everybody, {}, node)),
        plan_ms=timed(lambda: make_plan([*left, *large], scattered.held, node), 3),
        yardstick_ms=timed(lambda: [path.read_bytes() for path in files]),
    )


def timed(work: Callable[[], object], passes: int = PASSES) -> float:
    """Median, after one pass that is not counted."""
    work()
    seen = []
    for _ in range(passes):
        begun = time.process_time()
        work()
        seen.append((time.process_time() - begun) * 1e3)
    return statistics.median(seen)


def copied(place: Path, sockets: int, cores: int) -> HostTree:
    """sysfs as x86 numbers it: all first threads, then all second ones; one NUMA node per socket."""
    count = sockets * cores
    system: dict[str, object] = {"online": f"0-{2 * count - 1}\n", "present": f"0-{2 * count - 1}\n"}
    for cpu in range(2 * count):
        core = cpu % count
        siblings = f"{core},{core + count}\n"
        first = core // 8 * 8
        sharing = f"{first}-{first + 7},{first + count}-{first + count + 7}\n"
        system[f"cpu{cpu}"] = {
            "topology": {
                "physical_package_id": f"{core // cores}\n",
                "core_id": f"{core % cores}\n",
                "core_cpus_list": siblings,
                "thread_siblings_list": siblings,
            },
            "cache": {
                f"index{index}": {"level": level, "type": kind, "id": f"{number}\n", "shared_cpu_list": by}
                for index, (level, kind, number, by) in enumerate(
                    [
                        ("1\n", "Data\n", core, siblings),
                        ("1\n", "Instruction\n", core, siblings),
                        ("2\n", "Unified\n", core, siblings),
                        ("3\n", "Unified\n", core // 8, sharing),
                    ]
                )
            },
        }
    nodes = {
        socket: (f"{socket * cores}-{(socket + 1) * cores - 1},"
                 f"{count + socket * cores}-{count + (socket + 1) * cores - 1}", 256 << 20)
        for socket in range(sockets)
    }  # fmt: skip
    layout = {"sys": {"devices": {"system": {"cpu": system, "node": numa(nodes)}}}, "proc": proc(range(1), 1 << 20)}
    return HostTree(place, CgroupVersion.V2, layout)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
