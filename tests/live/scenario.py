"""What was recorded of the reference, put on the scratch node. Inputs stand in tests/observed/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.live.node import Node

OBSERVED = Path(__file__).parents[1] / "observed"


def add_recorded(node: Node, pod: dict[str, Any], resources: dict[str, Any] | None = None) -> str:
    """The container's cgroup of that pod of a recording."""
    annotations = {k: v if isinstance(v, str) else json.dumps(v) for k, v in pod.get("annotations", {}).items()}
    qos = pod["labels"]["koordinator.sh/qosClass"]
    return node.add_pod(pod["name"], qos, annotations=annotations, resources=resources)


class Scenario:
    """A recording's pods and policy on the scratch node, with the quotas and limits that the kubelet would set."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.spec = node, json.loads((OBSERVED / f"{name}.json").read_text())
        self.main: dict[str, str] = {}
        for pod in self.spec["pods"]:
            self.put(pod)
        node.write_slo(self.spec["nodeslo"])

    def put(self, pod: dict[str, Any]) -> None:
        container = pod["containers"][0]
        resources = {"requests": container["req"], "limits": container.get("lim", {})}
        main = add_recorded(self.node, pod, resources)
        self.main[pod["name"]] = main
        cpu = container.get("lim", {}).get("cpu")
        if cpu is not None:
            mcpu = int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000
            for target in (main.rpartition("/")[0], main):
                self.node.write(target, "cpu.cfs_quota_us", str(mcpu * 100))

    def both(self, name: str, file: str) -> tuple[int, int]:
        """(pod, container), -1 for unlimited."""
        main = self.main[name]
        words = (self.node.read(target, file).split()[0] for target in (main.rpartition("/")[0], main))
        pod, container = (-1 if word == "max" else int(word) for word in words)
        return pod, container

    def burst(self, name: str) -> tuple[int, int]:
        return self.both(name, "cpu.cfs_burst_us")

    def quota(self, name: str) -> tuple[int, int]:
        return self.both(name, "cpu.cfs_quota_us")
