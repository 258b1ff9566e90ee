"""A copied node with an engine's parts around it, in virtual time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from koordlet.act.executor import Executor
from koordlet.act.journal import Journal
from koordlet.decide.strategies import STRATEGIES
from koordlet.model.knob import Knob
from koordlet.model.pod import Container, Pod, PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import NodeSlo, SuppressPolicy, Threshold
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Policy
from koordlet.parts import Parts
from koordlet.sense.betree import RootReader
from koordlet.sense.sampler import Sampler
from koordlet.store.rings import RingStore
from tests.hosts.tree import HostTree, v1_two_sockets_ht

BE = "kubepods/besteffort"
POLICY = Policy(
    slo=NodeSlo(threshold=Threshold(enable=True, cpu_suppress_policy=SuppressPolicy.CFS_QUOTA)),
    gates=frozenset({"BECPUSuppress"}),
)
SUPPORT = Support({k.value: Capability(k.value, Level.NATIVE, "test") for k in (Knob.CPU_IDLE, Knob.CPU_SHARES)})


class Pods:
    """A source whose pods come and go."""

    def __init__(self, tree: HostTree) -> None:
        self.tree, self.set = tree, PodSet((), 1, 0.0)

    def poll(self, now_s: float) -> PodSet:
        return self.set

    def put(self, numbers: range, now_s: float) -> None:
        pods = []
        for number in numbers:
            be = number % 2 == 1
            cgroup = f"kubepods/{'besteffort' if be else 'burstable'}/pod{number}"
            if not (self.tree.root / "cgroup/cpu" / cgroup).exists():
                self.tree.cgroup(cgroup)
                self.tree.cgroup(f"{cgroup}/c")
            pods.append(
                Pod(
                    uid=f"uid-{number}",
                    namespace="default",
                    name=f"pod-{number}",
                    cgroup=cgroup,
                    kube_qos=KubeQos.BESTEFFORT if be else KubeQos.BURSTABLE,
                    qos=Qos.BE if be else Qos.LS,
                    containers=(Container("c", id=f"containerd://{number}", cgroup=f"{cgroup}/c", running=True),),
                )
            )
        self.set = PodSet(tuple(pods), self.set.revision + 1, now_s)

    def burn(self, pod: str, cpu_ns: int) -> None:
        for target in (pod, f"{pod}/c"):
            path = self.tree.root / "cgroup/cpuacct" / target / "cpuacct.usage"
            path.write_text(f"{int(path.read_text()) + cpu_ns}\n")


class Be:
    """doubted: times at which what is known below the roots was to be looked at anew."""

    def __init__(self, tree: HostTree) -> None:
        self.reader = RootReader(tree.host)
        self.doubted: list[float] = []

    def roots(self, pods: PodSet, now_s: float) -> tuple[tuple[str, Tree], ...]:
        return ((BE, Tree.KUBELET),)

    def read(self, path: str, tree: Tree, pods: PodSet, now_s: float) -> BeRoot:
        return self.reader.read(path, tree, ((path,),))

    def refresh(self, now_s: float, *, anew: bool) -> None:
        if anew:
            self.doubted.append(now_s)


@dataclasses.dataclass
class Rig:
    tree: HostTree
    pods: Pods
    parts: Parts
    now_s: float = 1000.0
    busy_ticks: int = 0

    def node_burn(self, mcpu: int) -> None:
        """The whole node's usage over the next second, as /proc/stat has it (100 ticks a second)."""
        self.busy_ticks += mcpu // 10
        self.tree.put("proc/stat", f"cpu  {self.busy_ticks} 0 0 99999 0 0 0 0 0 0\n")

    @property
    def quota_us(self) -> int:
        return int(self.tree.read(f"cgroup/cpu/{BE}/cpu.cfs_quota_us"))


class Names:
    """A strategy that notes which pods it was shown."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[str, ...]] = []

    def initial(self) -> None:
        return None

    def decide(self, view: NodeView, policy: Policy, state: None, now_s: float) -> Outcome[None]:
        self.seen.append(tuple(pod.name for pod in view.pods.pods))
        return Outcome((), None)


@contextlib.contextmanager
def made_rig(tmp_path: Path) -> Iterator[Rig]:
    tree = v1_two_sockets_ht(tmp_path / "node")
    for target in ("kubepods", "kubepods/burstable", BE):
        tree.cgroup(target)
    tree.put("proc/stat", "cpu  0 0 0 99999 0 0 0 0 0 0\n")
    pods = Pods(tree)
    sampler = Sampler(tree.host, RingStore(), nominal_time=True)
    journal = Journal(tmp_path / "journal", "boot")
    be = Be(tree)
    parts = Parts(
        sources=(pods,),
        sense=sampler,
        be=be,
        watch=None,
        act=Executor(tree.host, journal, lambda record: None),
        strategies=STRATEGIES,
        policy=lambda now_s: POLICY,
        node=lambda now_s: NodeInfo(name="n", capacity_mcpu=16_000),
        support=lambda now_s: SUPPORT,
        wall=lambda: 0.0,
    )
    yield Rig(tree, pods, parts)
    sampler.close()
    be.reader.close()
    journal.close()
