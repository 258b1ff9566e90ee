from pathlib import Path

import pytest

from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.kubepods import Driver, Kubepods
from koordlet.model.pod import Pod, PodSet, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.sources.beroots import be_roots
from tests.hosts.tree import HostTree

SYSTEMD = Kubepods(Driver.SYSTEMD)


@pytest.fixture(params=list(CgroupVersion))
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> HostTree:
    return HostTree(tmp_path, request.param)


def node(tree: HostTree, *paths: str) -> None:
    """cgroups; a path with "!" at its end holds a process."""
    for path in paths:
        bare = path.rstrip("!")
        tree.cgroup(bare)
        procs = tree.host.dir("cpu", bare) / "cgroup.procs"
        procs.write_text("42\n" if path.endswith("!") else "")


def declared(be: list[str], online: list[str] = []) -> PodSet:  # noqa: B006
    pods = [Pod(path, "local", path, path, KubeQos.BESTEFFORT, Tree.OURS, qos=Qos.BE) for path in be]
    pods += [Pod(path, "local", path, path, KubeQos.BURSTABLE, Tree.OURS, qos=Qos.LS) for path in online]
    return PodSet(tuple(pods))


def roots(tree: HostTree, pods: PodSet, kubepods: Kubepods | None = None) -> list[str]:
    found = be_roots(pods, kubepods, tree.host)
    assert list(found) == sorted(found)
    return [path for path, _ in found]


def test_a_kubelets_best_effort_directory(tree: HostTree) -> None:
    assert be_roots(PodSet(), None, tree.host) == ()
    assert be_roots(PodSet(), SYSTEMD, tree.host) == (("kubepods.slice/kubepods-besteffort.slice", Tree.KUBELET),)


ROWS = [
    # cgroups, best effort, online -> roots
    (["b.slice/x.scope!", "b.slice/y.scope!"], ["b.slice/x.scope", "b.slice/y.scope"], [], ["b.slice"]),
    (["b.slice/c.slice/x.scope!"], ["b.slice/c.slice/x.scope"], [], ["b.slice"]),
    (["b.slice/x.scope!", "b.slice/idle.scope"], ["b.slice/x.scope"], [], ["b.slice"]),
    (["b.slice/x.scope!", "b.slice/other.scope!"], ["b.slice/x.scope"], [], ["b.slice/x.scope"]),
    (["b.slice/x.scope!", "b.slice/o/deep!"], ["b.slice/x.scope"], [], ["b.slice/x.scope"]),
    (["b.slice!", "b.slice/x.scope!"], ["b.slice/x.scope"], [], ["b.slice/x.scope"]),
    (["b.slice/x.scope!", "b.slice/web!"], ["b.slice/x.scope"], ["b.slice/web"], ["b.slice/x.scope"]),
    (["b.slice/x.scope", "b.slice/web"], ["b.slice/x.scope"], ["b.slice/web"], ["b.slice/x.scope"]),
    (["b/c/x!", "b/c/y!", "b/web!"], ["b/c/x", "b/c/y"], ["b/web"], ["b/c"]),
    (["b/x!", "bb/web!"], ["b/x"], ["bb/web"], ["b"]),
    (["system.slice/job.service!"], ["system.slice/job.service"], [], ["system.slice/job.service"]),
    (["x!"], ["x"], [], ["x"]),
    (["x/inner!"], ["x", "x/inner"], [], ["x"]),
    (["x/web!"], ["x"], ["x/web"], []),
    ([], ["gone.slice/x.scope"], [], ["gone.slice"]),
]
IDS = [
    "siblings share their slice", "two levels up", "an empty stranger does not count", "a running stranger",
    "a stranger deeper down", "processes in the slice itself", "online beside it", "online beside it, not started",
    "up to the online work", "a name that only starts alike", "never system.slice", "top level",
    "nested best effort", "online work inside", "cgroup already gone",
]  # fmt: skip


@pytest.mark.parametrize(("cgroups", "be", "online", "want"), ROWS, ids=IDS)
def test_the_topmost_cgroup_of_best_effort_only(
    tree: HostTree, cgroups: list[str], be: list[str], online: list[str], want: list[str]
) -> None:
    node(tree, *cgroups)
    assert roots(tree, declared(be, online)) == want


def test_never_above_the_kubelets_tree(tree: HostTree) -> None:
    node(tree, "k8s/kubepods/besteffort", "k8s/batch!")
    kubepods = Kubepods(Driver.CGROUPFS, "/k8s")
    assert roots(tree, declared(["k8s/batch"]), kubepods) == ["k8s/batch", "k8s/kubepods/besteffort"]


def test_a_crowded_ancestor_is_not_searched_for_ever(tree: HostTree) -> None:
    for number in range(1100):
        (tree.host.dir("cpu", f"b/n{number}")).mkdir(parents=True)
    node(tree, "b/x!")
    assert roots(tree, declared(["b/x"])) == ["b/x"]


def test_kubelet_pods_do_not_matter(tree: HostTree) -> None:
    pod = Pod("u", "ns", "p", "kubepods/besteffort/podu", KubeQos.BESTEFFORT)
    assert be_roots(PodSet((pod,)), None, tree.host) == ()
