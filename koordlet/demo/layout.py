"""Where the demo's workloads live: two sibling cgroups, or pods in a kubelet's tree; and how the agent is told."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordlet.demo.options import TreeKind
from koordlet.load.cgroups import Group, ScratchTree

EQUAL_SHARES = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """online, batch: where the processes go. be_root: the batch side where it is a sibling of the online side, so
    that its weight and quota are what count."""

    kind: TreeKind
    top: str
    online: Group
    batch: Group
    be_root: Group

    def agent_arguments(self, directory: Path) -> list[str]:
        """Files that declare the workloads, written to directory, and the flags that name them."""
        if self.kind is TreeKind.SIBLINGS:
            items = [
                {"name": "demo-online", "match": {"cgroup": f"/{self.online.path}"}, "qos": "LS"},
                {"name": "demo-batch", "match": {"cgroup": f"/{self.batch.path}"}, "qos": "BE"},
            ]
            text = json.dumps({"kind": "LocalWorkloadList", "items": items})
            # A tree of its own to lock, so that an agent which runs for real does not stand in the way.
            return ["--workloads", _write(directory / "workloads.json", text), "--cgroup-root", f"/{self.batch.path}"]
        pods = [_pod(self.online, "demo-online", "Burstable", "LS"), _pod(self.batch, "demo-batch", "BestEffort", "BE")]
        text = json.dumps({"kind": "PodList", "apiVersion": "v1", "items": pods})
        (directory / "none").mkdir()
        pods_file = _write(directory / "pods.json", text)
        return ["--pods", pods_file, "--cgroup-root", f"/{self.top}", "--workloads", str(directory / "none")]


def make_layout(tree: ScratchTree, kind: TreeKind) -> Layout:
    """A fresh tree in which batch and online have equal weights and no limits.

    In a kubelet's tree that is a node whose best-effort weight got lost (2 is what the kubelet gives it).
    """
    tree.remove()
    if kind is TreeKind.SIBLINGS:
        # At the top, as slices are. Below one parent, a batch side of least weight would be felt by everybody
        # beside that parent: on a CPU where only batch runs, the whole parent has that weight (docs: bench).
        online, batch = tree.beside("online"), tree.beside("batch")
        for group in (online, batch):
            group.set_shares(EQUAL_SHARES * cpu_count())  # as their threads would have without groups
        return Layout(kind, tree.name, online, batch, batch)
    for name in ("", "kubepods"):
        tree.group(name).set_shares(EQUAL_SHARES * cpu_count())  # as the kubelet does, and it is the tree's only group
    for name in ("burstable", "besteffort"):
        tree.group(f"kubepods/{name}").set_shares(EQUAL_SHARES)
    online, batch = _pod_group(tree, "burstable"), _pod_group(tree, "besteffort")
    return Layout(kind, tree.name, online, batch, tree.group("kubepods/besteffort"))


def cpu_count() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def _pod_group(tree: ScratchTree, qos_dir: str) -> Group:
    """A container's cgroup in a pod's, with the weights that kubelet and runtime give them."""
    uid = uuid.uuid5(uuid.NAMESPACE_URL, f"{tree.name}/{qos_dir}")
    shares = EQUAL_SHARES if qos_dir == "burstable" else 2
    pod = f"kubepods/{qos_dir}/pod{uid}"
    tree.group(pod).set_shares(shares)
    container = tree.group(f"{pod}/{hashlib.sha256(uid.bytes).hexdigest()}")
    container.set_shares(shares)
    return container


def _pod(container: Group, name: str, kube_qos: str, qos: str) -> dict[str, Any]:
    """The kubelet's JSON of the pod with that container."""
    pod_dir, container_id = container.path.rsplit("/", 2)[1:]
    resources = {"requests": {"cpu": "1"}} if kube_qos == "Burstable" else {}
    status = {"name": "main", "containerID": f"containerd://{container_id}", "state": {"running": {}}, "ready": True}
    return {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "uid": pod_dir.removeprefix("pod"),
            "labels": {"koordinator.sh/qosClass": qos},
        },
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Running", "qosClass": kube_qos, "containerStatuses": [status]},
    }


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
