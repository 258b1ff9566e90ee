"""A tree of ordinary files and its sampler, in virtual time."""

from __future__ import annotations

from typing import Any

from koordlet.model.pod import Container, HostApp, Pod, PodSet
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.view import Reading
from koordlet.sense.sampler import Sampler
from koordlet.store.rings import RingStore
from tests.native.trees import Tree

MIB = 1 << 20
TICKS_PER_S = 100


class Node:
    """A tree and its sampler. CPU is given in milli-CPU used in each second that passes."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.rings = RingStore()
        self.sampler = Sampler(tree.host, self.rings, nominal_time=True)
        self.now_s = 100.0
        self.revision = 0
        self._used: dict[str, int] = {}

    def sync(
        self, *pods: Pod, apps: tuple[HostApp, ...] = (), roots: tuple[str, ...] = (), at_s: float | None = 0.0
    ) -> None:
        self.revision += 1
        self.sampler.sync(PodSet(pods, self.revision, at_s), apps, roots)

    def second(self, node_mcpu: int | None = None, **used_mcpu: int) -> Any:
        """One second in which the cgroups named (a__b is a/b) used so much, then one sample."""
        for name, mcpu in used_mcpu.items():
            cgroup = name.replace("__", "/")
            self._used[cgroup] = self._used.get(cgroup, 0) + mcpu
            self.tree.usage(cgroup, self._used[cgroup] * 10**6)
        if node_mcpu is not None:
            self._used[""] = self._used.get("", 0) + node_mcpu
            self.tree.node(self._used[""] * TICKS_PER_S // 1000, used_kib=4 << 20)
        self.now_s += 1
        return self.sampler.sample(self.now_s)


def pod(name: str, *containers: str, qos: Qos | None = None, phase: str = "Running") -> Pod:
    return Pod(
        uid=f"uid-{name}",
        namespace="ns",
        name=name,
        cgroup=name,
        kube_qos=KubeQos.BESTEFFORT if qos is Qos.BE else KubeQos.BURSTABLE,
        phase=phase,
        qos=qos,
        containers=tuple(Container(c, f"containerd://{name}-{c}", f"{name}/{c}", running=True) for c in containers),
    )


def value(reading: Reading | None) -> float | None:
    return None if reading is None else round(reading.value, 6)
