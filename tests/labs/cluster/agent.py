"""The real agent as a member of the lab's cluster: a process with the account that deploy/ describes, whose token lies
where a pod finds it. What it is asked goes over its unix socket.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from koordlet.cli.client import AgentError, ask, ask_ok
from koordlet.model.places import SOCKET_FILE
from tests.labs.cluster.lab import AGENT, AGENT_NAMESPACE, API_PORT, Cluster
from tests.labs.cluster.sandbox import ROOT

ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"  # inside the lab /run is its own
LOG = "koordlet"


class OnNode(Protocol):
    """A real kubelet or the stand-in."""

    name: str


class Agent:
    """`args` go to the command line. Its knobs are those of the lab's cgroup only. prefix: words before the command.
    environment: what it gets besides, or instead."""

    def __init__(self, cluster: Cluster, node: OnNode, *args: str, kubelet_root: Path | None = None) -> None:
        self.cluster, self.sandbox, self.node = cluster, cluster.sandbox, node
        self.folder = cluster.sandbox.work / f"agent-{node.name}"
        own = [
            *(f"--state-dir={self.folder}/state", f"--run-dir={self.folder}/run"),
            *(f"-audit-log-dir={self.folder}/audit", "-addr=127.0.0.1:0"),
            f"-prediction-checkpoint-filepath={self.folder}/prediction",
            *(f"--cgroup-root=/{self.sandbox.name}", "--cgroup-driver=cgroupfs"),
        ]
        if kubelet_root is not None:
            own.append(f"-var-lib-kubelet-dir={kubelet_root}")
        self.args = [*own, *args]
        self.prefix: list[str] = []
        self.environment: dict[str, str] = {}

    def start(self, wait: bool = True, seconds: int = 3600, token: str = "") -> Agent:
        """seconds: how long its token is good for, unless one is given (the API server makes them)."""
        self.folder.mkdir(exist_ok=True)
        self.rotate(seconds, token)
        self.began = self._log_size()
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(API_PORT),
            "NODE_NAME": self.node.name,
            "agent_mode": "hostMode",
            "PYTHONPATH": str(ROOT),
            **self.environment,
        }
        words = ["env", *(f"{k}={v}" for k, v in environment.items())]
        self.started_s = time.monotonic()
        self.sandbox.spawn(LOG, [*self.prefix, *words, sys.executable, "-m", "koordlet", "run", *self.args])
        if wait:
            self.sandbox.wait("the agent is ready", lambda: "] ready" in self.text(), 60, LOG)
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if LOG in self.sandbox.processes:
            self.sandbox.end(LOG, number)

    def rotate(self, seconds: int = 3600, token: str = "") -> None:
        """A new token in its file, as the kubelet of a real cluster does it."""
        token = token or self.cluster.token(AGENT_NAMESPACE, AGENT, seconds)
        authority = self.cluster.authority.own.certificate
        commands = [
            f"mkdir -p {ACCOUNT}",
            f"cp {authority} {ACCOUNT}/ca.crt",
            f"printf %s {token} > {ACCOUNT}/token.new",
            f"mv {ACCOUNT}/token.new {ACCOUNT}/token",
        ]
        self.sandbox.run(["sh", "-c", " && ".join(commands)])

    def alive(self) -> bool:
        return self.sandbox.processes[LOG].poll() is None

    def text(self) -> str:
        """Its log since the last start."""
        with (self.sandbox.work / f"{LOG}.log").open("rb") as log:
            log.seek(self.began)
            return log.read().decode(errors="replace")

    def _log_size(self) -> int:
        log = self.sandbox.work / f"{LOG}.log"
        return log.stat().st_size if log.exists() else 0

    # what it knows

    def ask(self, path: str, **query: str) -> Any:
        return ask_ok(str(self.folder / "run" / SOCKET_FILE), path, **query)

    def pods(self) -> list[str]:
        """namespace/name of the pods it knows."""
        return sorted(f"{pod['namespace']}/{pod['name']}" for pod in self.ask("/v1/top")["pods"])

    def age_s(self) -> float:
        """Of what it knows about the kubelet's pods; infinite before it knows anything."""
        found = self.ask("/v1/status")["sources"]["pods"]["age_s"]
        return float("inf") if found is None else float(found)

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the samples with these labels; 0.0 without any."""
        text = str(ask(str(self.folder / "run" / SOCKET_FILE), "/metrics")[1])
        wanted = [f'{k}="{v}"' for k, v in labels.items()]
        rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith(f"koordlet_{name}"))
        return sum(
            float(value)
            for series, _, value in rows
            if series.partition("{")[0] == f"koordlet_{name}" and all(one in series for one in wanted)
        )

    def until(self, what: str, met: Callable[[], Any], seconds: float) -> float:
        """Wait for it; the seconds it took."""
        begun_s = time.monotonic()
        while True:
            looked_s = time.monotonic()
            try:
                if met():
                    return looked_s - begun_s
            except AgentError:
                pass
            if looked_s - begun_s > seconds:
                raise AssertionError(f"after {seconds:g} s still not: {what}\n{self.text()[-4000:]}")
            time.sleep(0.02)
