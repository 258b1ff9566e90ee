"""What a write is counted as: every one by kind, those of the pod rules by level as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koordlet.act.job import Job
from koordlet.act.look import Look
from koordlet.model.knob import Knob
from koordlet.report.metrics import Metrics, Which
from koordlet.wiring.lifetime import tell_degraded
from koordlet.wiring.metrics import level, write_times


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ("kubepods/besteffort", "kubeqos"),
        ("kubepods.slice/kubepods-burstable.slice", "kubeqos"),
        ("kubepods/burstable/podu1", "pod"),
        ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice", "pod"),
        ("kubepods/podu1/c1", "container"),
        ("kubepods.slice/kubepods-podu1.slice/cri-containerd-c1.scope", "container"),
        ("batch.slice/spark", "pod"),
    ],
)
def test_levels(cgroup: str, expected: str) -> None:
    assert level(cgroup) == expected


def job(target: str, knob: Knob, owner: str) -> Job:
    return Job(target, knob, Look(Path("/x"), 1, b""), b"", None, b"", owner=owner)


def test_writes_by_kind_and_the_reconcilers_by_level() -> None:
    metrics = Metrics(lambda: (None, ()), process=False, node="node-a")
    told = write_times(metrics)
    told(job("kubepods/podu1/c1", Knob.CPU_QUOTA, "podrules"), 0.1, True)
    told(job("kubepods/podu1", Knob.CPU_SHARES, "podrules"), 0.1, False)
    told(job("kubepods/besteffort", Knob.CPU_QUOTA, "suppress"), 0.1, True)
    told(job("system", Knob.VM_MIN_FREE_KBYTES, "system"), 0.1, True)
    text = metrics.exposition("", Which.INTERNAL)[0].decode()
    name = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds_count"
    rows = [line for line in text.splitlines() if line.startswith(name)]
    assert sorted(rows) == [
        f'{name}{{level="container",node="node-a",resource_type="cpu.cfs_quota_us",status="succeeded"}} 1.0',
        f'{name}{{level="pod",node="node-a",resource_type="cpu.shares",status="failed"}} 1.0',
    ]
    name = "koordlet_resource_update_duration_milliseconds_count"
    rows = [line for line in text.splitlines() if line.startswith(name)]
    assert sorted(rows) == [
        f'{name}{{status="failed",type="cgroup"}} 1.0',
        f'{name}{{status="success",type="cgroup"}} 2.0',
        f'{name}{{status="success",type="default"}} 1.0',
    ]


def test_what_is_new_is_a_warning_and_what_is_over_is_none() -> None:
    with capture_logs() as logs:
        tell_degraded((), ("a", "b"))
        tell_degraded(("a", "b"), ("b", "c"))
        tell_degraded(("b", "c"), ())
    assert [(line["log_level"], line["event"], line["reasons"]) for line in logs] == [
        ("warning", "degraded", ["a", "b"]),
        ("info", "degraded.over", ["a"]),
        ("warning", "degraded", ["c"]),
        ("info", "degraded.over", ["b", "c"]),
    ]
