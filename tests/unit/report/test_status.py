"""status, top and explain: what they say about a hand-made moment."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import RESTORE, Decision, Knob
from koordlet.model.status import ApplyReport, Snapshot
from koordlet.model.view import NodeView, Outcome
from koordlet.model.why import stages
from koordlet.report.audit import AuditLog
from koordlet.report.explain import explain_json
from koordlet.report.status import MAX_KNOB_ROWS, status_json, top_json
from tests.unit.report.samples import (
    BE,
    HELD,
    NOW_S,
    PODS,
    QUOTA,
    RECORDS,
    SNAPSHOT,
    SPARK,
    VIEW,
    WEB,
    WORKLOADS,
    held,
    pod,
)


def explain(what: str, snapshot: Snapshot = SNAPSHOT) -> dict[str, Any]:
    audit = AuditLog(None, clock=lambda: 0.0)
    for record in RECORDS:
        audit(record)
    answer = explain_json(snapshot, what, NOW_S + 1, WORKLOADS, audit.tail())
    json.dumps(answer)
    return answer


def test_status_has_ages_as_of_the_question() -> None:
    answer = status_json(SNAPSHOT, NOW_S + 1, "0.1.0")
    json.dumps(answer)
    assert answer["mode"] == "enforce"
    assert answer["age_s"] == 1.0
    assert answer["usage"]["node_mcpu"] == {"value": 4700, "age_s": 1.2}
    assert answer["usage"]["hosts_mcpu"] is None
    assert answer["sources"]["pods"] == {"known": 5, "active": 4, "best_effort": 3, "revision": 7, "age_s": 5.0}
    assert answer["degraded"] == ["psi of cgroups is missing"]
    assert answer["tick"] == {"ticks": 321, "overruns": 2, "last_ms": 3.25, "surges": 5}
    assert answer["node"]["online_cpus"] == "0-7"


def test_status_shows_failing_knobs_first_and_bounds_the_list() -> None:
    many = tuple(held(f"a/{i:04}", Knob.CPU_SHARES, "2", "3", "x") for i in range(MAX_KNOB_ROWS))
    knobs = status_json(replace(SNAPSHOT, apply=ApplyReport(held=many + HELD)), NOW_S)["knobs"]
    assert knobs["total"] == MAX_KNOB_ROWS + 3
    assert len(knobs["rows"]) == MAX_KNOB_ROWS
    assert knobs["rows_left_out"] == 3
    assert knobs["rows"][0]["state"] == "failed"
    assert knobs["by_state"] == {"failed": 1, "held": MAX_KNOB_ROWS + 2}


def test_status_before_anything_is_known() -> None:
    empty = Snapshot(NodeView(now_s=1.0), {}, ApplyReport(), SNAPSHOT.stats, 0.0, observe=True)
    answer = status_json(empty, 1.0)
    assert answer["mode"] == "observe"
    assert answer["sources"]["pods"]["age_s"] is None


def test_allowance_names_knob_owner_and_stages() -> None:
    (root,) = status_json(SNAPSHOT, NOW_S)["be_roots"]
    assert (root["allowance_mcpu"], root["limited_by"], root["owner"]) == (2000, "cpu.cfs_quota_us", "suppress")
    assert list(root["why"]) == [name for name, _ in QUOTA.why]


@pytest.mark.parametrize(
    ("decisions", "allowance", "knob"),
    [
        ((), None, None),
        ((Decision(BE, Knob.CPU_QUOTA, RESTORE, (), "s"),), None, None),
        ((Decision(BE, Knob.CPU_QUOTA, -1, (), "s"),), None, None),
        ((Decision(BE, Knob.CPUSET, CpuSet([1, 2]), (), "s"),), 2000, "cpuset.cpus"),
        ((QUOTA, Decision(BE, Knob.CPUSET, CpuSet([1]), (), "s")), 1000, "cpuset.cpus"),
        ((Decision(f"{BE}/podx", Knob.CPU_QUOTA, 1000, (), "s"),), None, None),
        ((Decision(f"{BE}/podx/c", Knob.CPUSET, CpuSet([1, 2, 3]), (), "s"),), 3000, "cpuset.cpus"),
    ],
    ids=["nothing", "restore", "unlimited", "cpuset", "tightest", "quota-of-a-pod", "cpuset-of-containers"],
)
def test_allowance(decisions: tuple[Decision, ...], allowance: int | None, knob: str | None) -> None:
    snapshot = replace(SNAPSHOT, outcomes={"s": Outcome(decisions, None)})
    (root,) = top_json(snapshot, NOW_S, ())["be_roots"]
    assert (root["allowance_mcpu"], root["limited_by"]) == (allowance, knob)


def test_top_sorts_live_pods_by_cpu() -> None:
    answer = top_json(SNAPSHOT, NOW_S, WORKLOADS)
    json.dumps(answer)
    assert [row["name"] for row in answer["pods"]] == ["web-0", "spark-exec-1", "db-0", "etl-77"]
    assert answer["pods"][0]["throttled_ratio"]["value"] == 0.05
    assert [(c["qos"], c["pods"], c["cpu_mcpu"]) for c in answer["classes"]] == [
        ("LSR", 1, 1000),
        ("LS", 1, 1800),
        ("BE", 2, 1500),
    ]
    assert [row["name"] for row in answer["host_apps"]] == ["nginx"]


def test_a_pod_without_a_reading_has_none() -> None:
    answer = top_json(SNAPSHOT, NOW_S, ())
    assert {row["cpu_mcpu"] for row in answer["pods"]} == {None}
    assert answer["classes"][0]["cpu_mcpu"] is None


@pytest.mark.parametrize(
    ("what", "kind", "target"),
    [
        ("batch/spark-exec-1", "pod", SPARK.cgroup),
        ("spark-exec-1", "pod", SPARK.cgroup),
        ("u3", "pod", SPARK.cgroup),
        (SPARK.cgroup, "pod", SPARK.cgroup),
        (f"/sys/fs/cgroup/cpu,cpuacct/{SPARK.cgroup}/", "pod", SPARK.cgroup),
        (f"/sys/fs/cgroup/{BE}", "cgroup", BE),
        ("kubepods", "cgroup", "kubepods"),
        ("be", "be", BE),
        ("nginx", "host_app", "host/nginx"),
        (WEB.containers[0].cgroup, "cgroup", WEB.containers[0].cgroup),
    ],
)
def test_explain_finds(what: str, kind: str, target: str) -> None:
    answer = explain(what)
    assert answer["found"]
    assert (answer["kind"], answer["targets"]) == (kind, [target])


@pytest.mark.parametrize(
    ("what", "candidates"),
    [
        ("nothing-like-it", []),
        ("spark", ["batch/spark-exec-1"]),
        ("other/etl", ["batch/etl-77"]),
        ("/", []),
        ("", []),
        ("x" * 10_000, []),
    ],
    ids=["unknown", "part", "wrong-namespace", "root", "empty", "huge"],
)
def test_explain_offers_what_comes_near(what: str, candidates: list[str]) -> None:
    answer = explain(what)
    assert not answer["found"]
    assert answer["candidates"] == candidates


def test_explain_asks_when_a_name_is_ambiguous() -> None:
    twin = pod("u8", "web-0", WEB.kube_qos, WEB.qos, namespace="stage")
    both = replace(SNAPSHOT, view=replace(VIEW, pods=replace(VIEW.pods, pods=(*PODS, twin))))
    answer = explain("web-0", both)
    assert answer["candidates"] == ["shop/web-0", "stage/web-0"]
    assert answer["reason"] == "several workloads have this name"


def test_explain_tells_own_and_inherited_knobs_audit_and_shadowed() -> None:
    answer = explain("spark-exec-1")
    assert [(k["knob"], k["inherited"], k["owner"]) for k in answer["knobs"]] == [
        ("cpu.idle", False, "identity"),
        ("cpu.cfs_quota_us", True, "suppress"),
    ]
    assert answer["knobs"][0]["why"] == {"tree": "kubelet", "qos": "BE"}
    assert answer["shadowed"] == [
        {"target": BE, "knob": "cpu.shares", "wanted": "10", "owner": "identity", "winner": "batchresource",
         "why": dict(stages(batch_mcpu=10))},
    ]  # fmt: skip
    assert [row["reason"] for row in answer["audit"]] == ["AdjustBEByNodeCPUUsage", "UpdateCgroups"]
    assert answer["be_roots"][0]["allowance_mcpu"] == 2000
    assert answer["usage"][0]["cpu_mcpu"]["value"] == 1400


def test_explain_of_an_online_pod_has_nothing_of_best_effort() -> None:
    answer = explain("web-0")
    assert answer["knobs"] == []
    assert answer["be_roots"] == []
    assert answer["audit"] == []
    assert len(answer["usage"]) == 2


@given(what=st.text(max_size=60) | st.sampled_from(["be", "web", "/", "//", "kubepods/../..", "kubepods/bester"]))
def test_explain_answers_any_text(what: str) -> None:
    answer = explain(what)
    assert answer["found"] or answer["reason"]
