"""A pretended kubelet for 110 to 500 pods, where real ones are too heavy: a Node of its own in the lab's cluster, and a
server (standin_server.py) with a real one's answers and authorization. It runs no pods and makes no cgroups.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.labs.cluster import served
from tests.labs.cluster.api import Client
from tests.labs.cluster.lab import Cluster
from tests.labs.cluster.sandbox import NODE_ADDRESSES

PORT = 10250
NAME = "stand-in"


class StandIn:
    """`pods` are what it serves now; change them with `serve`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name, self.address = NAME, NODE_ADDRESSES[1]
        self.folder = cluster.sandbox.work / NAME
        self.pods: list[dict[str, Any]] = []

    def start(self) -> StandIn:
        begun = time.monotonic()
        authority = self.cluster.authority
        pair = authority.issue(NAME, f"/CN={NAME}", f"IP:{self.address}")
        self.folder.mkdir()
        self.serve([])
        self.configure({})
        settings = {
            "node": NAME,
            "address": self.address,
            "port": PORT,
            "authority": str(authority.own.certificate),
            "serving": [str(pair.certificate), str(pair.key)],
            "admin": [str(self.cluster.admin_pair.certificate), str(self.cluster.admin_pair.key)],
        }
        (self.folder / "settings.json").write_text(json.dumps(settings))
        self._register()
        words = [sys.executable, "-m", "tests.labs.cluster.standin_server", str(self.folder)]
        self.cluster.sandbox.spawn(NAME, words, mounts=False)
        self.cluster.sandbox.wait(NAME, lambda: self.client().status("GET", "/pods") == 401, 30, NAME)
        self.cluster.starts["stand-in"] = time.monotonic() - begun
        return self

    def serve(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        """From the next request on these pods, all running."""
        self.serve_as_is([served.served(m, NAME, self.address) for m in manifests])

    def serve_as_is(self, pods: Sequence[dict[str, Any]]) -> None:
        """The same for whole objects, status included."""
        self.pods = list(pods)
        self._replace("pods", served.pod_list(self.pods))

    def configure(self, options: Mapping[str, Any]) -> None:
        """Overlay the recorded KubeletConfiguration."""
        self._replace("configz", served.configuration(options))

    def client(self, token: str = "") -> Client:
        return Client(self.cluster.sandbox.connect, self.address, PORT, self.cluster.authority.own.certificate, token)

    def _replace(self, name: str, content: Any) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(content, separators=(",", ":")))
        os.replace(part, self.folder / name)

    def _register(self) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "500"}
        status = {
            "addresses": [{"type": "InternalIP", "address": self.address}, {"type": "Hostname", "address": NAME}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        }
        self.cluster.apply([{"kind": "Node", "metadata": {"name": NAME}}])
        path = f"/api/v1/nodes/{NAME}/status"
        self.cluster.admin.must("PATCH", path, {"status": status}, "application/strategic-merge-patch+json")
