"""The real agent beside the runtime lab: connected by NRI, killed and frozen at will, its values read back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.labs.runtime.lab import Lab
from tests.labs.runtime.pods import Container, Pod

ROOT = Path(__file__).parents[3]
READY = "nri.ready"
WAIT_S = 30.0
EXTENDED = "node.koordinator.sh/extended-resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"


def wait_for(what: Callable[[], object], why: str, limit_s: float = WAIT_S) -> float:
    """Until it is so; the seconds that took."""
    began_s = time.monotonic()
    while not what():
        if time.monotonic() - began_s > limit_s:
            raise TimeoutError(f"not within {limit_s:g} s: {why}")
        time.sleep(0.01)
    return time.monotonic() - began_s


class Agent:
    """Standalone, for the lab's own part of the cgroup tree. `more`: further flags."""

    def __init__(self, lab: Lab, *more: str) -> None:
        self.lab = lab
        self.folder = Path(tempfile.mkdtemp(prefix="agent-", dir=lab.work))
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.words = [
            *(sys.executable, "-m", "koordlet", "run", "--mode=standalone", "-addr=127.0.0.1:0"),
            *(f"--state-dir={self.folder}/state", f"--run-dir={self.folder}/run"),
            *(f"-audit-log-dir={self.folder}/audit", f"--cgroup-root=/{lab.group}", "-log-format=json"),
            *("--workloads=", "--node=", "--policy=", f"-runtime-hooks-nri-socket-path={lab.nri_socket}"),
            *more,
        ]

    def start(self, *, wait: bool = True) -> Agent:
        count = self.readies
        environment = {k: v for k, v in os.environ.items() if k != "NODE_NAME"} | {"PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.words, cwd=ROOT, env=environment, stdout=out, stderr=out)
        if wait:
            self.ready(count + 1)
        return self

    @property
    def readies(self) -> int:
        """How often it has been told all pods, over all its lives."""
        return self.log.read_text().count(f'"event": "{READY}"') if self.log.exists() else 0

    def ready(self, count: int) -> None:
        wait_for(lambda: self.readies >= count or not self.alive(), "the agent's NRI connection")
        assert self.alive(), self.log.read_text()[-3000:]

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """As an operator stops it; fails when it does not end well."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            assert self.process.wait(WAIT_S) == 0, self.log.read_text()[-3000:]


def lsr_pod(lab: Lab, name: str, cpuset: str = "1") -> Pod:
    annotations = {STATUS: json.dumps({"cpuset": cpuset})}
    return lab.pod(name, labels={"koordinator.sh/qosClass": "LSR"}, annotations=annotations)


def batch_pod(lab: Lab, name: str) -> Pod:
    """One core requested, two and 1 GiB allowed."""
    main = {
        "requests": {"kubernetes.io/batch-cpu": "1000"},
        "limits": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1Gi"},
    }
    annotations = {EXTENDED: json.dumps({"containers": {"main": main}})}
    return lab.pod(name, "besteffort", labels={"koordinator.sh/qosClass": "BE"}, annotations=annotations)


def values(container: Container) -> dict[str, Any]:
    """What the kernel has for it now."""
    return {
        "cpuset": container.read("cpuset.cpus", "cpuset.cpus"),
        "quota": container.read("cpu.cfs_quota_us", "cpu.max").replace("max", "-1").split()[0],
        "shares": container.read("cpu.shares", "cpu.weight"),
        "memory": container.read("memory.limit_in_bytes", "memory.max"),
    }
