"""`BeInput`: the best-effort roots and what their files say; `ls_groups`: which groups stand for the online side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from koordlet.decide import be_cpus
from koordlet.inputs import KubepodsInput
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.kubepods import Kubepods
from koordlet.model.places import inside
from koordlet.model.pod import PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.slo import SuppressPolicy
from koordlet.model.view import BeRoot, NodeInfo, Policy
from koordlet.sense.betree import BeTree, Levels, RootReader
from koordlet.sense.changes import Places
from koordlet.sense.childquota import ChildQuotas
from koordlet.sources.beroots import be_roots

ROOTS_EVERY_S: Final = 5.0
MAX_LS_GROUPS: Final = 16


class BeInput:
    """Best-effort roots, where they are and what their files say (parts.BeView).

    The directories below them are listed only while some policy writes there.
    """

    def __init__(
        self, host: Host, kubepods: KubepodsInput, policy: Callable[[], Policy], node: Callable[[float], NodeInfo]
    ) -> None:
        self._host, self._kubepods, self._policy, self._node = host, kubepods, policy, node
        self._kept: tuple[tuple[object, ...], bool] = ((), False)
        self._tree, self._reader = BeTree(host), RootReader(host)
        self._quotas: dict[str, ChildQuotas] = {}
        self._requests: tuple[int, dict[str, int]] = (-1, {})
        self._revision = -1
        self._key: tuple[object, ...] = ()
        self._looked_s = float("-inf")
        self._changed = False
        self._roots: tuple[tuple[str, Tree], ...] = ()
        self._places = Places()

    @property
    def first(self) -> str | None:
        """A root that exists, for probing."""
        return self._roots[0][0] if self._roots else None

    @property
    def complete(self) -> bool:
        """Every root that there is to be is there, with its files."""
        return not self._changed

    @property
    def places(self) -> Places:
        """Where a change of the known roots shows: a directory made or removed in one, and their own files. The same
        object while the roots are the same."""
        return self._places

    def roots(self, pods: PodSet, now_s: float) -> tuple[tuple[str, Tree], ...]:
        node = self._node(now_s)
        if (kept := (pods.revision, node)) != self._kept[0]:
            self._kept = (kept, be_cpus.keeps_back(pods.pods, node))
        if pods.revision != self._revision:
            self._revision = pods.revision
            self._tree.hurry()
        key = (pods.revision, self._kubepods.get)
        if key != self._key or now_s - self._looked_s >= ROOTS_EVERY_S or self._changed:
            self._key, self._looked_s = key, now_s
            kubepods = self._kubepods.get if self._kubepods.wanted else None
            found = be_roots(pods, kubepods, self._host)
            self._roots = tuple((path, tree) for path, tree in found if self._host.dir("cpu", path).is_dir())
            self._changed = len(self._roots) < len(found)  # look again at once when the missing one is made
            paths = tuple(path for path, _ in self._roots)
            self._tree.keep(paths)
            self._reader.keep(paths)
            self._quotas = {path: known for path, known in self._quotas.items() if path in paths}
            groups = tuple(self._host.dir("cpuset", path) for path in paths)
            files = tuple(file for path in paths for file in self._reader.files(path))
            if (places := Places(groups=groups, contents=files)) != self._places:
                self._places = places
        return self._roots

    def read(self, path: str, tree: Tree, pods: PodSet, now_s: float) -> BeRoot:
        levels: Levels = ((path,),)
        quotas: tuple[tuple[str, int], ...] = ()
        if self._writes_below() or self._bounds_below():
            levels = self._tree.levels(path)
        if self._writes_below():
            if path not in self._quotas:
                self._quotas[path] = ChildQuotas(self._host)
            quotas = self._quotas[path].read(levels, now_s)
        root = self._reader.read(path, tree, levels, self._request(path, pods), quotas)
        if root.quota_us is None and root.shares is None:
            self._changed = True
        return root

    def refresh(self, now_s: float, *, anew: bool) -> None:
        if anew:
            self._tree.invalidate()
            for quotas in self._quotas.values():
                quotas.forget()
        elif self._writes_below() or self._bounds_below():
            self._tree.refresh(now_s)

    def _writes_below(self) -> bool:
        policy = self._policy()
        threshold = policy.slo.threshold if policy.slo else None
        if threshold is None or not threshold.enable:
            return False
        cpuset = threshold.cpu_suppress_policy is SuppressPolicy.CPUSET
        return cpuset or self._host.version is CgroupVersion.V1  # where quotas below a root get in a cap's way

    def _bounds_below(self) -> bool:
        return self._kept[1] and be_cpus.in_force(self._policy())

    def _request(self, path: str, pods: PodSet) -> int:
        """Sum of batch-cpu requests below a root, kept until the pods change."""
        if self._requests[0] != pods.revision:
            self._requests = (pods.revision, {})
        known = self._requests[1]
        if path not in known:
            known[path] = sum(pod.batch_request_mcpu for pod in pods.pods if pod.active and inside(pod.cgroup, path))
        return known[path]

    def close(self) -> None:
        self._reader.close()


def ls_groups(pods: PodSet, kubepods: Kubepods | None) -> tuple[str, ...]:
    """Cgroups whose CPU pressure is the online side's: the kubelet's burstable class and pinned pods' own."""
    groups = [kubepods.qos_dir(KubeQos.BURSTABLE)] if kubepods is not None else []
    for pod in pods.pods:
        own = pod.tree is Tree.OURS or pod.kube_qos is KubeQos.GUARANTEED
        if own and pod.active and pod.default_qos in (Qos.LSE, Qos.LSR, Qos.LS):
            groups.append(pod.cgroup)
        if len(groups) >= MAX_LS_GROUPS:
            break
    return tuple(groups)
