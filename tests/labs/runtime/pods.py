"""Pods and containers of the runtime lab, made as a kubelet makes them: over CRI, with the cgroup parents it uses."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.labs.runtime import guard, image

if TYPE_CHECKING:
    from tests.labs.runtime.lab import Lab

# CRI's NamespaceMode: the machine's own network (2), so that no CNI is needed; a pid namespace per container (1).
NAMESPACES = {"namespace_options": {"network": 2, "pid": 1}}


class Pod:
    """A running sandbox. `cgroup` is its path from a hierarchy's root, e.g. /koordlet-lab-runtime-1-x/kubepods/podU."""

    def __init__(self, lab: Lab, name: str, qos: str = "", **more: dict[str, str]) -> None:
        self.lab, self.name = lab, name
        self.uid = f"{lab.name}-{name}"
        self.cgroup = f"/{lab.group}/{Path('kubepods', qos, f'pod{self.uid}')}"
        self.config: dict[str, Any] = {
            "metadata": {"name": name, "uid": self.uid, "namespace": "default"},
            "log_directory": str(lab.work / "logs" / name),
            "linux": {"cgroup_parent": self.cgroup, "security_context": NAMESPACES},
            **more,
        }
        self.id: str = lab.cri("RunPodSandbox", config=self.config).pod_sandbox_id

    def container(self, name: str = "main", start: bool = True, **more: Any) -> Container:
        """More: `command` (default: sleep), `resources` (as CRI's LinuxContainerResources), `labels`, `annotations`."""
        made = Container(self, name, **more)
        if start:
            made.start()
        return made

    def stop(self) -> None:
        self.lab.cri("StopPodSandbox", pod_sandbox_id=self.id)

    def remove(self) -> None:
        self.stop()
        self.lab.cri("RemovePodSandbox", pod_sandbox_id=self.id)
        self.remove_groups()

    def remove_groups(self) -> None:
        """The pod's own cgroup stays after it: removing that is a kubelet's work."""
        for root in guard.hierarchies():
            for folder, _, _ in os.walk(root / self.cgroup[1:], topdown=False):
                with contextlib.suppress(FileNotFoundError):
                    Path(folder).rmdir()


class Container:
    """A container of a pod. `config` is what was asked for over CRI, without what plugins adjusted."""

    def __init__(
        self, pod: Pod, name: str, command: tuple[str, ...] = (), resources: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.pod, self.name = pod, name
        self.config: dict[str, Any] = {
            "metadata": {"name": name},
            "image": {"image": image.BUSYBOX},
            "command": command or ("sleep", image.FOREVER_S),
            "log_path": f"{name}.log",
            "linux": {"resources": resources or {}, "security_context": NAMESPACES},
            **more,
        }
        answer = pod.lab.cri("CreateContainer", pod_sandbox_id=pod.id, config=self.config, sandbox_config=pod.config)
        self.id: str = answer.container_id
        self.cgroup = f"{pod.cgroup}/{self.id}"

    def start(self) -> None:
        self.pod.lab.cri("StartContainer", container_id=self.id)

    def update(self, **resources: Any) -> None:
        """As a kubelet that resizes: UpdateContainerResources with these fields of LinuxContainerResources."""
        self.pod.lab.cri("UpdateContainerResources", container_id=self.id, linux=resources)

    def stop(self, grace_s: int = 0) -> None:
        self.pod.lab.cri("StopContainer", container_id=self.id, timeout=grace_s)

    def remove(self) -> None:
        self.pod.lab.cri("RemoveContainer", container_id=self.id)

    def run(self, *command: str) -> str:
        """Output of a command in the container; RuntimeError when it fails."""
        done: Any = self.pod.lab.cri("ExecSync", container_id=self.id, cmd=command, timeout=20)
        if done.exit_code != 0:
            raise RuntimeError(f"{command}: exit {done.exit_code}: {done.stderr.decode()}")
        return str(done.stdout.decode())

    @property
    def pid(self) -> int:
        """Of its first process, as this machine numbers it."""
        status: Any = self.pod.lab.cri("ContainerStatus", container_id=self.id, verbose=True)
        return int(json.loads(status.info["info"])["pid"])

    @property
    def state(self) -> str:
        """CONTAINER_CREATED, _RUNNING, _EXITED or _UNKNOWN."""
        status: Any = self.pod.lab.cri("ContainerStatus", container_id=self.id).status
        return str(status.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[status.state].name)

    def read(self, v1: str, v2: str) -> str:
        """A cgroup file of whichever version is here: "cpu.shares" of v1 lies in the hierarchy cpu."""
        roots = guard.hierarchies()
        if guard.CGROUPS in roots:
            return (guard.CGROUPS / self.cgroup[1:] / v2).read_text().strip()
        return (guard.CGROUPS / v1.split(".")[0] / self.cgroup[1:] / v1).read_text().strip()
