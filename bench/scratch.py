"""A scratch node for benchmarks: a kubelet's tree of our own on v1 controllers, with processes in it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
HERE = Path(__file__).resolve().parent
# Of 20 containers 12 hold a process: 4 asleep, 5 wake once a second, 3 ten times.
KINDS = "swbswbswbsww........"


def why_not() -> str | None:
    """Why the benchmark cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for name in CONTROLLERS:
        if not os.access(ROOT / name / "cgroup.procs", os.W_OK):
            return f"needs a writable v1 controller {name} under {ROOT}"
    return None


def compile_c(source: str, target: Path, *flags: str) -> Path:
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", *flags, str(HERE / source), "-o", str(target)], check=True)
    return target


@dataclass(frozen=True)
class _Pod:
    """item: as the kubelet lists it. cgroups: its own, then its containers'."""

    item: dict[str, Any]
    cgroups: tuple[str, ...]


class ScratchNode:
    """`pods` pods of two containers, online (Burstable) and batch (BestEffort) half each."""

    def __init__(self, pods: int) -> None:
        self.tmp = Path(tempfile.mkdtemp(prefix="koordlet-bench-"))
        self.root = f"koordlet-test-{os.getpid()}-bench{pods}"
        self.cgroups: list[str] = []
        self._load: subprocess.Popen[str] | None = None
        for part in ("", "/kubepods", "/kubepods/burstable", "/kubepods/besteffort"):
            self._make(self.root + part)
        self._pods: dict[int, _Pod] = {}
        for number in range(pods):
            self.add_pod(number)
        self.write_pods()
        self._populate([container for pod in self._pods.values() for container in pod.cgroups[1:]])

    def add_pod(self, number: int) -> None:
        """Without processes. `write_pods` tells the agent."""
        self._pods[number] = self._pod(number)

    def remove_pod(self, number: int) -> None:
        for cgroup in reversed(self._pods.pop(number).cgroups):
            for pid in (ROOT / "cpu" / cgroup / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            self._remove(cgroup)
            self.cgroups.remove(cgroup)

    def write_pods(self) -> None:
        fresh = self.tmp / "pods.new"
        fresh.write_text(json.dumps({"kind": "PodList", "apiVersion": "v1", "items": self.items()}))
        fresh.rename(self.tmp / "pods.json")

    def items(self) -> list[dict[str, Any]]:
        """The pods as a kubelet lists them, with the parts that the agent reads."""
        return [pod.item for pod in self._pods.values()]

    def measured(self) -> list[str]:
        """QoS directories, pods and containers: what a full pass reads."""
        return self.cgroups[1:]

    def close(self) -> None:
        if self._load is not None:
            self._load.kill()
            self._load.wait()
        for cgroup in reversed(self.cgroups):
            self._remove(cgroup)
        for path in sorted(self.tmp.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.tmp.rmdir()

    def _make(self, cgroup: str) -> str:
        self.cgroups.append(cgroup)
        for controller in CONTROLLERS:
            (ROOT / controller / cgroup).mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):  # as runc and the kubelet leave no group without CPUs
            path = ROOT / "cpuset" / cgroup / name
            path.write_text((path.parents[1] / name).read_text())
        return cgroup

    @staticmethod
    def _remove(cgroup: str) -> None:
        for controller in CONTROLLERS:
            _rmdir(ROOT / controller / cgroup)

    def _pod(self, number: int) -> _Pod:
        batch = number % 2 == 1
        uid = f"00000000-0000-4000-8000-{number:012d}"
        pod = self._make(f"{self.root}/kubepods/{'besteffort' if batch else 'burstable'}/pod{uid}")
        names = ["main", "side"]
        ids = [hashlib.sha256(f"{uid}/{name}".encode()).hexdigest() for name in names]
        inside = [self._make(f"{pod}/{container}") for container in ids]
        statuses = [
            {"name": name, "containerID": f"containerd://{container}", "state": {"running": {}}}
            for name, container in zip(names, ids, strict=True)
        ]
        qos = "BE" if batch else "LS"
        item = {
            "metadata": {
                "name": f"pod-{number}",
                "namespace": "bench",
                "uid": uid,
                "labels": {"koordinator.sh/qosClass": qos},
            },
            "spec": {
                "containers": [{"name": name, "resources": {}} for name in names],
                "priority": 5500 if batch else 9500,
            },
            "status": {
                "phase": "Running",
                "qosClass": "BestEffort" if batch else "Burstable",
                "containerStatuses": statuses,
            },
        }
        return _Pod(item, (pod, *inside))

    def _populate(self, containers: list[str]) -> None:
        program = compile_c("populate.c", self.tmp / "populate")
        self._load = subprocess.Popen([str(program), str(ROOT)], stdin=-1, stdout=-1, text=True)
        assert self._load.stdin is not None
        assert self._load.stdout is not None
        for number, cgroup in enumerate(containers):
            kind = KINDS[number * 7 % len(KINDS)]
            if kind != ".":
                self._load.stdin.write(f"{kind} {cgroup}\n")
        self._load.stdin.write(". .\n")
        self._load.stdin.flush()
        if self._load.stdout.readline() != "ready\n":
            raise SystemExit("the load did not start")


def _rmdir(path: Path) -> None:
    """Killed processes leave a cgroup a little later."""
    for _ in range(200):
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
