"""`NumaMeter`: CPU and memory of each NUMA node, and what the system has of them, into the rings (spec/api 1.1.3).

For reports only, so a step every 10 s is enough; it runs beside the tick, on a thread that may wait for files. Pods'
pages come round in a rotation of a few steps, new pods first. What cannot be read leaves its part out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.files import parse_numa_stat
from koordlet.kernel.host import Host
from koordlet.kernel.proc import TICKS_PER_S, node_memory, parse_meminfo, read_node_cpu
from koordlet.model.pod import Pod
from koordlet.model.topology import NumaNode
from koordlet.sense.kept import read_once

STEP_S: Final = 10.0
ROTATION: Final = 6
"""Steps until every pod's pages were read."""
MAX_STEP_S: Final = 2 * STEP_S
"""Counters further apart give no rate."""
_STAT_BYTES: Final = 65_536
"""memory.numa_stat of 32 nodes is a third of it."""
KIND: Final = "numa"
SYSTEM_KIND: Final = "system_numa"


class Mean(Protocol):
    @property
    def avg(self) -> float: ...


class Rings(Protocol):
    """Where samples go, and where the system's CPU usage comes from (store.rings.RingStore)."""

    def open(self, kind: str, ident: str, metric: str) -> int: ...
    def push(self, series: int, at_s: float, value: float) -> None: ...
    def window(self, kind: str, ident: str, metric: str, seconds: float, now_s: float) -> Mean | None: ...


class NumaMeter:
    """One thread. ids: nodes that have had a sample. errors: reads that failed."""

    def __init__(self, host: Host, rings: Rings) -> None:
        self._host, self._rings = host, rings
        self._top = host.dir("memory", "")
        self._ticks: tuple[float, dict[str, int]] | None = None
        self._pages: dict[str, Mapping[int, int]] = {}
        self._turn = 0
        self.ids: set[int] = set()
        self.errors = 0

    def step(self, nodes: Sequence[NumaNode], pods: Iterable[Pod], now_s: float) -> None:
        """One sample of every node. pods: known ones; now_s: monotonic."""
        cpu = self._cpu(nodes, now_s)
        for ident, mcpu in cpu.items():
            self._push(KIND, ident, "cpu", mcpu, now_s)
        system = self._rings.window("system", "", "cpu", 0.95 * STEP_S, now_s)
        if system is not None:
            total = sum(cpu.values())
            for ident, mcpu in cpu.items():
                self._push(SYSTEM_KIND, ident, "cpu", system.avg * mcpu / total if total else 0.0, now_s)

        watched = [pod for pod in pods if pod.active and pod.cgroup]
        self._read_pages(watched)
        known = not watched or bool(self._pages)
        for node in nodes:
            used = self._memory(node.id, alone=len(nodes) == 1)
            if used is None:
                continue
            self._push(KIND, node.id, "memory", used, now_s)
            if known:
                pages = sum(pod.get(node.id, 0) for pod in self._pages.values())
                self._push(SYSTEM_KIND, node.id, "memory", max(used - pages, 0), now_s)

    def _cpu(self, nodes: Sequence[NumaNode], now_s: float) -> dict[int, float]:
        """Milli-CPU by node; {} at the first reading. A CPU that is new or whose counter fell does not count."""
        try:
            ticks = read_node_cpu(self._host)
        except OSError:
            self.errors += 1
            self._ticks = None
            return {}
        before, self._ticks = self._ticks, (now_s, ticks)
        if before is None or not 0 < now_s - before[0] <= MAX_STEP_S:
            return {}
        elapsed_s = now_s - before[0]
        found: dict[int, float] = {}
        for node in nodes:
            names = [f"cpu{cpu}" for cpu in node.cpus]
            grown = [ticks[name] - before[1][name] for name in names if name in ticks and name in before[1]]
            found[node.id] = sum(step for step in grown if step > 0) * 1000 / TICKS_PER_S / elapsed_s
        return found

    def _memory(self, node: int, *, alone: bool) -> int | None:
        for path in (
            self._host.sys_root / f"devices/system/node/node{node}/meminfo",
            self._host.sys_root / f"bus/node/devices/node{node}/meminfo",
            *((self._host.proc_root / "meminfo",) if alone else ()),  # a kernel without NUMA
        ):
            try:
                found = node_memory(parse_meminfo(path.read_text("ascii", "replace")))
            except FileNotFoundError:
                continue
            except OSError:
                self.errors += 1
                return None
            return None if found is None else found.used_bytes
        return None

    def _read_pages(self, pods: list[Pod]) -> None:
        self._pages = {pod.cgroup: self._pages[pod.cgroup] for pod in pods if pod.cgroup in self._pages}
        self._turn = (self._turn + 1) % ROTATION
        for index, pod in enumerate(pods):
            if pod.cgroup in self._pages and index % ROTATION != self._turn:
                continue
            try:
                text = read_once(f"{self._top}/{pod.cgroup}/memory.numa_stat", _STAT_BYTES).decode("ascii", "replace")
                self._pages[pod.cgroup] = parse_numa_stat(self._host.version, text)
            except FileNotFoundError:
                self._pages.pop(pod.cgroup, None)
            except (OSError, KernelFileError):
                self.errors += 1
                self._pages.pop(pod.cgroup, None)

    def _push(self, kind: str, node: int, metric: str, value: float, now_s: float) -> None:
        self._rings.push(self._rings.open(kind, str(node), metric), now_s, value)
        self.ids.add(node)
