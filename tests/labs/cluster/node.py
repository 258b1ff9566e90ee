"""A real kubelet with containerd as the node of a cluster lab: pods created through the API run under its kubepods.

The kubelet's cgroupRoot is the lab's own cgroup, since a kubelet removes pod cgroups that it does not know. Pods must
use the host's network (there is no CNI plugin), and image BUSYBOX, made locally; `pod()` writes such a manifest.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.labs import binaries
from tests.labs.cluster.api import Client, path_of
from tests.labs.cluster.lab import NAMESPACE, Cluster, program_version
from tests.labs.cluster.sandbox import NODE_ADDRESSES, LabError
from tests.labs.runtime import guard, image

NAME = "lab-node"
PORT = 10250
CONTAINERD = """version = 3
root = "{data}/containerd"
state = "/run/containerd/state"
[grpc]
  address = "{socket}"
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = "/run/containerd/s"
[plugins.'io.containerd.internal.v1.opt']
  path = "{data}/opt"
[plugins.'io.containerd.nri.v1.nri']
  socket_path = "{work}/nri.sock"
  plugin_path = "{data}/nri"
  plugin_config_path = "{data}/nri"
[plugins.'io.containerd.cri.v1.images']
  pinned_images = {{ sandbox = "{pause}" }}
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE the sandbox's -998 is refused
  disable_apparmor = true
  cdi_spec_dirs = ["{data}/cdi"]
  cni = {{ bin_dirs = ["{data}/cni"], conf_dir = "{data}/cni" }}
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    options = {{ SystemdCgroup = false }}
"""
# Only there to make the node Ready.
NO_NETWORK = '{"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "loopback"}]}'


class Node:
    """Its `root` is the kubelet's root directory (cpu_manager_state, pods, pod-resources)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.sandbox = cluster, cluster.sandbox
        self.name, self.address = NAME, NODE_ADDRESSES[0]
        self.root = self.sandbox.work / "kubelet"
        self.socket = self.sandbox.work / "containerd.sock"

    def start(self, options: Mapping[str, Any] | None = None) -> Node:
        """`options` overlay the KubeletConfiguration."""
        containerd = binaries.binaries("containerd")
        begun = time.monotonic()
        authority = self.cluster.authority
        names = f"IP:{self.address},IP:127.0.0.1,DNS:{NAME}"
        self.serving = authority.issue("kubelet", f"/CN={NAME}", names)
        # The Node authorizer and NodeRestriction know a kubelet by exactly this user and group.
        own = authority.issue("node", f"/O=system:nodes/CN=system:node:{NAME}")
        self.cluster.kubeconfig("kubelet", {"client-certificate": str(own.certificate), "client-key": str(own.key)})
        self._start_containerd(containerd)
        self.start_kubelet(options)
        self.cluster.starts["node"] = time.monotonic() - begun
        self.cluster.versions |= {
            "kubelet": binaries.part("kubernetes").version,
            "containerd": binaries.part("containerd").version,
            "runc": program_version("runc"),
        }
        return self

    def start_kubelet(self, options: Mapping[str, Any] | None = None, *, keep_cpus: bool = False) -> None:
        """Also after `stop_kubelet`. With another CPU manager policy it would refuse its state file, so that goes.

        keep_cpus: not so, exclusive pods run on.
        """
        if not keep_cpus:
            (self.root / "cpu_manager_state").unlink(missing_ok=True)
        config = self.sandbox.work / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._configuration() | dict(options or {})))
        flags = {
            "config": config,
            "kubeconfig": self.sandbox.work / "kubelet.kubeconfig",
            "root-dir": self.root,
            "cert-dir": self.cluster.authority.folder,
            "hostname-override": NAME,
            "node-ip": self.address,
        }
        program = binaries.binaries("kubernetes") / "kubelet"
        self.sandbox.spawn("kubelet", [str(program), *(f"--{name}={value}" for name, value in flags.items())])
        self.sandbox.wait("node Ready", self.ready, 90, "kubelet")

    def stop_kubelet(self) -> None:
        """Pods run on. The Node's status is set to unknown, as the controller-manager would some time later."""
        self.sandbox.end("kubelet")
        status = {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}
        path = f"/api/v1/nodes/{NAME}/status"
        self.cluster.admin.must("PATCH", path, {"status": status}, "application/strategic-merge-patch+json")

    def ready(self) -> bool:
        answer = self.cluster.admin.request("GET", f"/api/v1/nodes/{NAME}")
        conditions = answer.json()["status"].get("conditions", []) if answer.status == 200 else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def client(self, token: str = "") -> Client:
        """Speaks to the kubelet; without a token as nobody."""
        return Client(self.sandbox.connect, self.address, PORT, self.cluster.authority.own.certificate, token)

    def run(self, manifest: Mapping[str, Any], seconds: float = 30) -> dict[str, Any]:
        """Create the pod and wait until its containers are ready; returns the object."""
        path = path_of(self.cluster.admin.create(manifest, NAMESPACE))
        seen: dict[str, Any] = {}

        def ready() -> bool:
            seen.update(self.cluster.admin.get(path))
            if seen["status"]["phase"] == "Failed":
                raise LabError(f"pod {path}: {seen['status'].get('reason')}: {seen['status'].get('message')}")
            return all(s["ready"] for s in seen["status"].get("containerStatuses", [{"ready": False}]))

        self.sandbox.wait(f"pod {path}", ready, seconds, "kubelet")
        return seen

    def remove(self, made: Mapping[str, Any]) -> None:
        """Delete the pod; the kubelet ends it and removes its cgroup some seconds later, see `settle`."""
        self.cluster.admin.delete(path_of(made))

    def settle(self, seconds: float = 30) -> None:
        """Wait until what was removed has given back its cgroups, and so its CPUs."""
        known = {f"pod{p['metadata']['uid']}" for p in self.cluster.admin.get("/api/v1/pods")["items"]}
        self.sandbox.wait("end of removed pods", lambda: self.pod_groups() <= known, seconds, "kubelet")

    def pod_groups(self) -> set[str]:
        """Names of the cgroups of pods that are there, in whichever hierarchy."""
        trees = [tree / "kubepods" for tree in guard.trees(self.sandbox.name)]
        return {p.name for tree in trees for part in ("pod*", "*/pod*") for p in tree.glob(part) if p.is_dir()}

    def group(self, made: Mapping[str, Any]) -> str:
        """The pod's cgroup, relative to each hierarchy's root."""
        level = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}[made["status"]["qosClass"]]
        return f"{self.sandbox.name}/kubepods/{level}pod{made['metadata']['uid']}"

    def container_group(self, made: Mapping[str, Any]) -> str:
        """The same of its first container."""
        return f"{self.group(made)}/{made['status']['containerStatuses'][0]['containerID'].rpartition('/')[2]}"

    def _start_containerd(self, folder: Path) -> None:
        work, data = self.sandbox.work, self.sandbox.data
        config = work / "containerd.toml"
        config.write_text(CONTAINERD.format(data=data, work=work, socket=self.socket, pause=image.PAUSE))
        archive = work / "image.tar"
        image.write_archive(archive)
        self.sandbox.run(["sh", "-c", f"mkdir -p {data}/cni && echo '{NO_NETWORK}' > {data}/cni/10-lab.conflist"])
        self._spawn_containerd(folder)
        self.sandbox.run([*self._ctr(folder), "images", "import", "--local", str(archive)])

    def restart_containerd(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Its containers run on."""
        self.sandbox.end("containerd", number)
        self._spawn_containerd(binaries.binaries("containerd"))

    def _spawn_containerd(self, folder: Path) -> None:
        config = self.sandbox.work / "containerd.toml"
        self.sandbox.spawn("containerd", [str(folder / "containerd"), "--config", str(config)], path=[folder])

        def answers() -> bool:
            return subprocess.run([*self._ctr(folder), "version"], capture_output=True).returncode == 0

        self.sandbox.wait("containerd", answers, 60, "containerd")

    def _ctr(self, folder: Path) -> list[str]:
        return [str(folder / "ctr"), "-a", str(self.socket), "-n", "k8s.io"]

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.sandbox.name}",
            "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": str(self.sandbox.work / "podlogs"),
            "resolvConf": "",
            "address": self.address,
            "port": PORT,
            "healthzPort": 0,
            "tlsCertFile": str(self.serving.certificate),
            "tlsPrivateKeyFile": str(self.serving.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True, "cacheTTL": "1s"},
                "x509": {"clientCAFile": str(self.cluster.authority.own.certificate)},
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": {"cacheAuthorizedTTL": "1s", "cacheUnauthorizedTTL": "1s"},
            },
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": "0",
            "evictionHard": {
                "memory.available": "100Mi"
            },  # nothing of the disk: how full it is is not the lab's matter
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "5s",
            "volumeStatsAggPeriod": "2s",  # how soon it sees that a volume is too full
        }


def pod(
    name: str,
    requests: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    command: str = "trap exit TERM; sleep 2147483647 & wait",  # an own handler: nobody else ends a first process
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node: str = NAME,
    **spec: Any,
) -> dict[str, Any]:
    """A manifest of one container, `main`, for a node of the lab; other keys of the pod's spec by name."""
    resources = {"requests": dict(requests or {}), "limits": dict(limits or {})}
    container = {
        "name": "main",
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "resources": resources,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **spec,
        },
    }
