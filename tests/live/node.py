"""A scratch node for live tests: a kubelet's tree in cgroups of our own, load in them, and the real agent beside it.

Works on the machine's real controllers, v1 (hybrid) or v2, and removes what it made. Pods are the kubelet's JSON, so
the agent is given them by `--pods FILE --cgroup-root /<scratch>`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.cli.client import AgentError, ask_ok
from koordlet.load.batch import Surge
from koordlet.load.child import Child, before_exec, soon_ns, start
from tests.live.forked import Forked

BASE = Path("/sys/fs/cgroup")
V2 = (BASE / "cgroup.controllers").exists()
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", *(("blkio",) if (BASE / "blkio").is_dir() else ()))
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "io")
CPUS = os.cpu_count() or 1

SETTINGS = re.compile(
    r"cpu\.(shares|weight|cfs_\w+|max|max\.burst|idle|uclamp\.\w+)|cpuset\..+"
    r"|memory\.(min|low|high|max|limit_in_bytes|oom\.group)"
)


def why_not() -> str | None:
    """Why live tests cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    probe = BASE if V2 else BASE / "cpu"
    if not os.access(probe, os.W_OK):
        return f"{probe} is not writable"
    if V2 and "cpu" not in (BASE / "cgroup.controllers").read_text().split():
        return "no cpu controller on cgroup v2"
    return None


class Node:
    """Scratch cgroups under one root. Targets are relative paths as the agent names them."""

    def __init__(self, name: str) -> None:
        self.root = f"koordlet-test-{os.getpid()}-{name}"
        self.pods: dict[str, dict[str, Any]] = {}
        self.load: list[Child | subprocess.Popen[bytes]] = []
        self.tmp = Path(tempfile.mkdtemp(prefix="koordlet-live-"))
        for part in ("", "kubepods", "kubepods/burstable", "kubepods/besteffort"):
            self.mkdir(f"{self.root}/{part}".rstrip("/"))
        self.besteffort = f"{self.root}/kubepods/besteffort"
        self.burstable = f"{self.root}/kubepods/burstable"
        self.write(self.besteffort, "cpu.shares", "2")
        self.write_pods()

    # -- cgroups --

    def mkdir(self, target: str) -> None:
        if V2:
            for parent in [*reversed(Path(target).parents), None]:
                path = BASE / target if parent is None else BASE / parent
                path.mkdir(exist_ok=True)
                if parent is not None:
                    there = (path / "cgroup.controllers").read_text().split()
                    wanted = " ".join(f"+{name}" for name in V2_CONTROLLERS if name in there)
                    (path / "cgroup.subtree_control").write_text(wanted)
            return
        for controller in CONTROLLERS:
            path = BASE / controller / target
            path.mkdir(parents=True, exist_ok=True)
            if controller == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if not (path / file).read_text().strip():
                        (path / file).write_text((path.parent / file).read_text().strip() or self._top(file))

    @staticmethod
    def _top(file: str) -> str:
        return (BASE / "cpuset" / file).read_text().strip()

    def path(self, target: str, file: str) -> Path:
        """Path of a v1 file name, translated for v2."""
        if not V2:
            subsystem = file.split(".", 1)[0]
            return BASE / subsystem / target / file
        name = {
            "cpu.shares": "cpu.weight",
            "cpu.cfs_quota_us": "cpu.max",
            "cpu.cfs_burst_us": "cpu.max.burst",
            "cpuacct.usage": "cpu.stat",
        }.get(file, file)
        return BASE / target / name

    def name(self, target: str, file: str) -> str:
        """Key of a v1 file name in `knobs`."""
        return str(self.path(target, file))

    def read(self, target: str, file: str) -> str:
        return self.path(target, file).read_text().strip()

    def raw(self, target: str, file: str) -> bytes:
        return self.path(target, file).read_bytes()

    def knobs(self) -> dict[str, bytes]:
        """Raw bytes of every writable setting of every scratch cgroup, by path: what a node agent could change."""
        found = {}
        for target in self._all():
            for controller in ("",) if V2 else CONTROLLERS:
                for path in (BASE / controller / target).iterdir():
                    if SETTINGS.fullmatch(path.name) and path.stat().st_mode & 0o200:
                        found[str(path)] = path.read_bytes()
        return found

    def write(self, target: str, file: str, text: str) -> None:
        if V2 and file == "cpu.shares":
            text = str(1 + (int(text) - 2) * 9999 // 262142)
        if V2 and file == "cpu.cfs_quota_us" and text == "-1":
            text = "max"
        self.path(target, file).write_text(text)

    def quota(self, target: str) -> int:
        """Quota in us per 100 ms, -1 unlimited."""
        word = self.read(target, "cpu.cfs_quota_us").split()[0]
        return -1 if word == "max" else int(word)

    def used_s(self, target: str) -> float:
        """CPU time by the kernel's own counter."""
        text = self.read(target, "cpuacct.usage")
        return int(text.split()[1]) / 1e6 if V2 else int(text) / 1e9

    def cpuset(self, target: str) -> str:
        text = self.read(target, "cpuset.cpus")
        return text if text or not V2 else self.read(target, "cpuset.cpus.effective")

    # -- pods --

    def add_pod(
        self,
        name: str,
        qos: str,
        *,
        kube: str = "",
        annotations: dict[str, str] | None = None,
        resources: dict[str, Any] | None = None,
    ) -> str:
        """Make a pod with one container `main`; returns the container's target. resources: of that container."""
        kube = kube or {"BE": "BestEffort", "LSE": "Guaranteed", "LSR": "Guaranteed"}.get(qos, "Burstable")
        uid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.root}/{name}"))
        container = hashlib.sha256(uid.encode()).hexdigest()
        middle = {"BestEffort": "/besteffort", "Burstable": "/burstable"}.get(kube, "")
        pod = f"{self.root}/kubepods{middle}/pod{uid}"
        self.mkdir(pod)
        self.mkdir(f"{pod}/{container}")
        self.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": uid,
                "labels": {"koordinator.sh/qosClass": qos},
                "annotations": annotations or {},
            },
            "spec": {
                "containers": [{"name": "main", "resources": resources or {}}],
                "priority": 5500 if qos == "BE" else 9500,
            },
            "status": {
                "phase": "Running",
                "qosClass": kube,
                "containerStatuses": [
                    {"name": "main", "containerID": f"containerd://{container}", "state": {"running": {}}}
                ],
            },
        }
        self.write_pods()
        return f"{pod}/{container}"

    def remove_pod(self, name: str) -> None:
        pod = self.pods.pop(name)
        self.write_pods()
        self._rmtree([p for p in self._all() if pod["metadata"]["uid"] in p])

    def write_pods(self) -> None:
        text = json.dumps({"kind": "PodList", "apiVersion": "v1", "items": list(self.pods.values())})
        (self.tmp / ".pods").write_text(text)
        (self.tmp / ".pods").rename(self.tmp / "pods.json")

    def write_policy(self, threshold: dict[str, Any]) -> None:
        self.write_slo({"resourceUsedThresholdWithBE": threshold})

    def write_slo(self, spec: dict[str, Any]) -> None:
        text = json.dumps(spec)
        (self.tmp / ".policy").write_text(text)
        (self.tmp / ".policy").rename(self.tmp / "policy.json")

    # -- load --

    def prepare(self, target: str, duty: float = 1.0, seconds: float = 60.0, threads: int = 1) -> Child:
        """Spinning threads of one process in that cgroup; they wait for `go`. Bounded in time."""
        child = start(Surge(threads, round(duty * 1000), seconds), self.procs(target))
        self.load.append(child)
        return child

    def spin(self, target: str, duty: float = 1.0, seconds: float = 60.0, threads: int = 1) -> Child:
        """As `prepare`, spinning already."""
        child = self.prepare(target, duty, seconds, threads)
        child.go(soon_ns(0))
        return child

    def run_in(self, target: str, script: str, *args: str) -> subprocess.Popen[bytes]:
        """A Python script in that cgroup from its first instruction on; ended with the load."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", script, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=before_exec(self.procs(target)),
        )
        self.load.append(process)
        return process

    def procs(self, target: str) -> tuple[Path, ...]:
        """What a process must write itself into to be a member everywhere."""
        return tuple(BASE / controller / target / "cgroup.procs" for controller in (("",) if V2 else CONTROLLERS))

    def stop_load(self) -> None:
        for load in self.load:
            if isinstance(load, Child):
                load.close()
            else:
                load.kill()
                load.communicate()
        self.load.clear()

    # -- the agent --

    @contextlib.contextmanager
    def agent(self, *args: str, pods: bool = True, wait: bool = True) -> Iterator[Agent]:
        agent = Agent(self, args, pods)
        try:
            if wait:
                agent.wait_ready()
            yield agent
        finally:
            agent.kill()

    def _all(self) -> list[str]:
        base = BASE if V2 else BASE / "cpu"
        return [str(p.relative_to(base)) for p in (base / self.root).rglob("*") if p.is_dir()] + [self.root]

    def _rmtree(self, targets: list[str]) -> None:
        for target in sorted(targets, key=len, reverse=True):
            for controller in ("",) if V2 else CONTROLLERS:
                for _ in range(200):
                    try:
                        (BASE / controller / target).rmdir()
                        break
                    except FileNotFoundError:
                        break
                    except OSError:
                        time.sleep(0.01)

    def close(self) -> None:
        self.stop_load()
        self._rmtree(self._all())
        for file in sorted(self.tmp.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        self.tmp.rmdir()


class Agent:
    """The real agent as a child process, with its state in the node's scratch folder."""

    def __init__(self, node: Node, args: tuple[str, ...], pods: bool) -> None:
        self.node = node
        self.log_path = Path(tempfile.mkstemp(prefix="agent-", suffix=".log", dir=node.tmp)[1])
        self.log = self.log_path.open("wb")
        own = [
            *(f"--state-dir={node.tmp}/state", f"--run-dir={node.tmp}/run", f"-audit-log-dir={node.tmp}/audit"),
            *(f"--cgroup-root=/{node.root}", "-addr=127.0.0.1:0"),
        ]
        if pods:
            own += [f"--pods={node.tmp}/pods.json", "--cgroup-driver=cgroupfs"]
        if (node.tmp / "policy.json").exists():
            own.append(f"--policy={node.tmp}/policy.json")
        self.started_s = time.monotonic()
        words = ["run", *own, *args]
        self.process: subprocess.Popen[bytes] | Forked = (
            Forked(words, self.log.fileno())
            if "KOORDLET_GUEST" in os.environ
            else subprocess.Popen([sys.executable, "-m", "koordlet", *words], stdout=self.log, stderr=self.log)
        )

    def wait_ready(self) -> None:
        """Until its first tick is done."""
        until("the agent is ready", lambda: self.dead() or "] ready" in self.text(), 120)
        if self.dead():
            raise AssertionError(f"the agent ended with {self.process.returncode}:\n{self.text()}")

    def dead(self) -> bool:
        return self.process.poll() is not None

    @property
    def socket(self) -> Path:
        return self.node.tmp / "run/agent.sock"

    def text(self) -> str:
        return self.log_path.read_text(errors="replace")[-6000:]

    def ask(self, path: str) -> Any:
        """The status socket's answer."""
        return ask_ok(str(self.socket), path)

    def skip_if_busy(self, share: float = 0.5) -> None:
        """Skips the test when other work takes more than this share of the node: then nothing can be lent."""
        usage, node = (self.ask("/v1/top")[part] for part in ("usage", "node"))
        system = usage["system_mcpu"]
        if system is not None and system["value"] > node["capacity_mcpu"] * share:
            pytest.skip(f"the machine is busy: others use {system['value']} of {node['capacity_mcpu']} milli-CPU")

    def explain(self) -> str:
        """What it thinks about the best-effort side, for messages."""
        with contextlib.suppress(AgentError):
            return json.dumps(self.ask("/v1/top")["be_roots"], indent=1)
        return self.text()

    def stop(self) -> int:
        """Clean stop; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


def koordlet(*args: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    if "KOORDLET_GUEST" not in os.environ:
        return subprocess.run([sys.executable, "-m", "koordlet", *args], capture_output=True, text=True, timeout=120)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        code = Forked(list(args), out.fileno(), errors.fileno()).wait(200)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(args, code, out.read(), errors.read())


def until(what: str, met: Callable[[], Any], seconds: float, more: Callable[[], str] = str) -> float:
    """Wait for a condition on real kernel files; the time it took. Bounded, and says what did not come, and `more`."""
    begun_s = time.monotonic()
    while True:
        looked_s = time.monotonic()
        if met():
            return looked_s - begun_s
        if looked_s - begun_s > seconds:
            raise AssertionError(f"after {seconds:.0f} s still not: {what}\n{more()}")
        time.sleep(max(0.005, 2 * (time.monotonic() - looked_s)))  # a dear question must not be the machine's load
