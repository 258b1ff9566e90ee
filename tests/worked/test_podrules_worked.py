"""Worked examples of spec/hooks 7.2 and field cases for the rules that give values to pods and containers.

Longer than other files: one per section of the specification, so that an example is found where its section is.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from koordlet.decide.podrules import PodContext, answer, group_identity
from koordlet.decide.podrules.cpuset import host_app_cpus
from koordlet.decide.podrules.quota import scale
from koordlet.decide.pools import Pool
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Knob
from koordlet.model.pod import Container, HostApp, Pod, Resources
from koordlet.model.podevent import Hook, LinuxResources, PodAnswer, PodEvent
from koordlet.model.qos import KubeQos, Qos, raw_qos
from koordlet.model.slo import CpuQos, NodeSlo, SuppressPolicy, Threshold
from koordlet.model.support import Capability, Level, Support
from koordlet.model.view import NodeInfo, Policy
from koordlet.sources.settings import read_settings
from tests.hosts.cases import case_json
from tests.unit.decide.build import P8

GATES = frozenset({"BatchResource", "CPUSetAllocator", "GroupIdentity", "CPUNormalization"})
GI, MI = 1 << 30, 1 << 20
POOLS = (Pool(0, 0, CpuSet(range(8))), Pool(1, 1, CpuSet(range(8, 16))))
STATUS = "scheduling.koordinator.sh/resource-status"
BVT = Support({Knob.CPU_BVT: Capability(Knob.CPU_BVT, Level.NATIVE, "")})


def batch(name: str, request: int | None, limit: int | None = None, memory: int | None = None) -> Container:
    return Container(
        name=name,
        cgroup=f"kubepods/besteffort/podp/{name}",
        running=True,
        requests=Resources(batch_cpu_mcpu=request, batch_memory_bytes=memory),
        limits=Resources(batch_cpu_mcpu=limit, batch_memory_bytes=memory),
    )


def pod(
    *containers: Container,
    qos: Qos | None = Qos.BE,
    kube: KubeQos = KubeQos.BESTEFFORT,
    annotations: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
) -> Pod:
    texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in (annotations or {}).items()}
    settings = read_settings(labels or {}, texts)
    return Pod(
        uid="u1",
        namespace="default",
        name="p",
        cgroup="kubepods/besteffort/podp",
        kube_qos=kube,
        qos=qos,
        containers=containers,
        cpuset=settings.resource_status.cpuset if settings.resource_status else None,
        cpuset_error=settings.fault(STATUS),
        settings=settings,
    )


def context(
    gates: frozenset[str] = GATES, slo: NodeSlo | None = None, support: Support | None = None, **parts: Any
) -> PodContext:
    node = {key: parts.pop(key) for key in list(parts) if key in NodeInfo.__dataclass_fields__}
    node.setdefault("cgroup_v2", True)
    pools = {"ls_pools": POOLS, "be_pools": POOLS, **{k: parts.pop(k) for k in list(parts) if k.endswith("_pools")}}
    return PodContext(Policy(slo=slo, gates=gates, **parts), NodeInfo(**node), support or Support(), **pools)


def asked(about: Pod, ctx: PodContext, container: Container | None = None) -> dict[Knob, Any]:
    """What the reconciler would write."""
    found = answer(PodEvent(Hook.RECONCILE, about, container, cgroup="g"), ctx)
    assert found.faults == ()
    return {decision.knob: decision.value for decision in found.decisions}


def replied(about: Pod, ctx: PodContext, name: str = "c", request: LinuxResources | None = None) -> PodAnswer:
    """What a runtime's create call is answered."""
    container = next((c for c in about.containers if c.name == name), Container(name))
    return answer(PodEvent(Hook.PRE_CREATE_CONTAINER, about, container, asked=request or LinuxResources()), ctx)


def cpu_memory(values: dict[Knob, Any]) -> tuple[Any, ...]:
    return tuple(values.get(knob) for knob in (Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.MEMORY_LIMIT))


C1, C2 = batch("c1", 1000, 2000, GI), batch("c2", 500, 1000, 512 * MI)
W7 = pod(C1, C2)
SUPPRESS_BY_QUOTA = NodeSlo(threshold=Threshold(enable=True, cpu_suppress_policy=SuppressPolicy.CFS_QUOTA))

BATCH = [
    pytest.param(W7, {}, (1536, 300_000, 1_610_612_736), (1024, 200_000, GI), (512, 100_000, 512 * MI), id="W7"),
    pytest.param(
        W7,
        {"cpu_normalization_ratio": 1.5},
        (1536, 200_000, 1_610_612_736),
        (1024, 133_334, GI),
        (512, 66_667, 512 * MI),
        id="W8",
    ),
    pytest.param(pod(C1, batch("c2", 500)), {}, (1536, -1, -1), (1024, 200_000, GI), (512, -1, -1), id="W9"),
    pytest.param(
        W7,
        {"slo": SUPPRESS_BY_QUOTA},
        (1536, -1, 1_610_612_736),
        (1024, -1, GI),
        (512, -1, 512 * MI),
        id="W10",
    ),
]


@pytest.mark.parametrize(("about", "parts", "whole", "first", "second"), BATCH)
def test_batch(about: Pod, parts: dict[str, Any], whole: Any, first: Any, second: Any) -> None:
    ctx = context(**parts)
    assert cpu_memory(asked(about, ctx)) == whole
    assert cpu_memory(asked(about, ctx, about.containers[0])) == first
    assert cpu_memory(asked(about, ctx, about.containers[1])) == second


@pytest.mark.parametrize(("about", "parts", "whole", "first", "second"), BATCH)
def test_batch_from_the_annotation_alone(
    about: Pod, parts: dict[str, Any], whole: Any, first: Any, second: Any
) -> None:
    """A door that knows no pod spec gives the same values."""
    rows = {
        c.name: {
            "requests": {"kubernetes.io/batch-cpu": str(c.requests.batch_cpu_mcpu)},
            "limits": {
                "kubernetes.io/batch-cpu": str(c.limits.batch_cpu_mcpu or 0),
                "kubernetes.io/batch-memory": str(c.limits.batch_memory_bytes or 0),
            },
        }
        for c in about.containers
    }
    bare = pod(annotations={"node.koordinator.sh/extended-resource-spec": {"containers": rows}})
    ctx = context(**parts)
    assert cpu_memory(asked(bare, ctx)) == whole
    for name, values in (("c1", first), ("c2", second)):
        reply = replied(bare, ctx, name).resources
        assert (reply.cpu_shares, reply.cpu_quota_us, reply.memory_limit_bytes) == values


def test_w11_a_batch_cpu_of_500m_is_one_milli_core() -> None:
    text = {
        "containers": {
            "c": {"requests": {"kubernetes.io/batch-cpu": "500m"}, "limits": {"kubernetes.io/batch-cpu": "500m"}}
        }
    }
    reply = replied(pod(annotations={"node.koordinator.sh/extended-resource-spec": text}), context()).resources
    assert (reply.cpu_shares, reply.cpu_quota_us) == (2, 1000)


def test_w12_an_empty_list_of_containers_writes_nothing() -> None:
    bare = pod(annotations={"node.koordinator.sh/extended-resource-spec": {"containers": {}}})
    assert asked(bare, context()) == {}


def test_mid_resources_count_as_batch_ones_do() -> None:
    mid = Resources(mid_cpu_mcpu=1000, mid_memory_bytes=256 * MI)
    container = Container("main", cgroup="c", running=True, requests=mid, limits=mid)
    assert cpu_memory(asked(pod(container), context())) == (1024, 100_000, 256 * MI)
    assert asked(pod(container, qos=Qos.LS), context(ls_pools=(), be_pools=())) == {}


def test_case_batch_limit_missing() -> None:
    expected = case_json("batch-limit-missing")
    about = pod(
        annotations={"node.koordinator.sh/extended-resource-spec": case_json("batch-limit-missing", "annotation.json")}
    )
    whole = asked(about, context())
    assert cpu_memory(whole) == tuple(expected["pod"][k] for k in ("cpu_shares", "cfs_quota", "memory_limit"))
    for name in ("a", "b"):
        reply = replied(about, context(), name).resources
        values = (reply.cpu_shares, reply.cpu_quota_us, reply.memory_limit_bytes)
        assert values == tuple(expected[name][k] for k in ("cpu_shares", "cfs_quota", "memory_limit"))
    assert asked(pod(), context()) == {}


def test_case_nil_resources_response() -> None:
    expected = case_json("nil-resources-response")
    about = pod(
        annotations={
            "node.koordinator.sh/extended-resource-spec": case_json("nil-resources-response", "annotation.json")
        }
    )
    reply = replied(about, context(), "a").resources
    assert reply.cpu_shares == expected["cpu_shares"]
    assert reply.cpu_quota_us == expected["cfs_quota"]
    assert reply.memory_limit_bytes == expected["memory_limit"]
    assert bool(reply.cpuset) is expected["cpuset_set"]


SCALE = [
    (200_000, 1.2, 166_667),
    (400_000, 1.2, 333_334),
    (150_000, 1.2, 125_000),
    (150_000, 0.8, 150_000),
    (-1, 1.2, -1),
    (1000, 3, 334),
    (150_000, 1.35, 111_112),
]


@pytest.mark.parametrize(("quota_us", "ratio", "scaled"), SCALE, ids=[f"W5-{q}-{r}" for q, r, _ in SCALE])
def test_scale(quota_us: int, ratio: float, scaled: int) -> None:
    assert scale(quota_us, ratio) == scaled


def test_normalization_leaves_a_pod_on_the_kubelets_exclusive_cpus_alone() -> None:
    container = Container("c", cgroup="g", running=True, limits=Resources(cpu_mcpu=2000))
    about = pod(container, qos=Qos.LS, kube=KubeQos.GUARANTEED)
    assert asked(about, context(cpu_normalization_ratio=1.25), container)[Knob.CPU_QUOTA] == 160_000
    exclusive = context(cpu_normalization_ratio=1.25, kubelet_policy="static")
    assert Knob.CPU_QUOTA not in asked(about, exclusive, container)
    assert Knob.CPU_QUOTA not in asked(about, exclusive)


def test_w6_normalization_is_idempotent() -> None:
    """Each answer starts from what the runtime asks, never from what an earlier answer made of it."""
    about = pod(Container("c"), qos=Qos.LS, kube=KubeQos.BURSTABLE)
    ctx = context(cpu_normalization_ratio=1.2)
    for _ in range(3):
        assert replied(about, ctx, request=LinuxResources(cpu_quota_us=400_000)).resources.cpu_quota_us == 333_334


def test_case_cpu_normalization_parent_child() -> None:
    scenario, expected = (case_json("cpu-normalization-parent-child", f) for f in ("scenario.json", "expected.json"))
    for row, scaled in zip(scenario["pods"], expected["ratio_1.20"], strict=True):
        containers = tuple(
            Container(f"c{n}", cgroup=f"c{n}", running=True, limits=Resources(cpu_mcpu=limit))
            for n, limit in enumerate(row["containers"])
        )
        about = pod(*containers, qos=Qos.LS, kube=KubeQos.BURSTABLE)
        ctx = context(cpu_normalization_ratio=1.2)
        unlimited = None  # no opinion: the kubelet's -1 stays
        assert asked(about, ctx).get(Knob.CPU_QUOTA, unlimited) == (scaled["pod"] if scaled["pod"] > 0 else unlimited)
        for container, quota in zip(containers, scaled["containers"], strict=True):
            found = asked(about, ctx, container).get(Knob.CPU_QUOTA, unlimited)
            assert found == (quota if quota > 0 else unlimited)
        # 1.00: no opinion, so that act gives the original back.
        assert Knob.CPU_QUOTA not in asked(about, context(cpu_normalization_ratio=1.0))


def test_on_cgroup_v1_a_pod_is_lowered_only_when_the_runtimes_next_write_is_ours_too() -> None:
    limited = Container("c", cgroup="c", running=True, limits=Resources(cpu_mcpu=1000))
    about = pod(limited, qos=Qos.LS, kube=KubeQos.BURSTABLE)
    alone = context(cpu_normalization_ratio=2.0, cgroup_v2=False)
    assert Knob.CPU_QUOTA not in asked(about, alone)
    assert asked(about, alone, limited)[Knob.CPU_QUOTA] == 50_000
    assert asked(about, context(cpu_normalization_ratio=2.0, cgroup_v2=False, hooked=True))[Knob.CPU_QUOTA] == 50_000


CLASSES = NodeSlo(lsr_cpu=CpuQos(True, 2), ls_cpu=CpuQos(True, 2), be_cpu=CpuQos(True, -1))
ONLY_LS = NodeSlo(ls_cpu=CpuQos(True, 2))
CPU_QOS = "koordinator.sh/cpuQOS"
BVTS = [
    pytest.param(Qos.LS, KubeQos.BURSTABLE, {"enable": True, "groupIdentity": -1}, ONLY_LS, -1, id="W13"),
    pytest.param(Qos.LS, KubeQos.BURSTABLE, {"groupIdentity": -1}, ONLY_LS, 0, id="W14"),
    pytest.param(Qos.LSR, KubeQos.GUARANTEED, {"enable": True, "groupIdentity": -1}, CLASSES, 2, id="W15"),
    pytest.param(None, KubeQos.BURSTABLE, None, CLASSES, 2, id="W16"),
    pytest.param(Qos.LS, KubeQos.BURSTABLE, {"enable": True, "groupIdentity": 3}, ONLY_LS, None, id="W17"),
    pytest.param(Qos.LS, KubeQos.BURSTABLE, {"groupIdentity": -1}, ONLY_LS, 0, id="V-43"),
    pytest.param(None, KubeQos.BESTEFFORT, None, CLASSES, -1, id="none-besteffort"),
    pytest.param(None, KubeQos.GUARANTEED, None, ONLY_LS, 2, id="none-guaranteed-falls-to-ls"),
    pytest.param(Qos.LSE, KubeQos.GUARANTEED, None, CLASSES, 2, id="lse-as-lsr"),
    pytest.param(Qos.SYSTEM, KubeQos.BURSTABLE, None, CLASSES, 2, id="system-by-kube-qos"),
]


@pytest.mark.parametrize(("qos", "kube", "annotation", "slo", "bvt"), BVTS)
def test_group_identity(qos: Qos | None, kube: KubeQos, annotation: Any, slo: NodeSlo, bvt: int | None) -> None:
    about = pod(qos=qos, kube=kube, annotations={CPU_QOS: annotation} if annotation else {})
    assert asked(about, context(slo=slo, support=BVT)).get(Knob.CPU_BVT) == bvt
    assert Knob.CPU_BVT not in asked(about, context(slo=slo)), "a kernel without bvt gets none"
    assert Knob.CPU_BVT not in asked(about, context(gates=frozenset(), slo=slo, support=BVT))


def test_case_lse_same_as_lsr() -> None:
    given, expected = case_json("lse-same-as-lsr", "nodeslo.json"), case_json("lse-same-as-lsr")["bvt"]
    classes = given["resourceQOSStrategy"]
    qos = {name: CpuQos(True, classes[f"{name}Class"]["cpuQOS"]["groupIdentity"]) for name in ("lsr", "ls", "be")}
    ctx = context(slo=NodeSlo(lsr_cpu=qos["lsr"], ls_cpu=qos["ls"], be_cpu=qos["be"]), support=BVT)
    for name, bvt in expected.items():
        assert group_identity.pod_bvt(pod(qos=Qos(name), kube=KubeQos.GUARANTEED), ctx) == bvt


def test_idle_lies_on_be_pods_only_and_only_when_asked() -> None:
    idle = Support({Knob.CPU_IDLE: Capability(Knob.CPU_IDLE, Level.NATIVE, "")})
    made = replace(pod(), containers=(Container("main", "containerd://c"),))
    assert asked(made, context(support=idle, idle_on_be_pods=True)) == {Knob.CPU_IDLE: 1}
    assert asked(made, context(support=idle)) == {}
    assert asked(pod(C1), context(support=idle, idle_on_be_pods=True), C1).get(Knob.CPU_IDLE) is None
    off = NodeSlo(be_cpu=CpuQos(enable=True, group_identity=0, sched_idle=0))
    assert asked(made, context(support=idle, idle_on_be_pods=True, slo=off)) == {}
    assert asked(made, context(idle_on_be_pods=True)) == {}, "a kernel without it"


NODE1 = {"numaNodeResources": [{"node": 1, "resources": {"cpu": "4"}}]}
GPU_ONLY = {"numaNodeResources": [{"node": 1, "resources": {"koordinator.sh/gpu-core": "50"}}]}
BURSTABLE, BESTEFFORT = KubeQos.BURSTABLE, KubeQos.BESTEFFORT
CPUSETS = [
    pytest.param(Qos.LS, BURSTABLE, None, {}, "0-15", id="W18"),
    pytest.param(Qos.LS, BURSTABLE, NODE1, {}, "8-15", id="W19"),
    pytest.param(Qos.LS, BURSTABLE, GPU_ONLY, {}, "0-15", id="W20"),
    pytest.param(None, BESTEFFORT, None, {}, None, id="W21"),
    pytest.param(None, BURSTABLE, None, {"kubelet_policy": "static"}, None, id="W22-static"),
    pytest.param(None, BURSTABLE, None, {"kubelet_policy": "none"}, "0-15", id="W22-none"),
    pytest.param(None, BURSTABLE, None, {"kubelet_policy": None}, None, id="kubelet-policy-malformed"),
    pytest.param(Qos.SYSTEM, BURSTABLE, None, {"system_cpuset": CpuSet((0, 1))}, "0-1", id="W24-set"),
    pytest.param(Qos.SYSTEM, BURSTABLE, None, {}, "0-15", id="W24-not-set"),
    pytest.param(Qos.LSR, BURSTABLE, {"cpuset": "2-3"}, {}, "2-3", id="W23"),
    pytest.param(Qos.LS, BURSTABLE, "{", {}, None, id="malformed"),
]


@pytest.mark.parametrize(("qos", "kube", "status", "parts", "cpus"), CPUSETS)
def test_cpuset(qos: Qos | None, kube: KubeQos, status: Any, parts: dict[str, Any], cpus: str | None) -> None:
    container = Container("c", cgroup="g", running=True)
    about = pod(container, qos=qos, kube=kube, annotations={STATUS: status} if status else {})
    found = asked(about, context(**parts), container).get(Knob.CPUSET)
    assert (None if found is None else str(found)) == cpus
    reply = replied(about, context(**parts)).resources.cpuset
    assert (str(reply) or None if reply is not None else None) == cpus


def test_w21_a_reply_lets_go_of_what_a_kubelet_pinned() -> None:
    reply = replied(pod(Container("c"), qos=None), context(), request=LinuxResources(cpuset=CpuSet((0,))))
    assert reply.resources.cpuset == CpuSet()


@pytest.mark.parametrize("unset", [True, False])
def test_w23_a_pinned_pod_runs_without_quota(unset: bool) -> None:
    container = Container("c", cgroup="g", running=True, limits=Resources(cpu_mcpu=2000))
    about = pod(container, qos=Qos.LSR, kube=KubeQos.GUARANTEED, annotations={STATUS: {"cpuset": "2-3"}})
    ctx = context(unset_cpu_quota=unset)
    assert asked(about, ctx).get(Knob.CPU_QUOTA) == (-1 if unset else None)
    assert asked(about, ctx, container).get(Knob.CPU_QUOTA) == (-1 if unset else None)
    assert replied(about, ctx).resources.cpu_quota_us == (-1 if unset else None)


def test_an_allocation_of_cpus_that_are_not_here_changes_nothing() -> None:
    """The reference unpins the pod and lifts its quota (seen, correction 2)."""
    container = Container("c", cgroup="g", running=True, limits=Resources(cpu_mcpu=1000))
    about = pod(container, qos=Qos.LSR, kube=KubeQos.GUARANTEED, annotations={STATUS: {"cpuset": "8-9"}})
    ctx = context(topology=P8)
    assert asked(about, ctx) == {}
    assert asked(about, ctx, container) == {}


def test_a_kubelets_exclusive_cpus_are_left_alone() -> None:
    """R-P5: a Guaranteed container with whole CPUs belongs to the static policy, whatever its label."""
    whole = Container("c", cgroup="g", running=True, limits=Resources(cpu_mcpu=2000))
    part = Container("c", cgroup="g", running=True, limits=Resources(cpu_mcpu=500))
    for container, cpus in ((whole, None), (part, CpuSet(range(16)))):
        about = pod(container, qos=Qos.LS, kube=KubeQos.GUARANTEED)
        assert asked(about, context(kubelet_policy="static"), container).get(Knob.CPUSET) == cpus
    bare = pod(Container("c"), qos=Qos.LS, kube=KubeQos.GUARANTEED)
    static = context(kubelet_policy="static")
    assert replied(bare, static, request=LinuxResources(cpu_quota_us=50_000)).resources.cpuset == CpuSet(range(16))
    assert replied(bare, static, request=LinuxResources(cpu_quota_us=200_000)).resources.cpuset is None


def test_case_numa_aware_cpuset_rule() -> None:
    name = "numa-aware-cpuset-rule"
    ls, be = (
        tuple(Pool(row["socket"], row["node"], CpuSet.parse(row["cpuset"])) for row in case_json(name, file))
        for file in ("share_pools.json", "be_share_pools.json")
    )
    system = CpuSet.parse(case_json(name, "system_qos.json")["cpuset"])
    expected = case_json(name)

    def cpus(row: dict[str, Any], **parts: Any) -> str | None:
        about = pod(
            Container("c"),
            qos=raw_qos(row["qos"]),
            kube=KubeQos(row["kube"]),
            annotations={STATUS: row["rs"]} if "rs" in row else {},
        )
        found = replied(about, context(ls_pools=ls, be_pools=be, system_cpuset=system, **parts)).resources.cpuset
        return None if found is None else str(found)

    rows = {row["name"]: row for row in case_json(name, "pods.json")}
    for key in ("ls-cpu-node0", "ls-mem-node0", "ls-cpu-both", "system"):
        assert cpus(rows[key]) == expected[key]
    assert cpus(rows["be-node1"], gates=GATES | {"BECPUManager"}) == expected["be-node1"]["BECPUManager_on"]
    assert cpus(rows["be-node1"]) == expected["be-node1"]["BECPUManager_off"]
    plain = rows["plain-burstable"]
    assert cpus(plain) == expected["plain-burstable"]["policy_none"]
    assert cpus(plain, kubelet_policy="static") == expected["plain-burstable"]["policy_static"]


def test_only_ls_host_applications_are_placed() -> None:
    assert host_app_cpus(HostApp("edge", "edge", Qos.LS), context()) == CpuSet(range(16))
    assert host_app_cpus(HostApp("x", "x", Qos.BE), context()) is None


def test_a_rule_that_fails_leaves_the_others_values(monkeypatch: pytest.MonkeyPatch) -> None:
    from koordlet.decide import podrules

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(podrules, "RULES", (("Broken", "", broken), *podrules.RULES))
    found = answer(PodEvent(Hook.RECONCILE, W7), context())
    assert found.faults == ("Broken: ZeroDivisionError: oh",)
    assert len(found.decisions) == 3
