"""What the doors tell becomes a set of pods with a revision and an age."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koordlet.model.cpuset import CpuSet
from koordlet.model.pod import NO_CLAIM, Container, Pod, Resources
from koordlet.model.podevent import LinuxResources
from koordlet.model.qos import KubeQos
from koordlet.sources.merge import filled, merge_pods
from koordlet.sources.runtime import RuntimeSource
from koordlet.sources.sandbox import Sandbox, SandboxContainer


def sandbox(uid: str = "u1", id: str = "", parent: str = "") -> Sandbox:
    return Sandbox(uid, "shop", f"web-{uid}", id or f"sb-{uid}", parent or f"/kubepods/burstable/pod{uid}")


def container(name: str = "app", id: str = "c1", uid: str = "u1", **more: object) -> SandboxContainer:
    return SandboxContainer(name, id, f"/kubepods/burstable/pod{uid}/{id}", **more)  # type: ignore[arg-type]


@pytest.fixture
def source() -> RuntimeSource:
    return RuntimeSource(complete=True)


def names(source: RuntimeSource) -> dict[str, list[str]]:
    return {pod.uid: [c.id for c in pod.containers] for pod in source.poll(1.0).pods}


def test_the_revision_grows_with_changes_only(source: RuntimeSource) -> None:
    assert source.poll(1.0).revision == 0
    source.sandbox(sandbox())
    first = source.poll(1.0)
    source.sandbox(sandbox())
    again = source.poll(2.0)
    assert (first.revision, again.revision, again.at_s) == (1, 1, 2.0)
    assert again.pods is first.pods


def test_what_is_not_synchronized_is_gone(source: RuntimeSource) -> None:
    source.synchronized(
        "containerd", [sandbox(), sandbox("u2")], [("sb-u1", container()), ("sb-u2", container(uid="u2"))]
    )
    source.synchronized("containerd", [sandbox()], [("sb-u1", container("app", "c2")), ("sb-zz", container())])
    assert names(source) == {"u1": ["containerd://c2"]}


def test_what_a_container_was_created_with_outlives_a_synchronization(source: RuntimeSource) -> None:
    """Its present values are adjusted ones: taken for the request they would be adjusted twice."""
    source.sandbox(sandbox())
    source.container("u1", container(asked=LinuxResources(cpu_quota_us=400_000)), "containerd")
    source.synchronized("containerd", [sandbox()], [("sb-u1", container(running=True))])
    (found,) = source.poll(1.0).pods[0].containers
    assert (found.limits.cpu_mcpu, found.running) == (4000, True)
    source.synchronized("containerd", [sandbox()], [("sb-u1", container("app", "c9"))])
    assert source.poll(1.0).pods[0].containers[0].limits == Resources()


def test_a_resize_changes_what_it_names(source: RuntimeSource) -> None:
    source.sandbox(sandbox())
    asked = LinuxResources(cpu_quota_us=400_000, memory_limit_bytes=1 << 20)
    source.container("u1", container(asked=asked), "containerd")
    source.resized("u1", "app", LinuxResources(cpu_quota_us=200_000), 0.5)
    assert source.poll(1.0).pods[0].containers[0].limits == Resources(cpu_mcpu=2000, memory_bytes=1 << 20)


def test_a_spec_is_behind_a_resize_for_a_while(source: RuntimeSource) -> None:
    source.sandbox(sandbox())
    source.container("u1", container(asked=LinuxResources(cpu_quota_us=400_000)), "containerd")
    app, other = (Container(name, limits=Resources(cpu_mcpu=4000, memory_bytes=1 << 20)) for name in ("app", "other"))
    spec = Pod("u1", "lab", "web", "kubepods/podu1", KubeQos.BURSTABLE, containers=(app, other))
    assert source.up_to_date(spec, 9.0) is spec
    source.resized("u1", "app", LinuxResources(cpu_quota_us=100_000), 10.0)
    source.resized("u1", "app", LinuxResources(cpuset=CpuSet([0])), 11.0)
    found = source.up_to_date(spec, 12.0)
    assert found.containers == (replace(app, limits=Resources(cpu_mcpu=1000, memory_bytes=1 << 20)), other)
    assert source.up_to_date(found, 12.0) is found
    source.resized("u1", "app", LinuxResources(cpu_quota_us=-1), 13.0)
    assert source.up_to_date(spec, 14.0).containers[0].limits.cpu_mcpu is None
    assert source.up_to_date(spec, 43.0) is spec


def test_an_older_sandboxs_end_does_not_end_the_pod(source: RuntimeSource) -> None:
    source.sandbox(sandbox(id="sb-1"))
    source.sandbox(sandbox(id="sb-2"))
    source.sandbox_gone("u1", "sb-1")
    assert list(names(source)) == ["u1"]
    source.sandbox_gone("u1", "sb-2")
    assert names(source) == {}


def test_an_older_containers_end_does_not_end_the_new_one(source: RuntimeSource) -> None:
    source.sandbox(sandbox())
    source.container("u1", container(id="c2"), "containerd")
    source.container_gone("u1", "app", "containerd://c1")
    assert names(source) == {"u1": ["containerd://c2"]}
    source.container_gone("u1", "app", "containerd://c2")
    assert names(source) == {"u1": []}


def test_a_pod_that_nobody_would_end_is_forgotten(source: RuntimeSource) -> None:
    source.sandbox(sandbox(), until_s=30.0)
    assert len(source.poll(29.0).pods) == 1
    source.sandbox(sandbox(), until_s=60.0)
    assert len(source.poll(31.0).pods) == 1
    assert source.poll(61.0).pods == ()


def test_age() -> None:
    alone, beside = RuntimeSource(complete=True), RuntimeSource(complete=False)
    for source in (alone, beside):
        source.lost(5.0)
    assert alone.poll(50.0).at_s == 50.0  # nothing is known that could be old
    alone.synchronized("containerd", [sandbox()], [])
    assert alone.poll(51.0).at_s == 51.0
    alone.lost(52.0)
    alone.lost(53.0)
    assert alone.poll(60.0).at_s == 52.0
    assert beside.poll(60.0).at_s == NO_CLAIM


def test_a_pod_without_a_directory_is_named_and_left_out(source: RuntimeSource) -> None:
    source.sandbox(Sandbox("u1", "shop", "web", "sb", "/"))
    assert source.poll(1.0).pods == ()
    assert source.find("u1") is not None
    assert "names no cgroup" in source.errors()[0]


def test_a_fault_in_one_pod_is_that_pods(source: RuntimeSource) -> None:
    bad = Sandbox("u1", "shop", "web", "sb", "/kubepods/podu1", {}, {"koordinator.sh/cpuQOS": "{"})
    source.synchronized("containerd", [Sandbox("../x", "n", "p"), bad, sandbox("u2")], [])
    assert sorted(names(source)) == ["u1", "u2"]
    assert len(source.errors()) == 2


def test_merging_fills_in_what_the_first_source_does_not_know() -> None:
    named = Container("app", "containerd://c1", "kubepods/podu/c1", running=True)
    spec = Container("app", requests=Resources(cpu_mcpu=500))
    listed = Pod("u", "ns", "p", "kubepods/podu", KubeQos.GUARANTEED, containers=(spec, Container("side")))
    told = Pod("u", "ns", "p", "kubepods/podu", KubeQos.BURSTABLE, containers=(named,))
    only = Pod("v", "ns", "q", "kubepods/podv", KubeQos.BURSTABLE)
    merged = merge_pods([(listed,), (told, only)])
    assert [pod.uid for pod in merged] == ["u", "v"]
    app = merged[0].containers[0]
    assert (app.id, app.cgroup, app.running, app.requests.cpu_mcpu) == (named.id, named.cgroup, True, 500)
    assert (merged[0].kube_qos, merged[0].containers[1]) == (KubeQos.GUARANTEED, Container("side"))
    assert filled(merged[0], told) is merged[0]


class Told(RuleBasedStateMachine):
    """However doors and synchronizations mix, the set is what was told last."""

    uids = st.sampled_from(["u1", "u2", "u3"])

    def __init__(self) -> None:
        super().__init__()
        self.source = RuntimeSource(complete=True)
        self.pods: dict[str, set[str]] = {}

    @rule(uid=uids)
    def begins(self, uid: str) -> None:
        self.source.sandbox(sandbox(uid))
        self.pods.setdefault(uid, set())

    @rule(uid=uids, name=st.sampled_from(["a", "b"]))
    def container(self, uid: str, name: str) -> None:
        self.source.container(uid, container(name, name, uid), "containerd")
        if uid in self.pods:
            self.pods[uid].add(name)

    @rule(uid=uids, name=st.sampled_from(["a", "b"]))
    def container_ends(self, uid: str, name: str) -> None:
        self.source.container_gone(uid, name, f"containerd://{name}")
        self.pods.get(uid, set()).discard(name)

    @rule(uid=uids)
    def ends(self, uid: str) -> None:
        self.source.sandbox_gone(uid, f"sb-{uid}")
        self.pods.pop(uid, None)

    @rule(uids=st.sets(uids), names=st.sets(st.sampled_from(["a", "b"])))
    def synchronized(self, uids: set[str], names: set[str]) -> None:
        told = [(f"sb-{uid}", container(name, name, uid)) for uid in uids for name in names]
        self.source.synchronized("containerd", [sandbox(uid) for uid in uids], told)
        self.pods = {uid: set(names) for uid in uids}

    @invariant()
    def same(self) -> None:
        found = {pod.uid: {c.name for c in pod.containers} for pod in self.source.poll(1.0).pods}
        assert found == self.pods


TestTold = Told.TestCase
