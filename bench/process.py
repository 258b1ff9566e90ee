"""The real agent as a child process of a benchmark, and what it costs by /proc."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scratch import HERE, ScratchNode

READY_LIMIT_S = 60.0
CAP = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cfsQuota",
    }
}
WIDE = {"status": {"capacity": {"cpu": "64"}}}
"""A node so wide that a busy machine leaves something to lend, so the sentinel looks, and that its noise stays below
the least step of the quota (1 % of the node), so a tick is a steady one."""


@dataclass(frozen=True)
class Task:
    """One thread since its start."""

    name: str
    cpu_ns: int
    switches: int


@dataclass(frozen=True)
class Look:
    """One process at one moment. Memory in KiB, of /proc/PID/smaps_rollup."""

    at_s: float
    tasks: dict[int, Task]
    rss_kb: int
    pss_kb: int
    private_kb: int
    anonymous_kb: int
    descriptors: int


@dataclass(frozen=True)
class Cost:
    """Percent of one core between two looks, by thread; memory, descriptors and threads at the second."""

    cpu_percent: float
    main_percent: float
    sentinel_percent: float
    rest_percent: float
    switches_per_s: float
    rss_mb: float
    pss_mb: float
    private_mb: float
    descriptors: int
    threads: int


class Agent:
    """`koordlet run` on a scratch node, its folders in the node's. cap: with a cfsQuota policy, else the default.

    args: instead of reading the node's pods from a file. wrap, env: what runs it where, and with what besides ours.
    """

    def __init__(
        self,
        node: ScratchNode,
        cap: bool,
        args: Sequence[str] = (),
        wrap: Callable[[list[str]], list[str]] = list,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.ready_s = self.ready_cpu_s = 0.0
        self._log = (node.tmp / "agent.log").open("wb")
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell = node.tmp / "notify"
        bell.unlink(missing_ok=True)
        self._bell.bind(str(bell))
        self._bell.settimeout(READY_LIMIT_S)
        argv = [
            *(f"--state-dir={node.tmp}/state", f"--run-dir={node.tmp}/run", f"-audit-log-dir={node.tmp}/audit"),
            *(f"--cgroup-root=/{node.root}", "--cgroup-driver=cgroupfs", "-addr=127.0.0.1:0"),
            *(args or (f"--pods={node.tmp}/pods.json",)),
        ]
        if cap:
            (node.tmp / "policy.json").write_text(json.dumps(CAP))
            (node.tmp / "node.json").write_text(json.dumps(WIDE))
            argv += [f"--policy={node.tmp}/policy.json", f"--node={node.tmp}/node.json"]
        self._begun_s = time.monotonic()
        self._process = subprocess.Popen(
            wrap([sys.executable, "-m", "koordlet", "run", *argv]),
            env={**os.environ, "NOTIFY_SOCKET": str(bell), **(env or {})},
            cwd=HERE.parent,
            stdout=self._log,
            stderr=self._log,
        )
        self.pid = self._process.pid

    def await_ready(self) -> None:
        """Until READY=1, which comes after the first tick."""
        while b"READY=1" not in self._bell.recv(4096).split(b"\n"):
            pass
        self.ready_s = time.monotonic() - self._begun_s
        self.ready_cpu_s = sum(task.cpu_ns for task in look(self.pid).tasks.values()) / 1e9

    def stop(self) -> int:
        """Clean stop; the exit code, negative where it had to be killed."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.stop()
        self._bell.close()
        self._log.close()


def look(pid: int) -> Look:
    proc = Path(f"/proc/{pid}")
    memory = _memory_kb(proc)
    return Look(
        at_s=time.monotonic(),
        tasks={int(path.name): _task(path) for path in (proc / "task").iterdir()},
        rss_kb=memory["Rss"],
        pss_kb=memory["Pss"],
        private_kb=memory["Private_Clean"] + memory["Private_Dirty"],
        anonymous_kb=memory["Anonymous"],
        descriptors=len(os.listdir(proc / "fd")),
    )


def cost_between(before: Look, after: Look) -> Cost:
    """A thread that began in between counts from its start; what an ended one used is lost."""
    seconds = after.at_s - before.at_s
    none = Task("", 0, 0)
    percent: dict[str, float] = {"main": 0.0, "sentinel": 0.0, "rest": 0.0}
    switches = 0
    main = min(after.tasks)
    for number, task in after.tasks.items():
        base = before.tasks.get(number, none)
        kind = "main" if number == main else "sentinel" if task.name == "kl-sentinel" else "rest"
        percent[kind] += (task.cpu_ns - base.cpu_ns) / 1e7 / seconds
        switches += task.switches - base.switches
    return Cost(
        cpu_percent=sum(percent.values()),
        main_percent=percent["main"],
        sentinel_percent=percent["sentinel"],
        rest_percent=percent["rest"],
        switches_per_s=switches / seconds,
        rss_mb=after.rss_kb / 1024,
        pss_mb=after.pss_kb / 1024,
        private_mb=after.private_kb / 1024,
        descriptors=after.descriptors,
        threads=len(after.tasks),
    )


def _task(path: Path) -> Task:
    fields = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
    switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
    cpu_ns = int((path / "schedstat").read_text().split()[0])
    return Task(fields["Name"].strip(), cpu_ns, switches)


def _memory_kb(proc: Path) -> dict[str, int]:
    """smaps_rollup is added up while it is read, so it does not lag as VmRSS of status does."""
    lines = (proc / "smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
