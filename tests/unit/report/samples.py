"""A hand-made moment of a node of 8 CPUs: two online pods, two batch pods, a finished one, a host application."""

from __future__ import annotations

from dataclasses import replace

from koordlet.model.audit import AuditRecord
from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob
from koordlet.model.pod import Container, HostApp, Pod, PodSet, Resources, Tree
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.status import ApplyReport, Held, HeldState, Shadowed, Snapshot, TickStats
from koordlet.model.support import Capability, Level, Support
from koordlet.model.topology import Cpu, Topology
from koordlet.model.view import BeRoot, NodeInfo, NodeView, Outcome, Reading, Usage, WorkloadUsage
from koordlet.model.why import stages

NOW_S = 1000.0
GIB = 1 << 30
BE = "kubepods/besteffort"
WHY = stages(capacity_mcpu=8000, threshold_percent=65, nonbe_mcpu=2900, system_mcpu=300, allowance_mcpu=2000)


def pod(uid: str, name: str, kube: KubeQos, qos: Qos | None, namespace: str = "shop", phase: str = "Running") -> Pod:
    parent = {KubeQos.GUARANTEED: "kubepods", KubeQos.BURSTABLE: "kubepods/burstable", KubeQos.BESTEFFORT: BE}[kube]
    cgroup = f"{parent}/pod{uid}"
    batch = Resources(batch_cpu_mcpu=4000, batch_memory_bytes=8 * GIB) if kube is KubeQos.BESTEFFORT else Resources()
    main = Container("main", f"containerd://{uid}c", f"{cgroup}/{uid}c", True, requests=batch, limits=batch)
    return Pod(uid, namespace, name, cgroup, kube, phase=phase, qos=qos, containers=(main,))


WEB = pod("u1", "web-0", KubeQos.BURSTABLE, Qos.LS)
DB = pod("u2", "db-0", KubeQos.GUARANTEED, Qos.LSR)
SPARK = pod("u3", "spark-exec-1", KubeQos.BESTEFFORT, Qos.BE, "batch")
ETL = pod("u4", "etl-77", KubeQos.BESTEFFORT, None, "batch")
DONE = pod("u5", "done-1", KubeQos.BESTEFFORT, Qos.BE, "batch", phase="Succeeded")
APP = HostApp("nginx", "host/nginx", Qos.LS, "koord-prod")
PODS = (WEB, DB, SPARK, ETL, DONE)


def reading(value: float, age_s: float = 0.2) -> Reading:
    return Reading(value, NOW_S - age_s)


def held(target: str, knob: Knob, wanted: str, original: str, owner: str, **more: object) -> Held:
    row = Held(target, knob, wanted, original, owner, WHY, HeldState.HELD, NOW_S - 12.0)
    return replace(row, **more)  # type: ignore[arg-type]


HELD = (
    held(BE, Knob.CPU_QUOTA, "200000", "-1", "suppress"),
    held(SPARK.cgroup, Knob.CPU_IDLE, "1", "0", "identity", why=stages(tree="kubelet", qos="BE")),
    held(
        ETL.cgroup, Knob.CPU_SHARES, "2", "102", "identity",
        state=HeldState.FAILED, error="write 2: Permission denied",
    ),
)  # fmt: skip

QUOTA = Decision(BE, Knob.CPU_QUOTA, 200_000, WHY, "suppress", hot=True)
LOST = Decision(BE, Knob.CPU_SHARES, 10, stages(batch_mcpu=10), "identity")

VIEW = NodeView(
    now_s=NOW_S,
    node=NodeInfo(
        name="node-a",
        capacity_mcpu=8000,
        capacity_bytes=32 * GIB,
        reserved_mcpu=300,
        topology=Topology(tuple(Cpu(id=i, core=i, socket=0, node=0) for i in range(8))),
    ),
    usage=Usage(
        node_mcpu=reading(4700),
        pods_mcpu=reading(4300),
        nonbe_pods_mcpu=reading(2800),
        be_mcpu=reading(1500),
        system_mcpu=reading(300),
        node_memory_bytes=reading(12 * GIB),
        surge_mcpu=reading(2950, 0.02),
        ls_pressure_permyriad=reading(120, 0.02),
        throttled_containers=("kubepods/burstable/pod1/c1",),
    ),
    pods=PodSet(PODS, 7, NOW_S - 4.0),
    host_apps=(APP,),
    be_roots=(BeRoot(BE, Tree.KUBELET, request_mcpu=8000, quota_us=200_000, period_us=100_000, cpuset=CpuSet(range(8)),
                     shares=2, idle=0),),
    support=Support({
        "cpu.idle": Capability("cpu.idle", Level.NATIVE, "/sys/fs/cgroup/cpu/x/cpu.idle"),
        "psi.cgroup": Capability("psi.cgroup", Level.UNSUPPORTED, "no pressure files", "use cgroup v2"),
    }),
)  # fmt: skip

SNAPSHOT = Snapshot(
    view=VIEW,
    outcomes={
        "identity": Outcome((LOST,), None),
        "suppress": Outcome(
            (QUOTA,),
            None,
            gauges=(
                ("be_suppress_cpu_cores", (("type", "cfsQuota"),), 2.0),
                ("be_suppress_ls_used_cpu_cores", (), 2.9),
                ("be_suppress_be_used_cpu_cores", (), 1.5),
            ),
            notes=("threshold lowered by the floor",),
        ),
    },
    apply=ApplyReport(
        written=1, failed=1, held=HELD, shadowed=(Shadowed(LOST, "batchresource"),), errors=("cpu.shares: EACCES",)
    ),
    stats=TickStats(ticks=321, overruns=2, last_ms=3.25, surges=5),
    wall_s=1_790_000_000.0,
    degraded=("psi of cgroups is missing",),
)


def usage(of: Pod, cpu_mcpu: float, memory_bytes: int, container: str = "") -> WorkloadUsage:
    cgroup = of.cgroup if not container else of.containers[0].cgroup
    throttled = reading(0.05) if container else None
    name = f"{of.key}/{container}" if container else of.key
    return WorkloadUsage(
        name, cgroup, of, container, reading(cpu_mcpu), reading(memory_bytes), reading(memory_bytes * 1.5), throttled
    )


WORKLOADS = (
    usage(WEB, 1800, 3 * GIB),
    usage(WEB, 1790, 3 * GIB, "main"),
    usage(DB, 1000, 4 * GIB),
    usage(SPARK, 1400, 2 * GIB),
    usage(ETL, 100, GIB),
    usage(DONE, 0, 0),
    WorkloadUsage("nginx", "host/nginx", cpu_mcpu=reading(250), memory_bytes=reading(GIB)),
)

RECORDS = (
    AuditRecord(
        1, "node", "AdjustBEByNodeCPUUsage", "update BE group to cfs_quota: 200000",
        target=BE, knob="cpu.cfs_quota_us", before="-1", after="200000", owner="suppress", why=WHY,
    ),
    AuditRecord(
        3, "pod", "UpdateCgroups", "set cpu.idle to 1", namespace="batch", name="spark-exec-1",
        target=SPARK.cgroup, knob="cpu.idle", before="0", after="1", owner="identity",
    ),
)  # fmt: skip
