"""Pressure in the reports: the reference's label values, live pods only, full only where the kernel has it."""

from __future__ import annotations

from dataclasses import replace

from koordlet.model.pod import Pod
from koordlet.model.psi import Pressures, Psi, PsiLine
from koordlet.model.qos import KubeQos, Qos
from koordlet.report.metrics import Metrics
from koordlet.report.status import status_json
from tests.unit.report.samples import SNAPSHOT, pod

SOME = Psi(PsiLine(12.5, 4.0, 1.0, 1000))
BOTH = Psi(PsiLine(2.0, 1.0, 0.5, 500), PsiLine(1.0, 0.5, 0.25, 250), full_supported=True)


def snapshot_of(*pods: Pod) -> object:
    groups = {p.cgroup: {"cpu": SOME, "memory": BOTH} for p in pods}
    view = replace(SNAPSHOT.view, pods=replace(SNAPSHOT.view.pods, pods=pods))
    return replace(SNAPSHOT, view=view, pressures=Pressures(SNAPSHOT.view.now_s, {"cpu": SOME, "io": BOTH}, groups))  # type: ignore[arg-type]


def test_node_and_pod_series() -> None:
    live = pod("u1", "web", KubeQos.BURSTABLE, Qos.LS)
    done = pod("u2", "old", KubeQos.BURSTABLE, Qos.LS, phase="Succeeded")
    snapshot = snapshot_of(live, done)
    text = Metrics(lambda: (snapshot, ()), process=False).exposition()[0].decode()  # type: ignore[arg-type, return-value]
    assert (
        'koordlet_node_psi{node="node-a",psi_degree="some",psi_precision="avg10",psi_resource_type="cpu"} 12.5' in text
    )
    assert 'psi_degree="full",psi_precision="avg10",psi_resource_type="cpu"' not in text
    pods = [line for line in text.splitlines() if line.startswith("koordlet_pod_psi{")]
    assert len(pods) == 9
    assert all('pod_name="web"' in line for line in pods)
    assert sum('psi_resource_type="mem"' in line for line in pods) == 6


def test_status_says_null_without_psi() -> None:
    assert status_json(SNAPSHOT, SNAPSHOT.view.now_s)["pressure"] is None
    told = status_json(snapshot_of(), SNAPSHOT.view.now_s)["pressure"]  # type: ignore[arg-type]
    assert told["node"]["cpu"] == {"some_avg10_percent": 12.5, "full_avg10_percent": None, "some_total_us": 1000}
