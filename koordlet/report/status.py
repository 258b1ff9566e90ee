"""The answers of /v1/status and /v1/top. Pure: a snapshot and a moment in, JSON-able dicts out (units: rows.py).

Both start with the same head: mode ("enforce" or "observe"), node, age_s of the snapshot, wall_s, degraded, notes,
tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from koordlet.model.effect import EffectReport
from koordlet.model.pod import Pod
from koordlet.model.qos import Qos
from koordlet.model.status import HeldState, Snapshot
from koordlet.model.view import WorkloadUsage
from koordlet.report.rows import (
    Row,
    age_s,
    be_row,
    capability_row,
    held_row,
    pressure_row,
    reading_row,
    shadowed_row,
    usage_row,
    value_text,
    why_row,
)

MAX_KNOB_ROWS: Final = 200
_CLASS_ORDER: Final = (*Qos,)


def status_json(snapshot: Snapshot, now_s: float, version: str = "") -> Row:
    """Head, and

    version       of the agent
    usage         every reading of the last pass, or null
    pressure      rows.pressure_row
    sources       {"pods": {known, active, best_effort, revision, age_s}, "host_apps": {known}}
    strategies    [{name, decisions, error, notes, gauges: [{name, labels, value}], decided: [...]}]; `decided` lists
                  the decisions on best-effort roots: {target, knob, wanted, why}
    be_roots      [rows.be_row]
    apply         {written, restored, failed, drifted, errors} of the last pass
    knobs         {total, by_state, by_owner, rows, rows_left_out}; failing rows come first
    effects       {kind: {done, undone, failed, errors, state, state_left_out}}: what is no knob; state by target
    shadowed      [rows.shadowed_row]
    capabilities  [{name, level, reason, advice}]
    """
    view = snapshot.view
    pods = view.pods.pods
    held = sorted(snapshot.apply.held, key=lambda row: (row.state is not HeldState.FAILED, row.target, row.knob))
    roots = {root.path for root in view.be_roots}
    return {
        "version": version,
        **_head(snapshot, now_s),
        "usage": {name: reading_row(reading, now_s) for name, reading in view.usage.readings()},
        "pressure": pressure_row(snapshot.pressures, now_s),
        "sources": {
            "pods": {
                "known": len(pods),
                "active": sum(pod.active for pod in pods),
                "best_effort": sum(pod.is_be for pod in pods),
                "revision": view.pods.revision,
                "age_s": age_s(view.pods.at_s, now_s),
            },
            "host_apps": {"known": len(view.host_apps)},
        },
        "strategies": [_strategy(name, snapshot, roots) for name in _strategy_names(snapshot)],
        "be_roots": [be_row(root, snapshot, now_s) for root in view.be_roots],
        "apply": {
            "written": snapshot.apply.written,
            "restored": snapshot.apply.restored,
            "failed": snapshot.apply.failed,
            "drifted": snapshot.apply.drifted,
            "errors": list(snapshot.apply.errors),
        },
        "knobs": {
            "total": len(held),
            "by_state": _counted(row.state.value for row in held),
            "by_owner": _counted(row.owner for row in held),
            "rows": [held_row(row, now_s) for row in held[:MAX_KNOB_ROWS]],
            "rows_left_out": max(0, len(held) - MAX_KNOB_ROWS),
        },
        "effects": {kind: _effect(report) for kind, report in snapshot.effects.items()},
        "shadowed": [shadowed_row(row) for row in snapshot.apply.shadowed],
        "capabilities": [capability_row(row) for row in view.support.table.values()],
    }


def top_json(snapshot: Snapshot, now_s: float, workloads: Iterable[WorkloadUsage]) -> Row:
    """Head, and

    usage      readings: node_mcpu, node_memory_bytes, system_mcpu, be_mcpu, surge_mcpu, ls_pressure_permyriad
    pressure   rows.pressure_row
    classes    per QoS class with pods: {qos, pods, cpu_mcpu, memory_bytes, batch_request_mcpu}; the sums are plain
               numbers over the pods that have a reading, null when none has
    be_roots   [rows.be_row]
    pods       live pods by CPU, largest first: {namespace, name, qos, priority_class, best_effort, cgroup, cpu_mcpu,
               memory_bytes, throttled_ratio (readings; throttled: the worst container's)}
    host_apps  [rows.usage_row]
    """
    rows = tuple(workloads)
    pods = _top_pods(snapshot, rows, now_s)
    usage = snapshot.view.usage
    shown = ("node_mcpu", "node_memory_bytes", "system_mcpu", "be_mcpu", "surge_mcpu", "ls_pressure_permyriad")
    return {
        **_head(snapshot, now_s),
        "usage": {name: reading_row(getattr(usage, name), now_s) for name in shown},
        "pressure": pressure_row(snapshot.pressures, now_s),
        "classes": _classes(pods),
        "be_roots": [be_row(root, snapshot, now_s) for root in snapshot.view.be_roots],
        "pods": pods,
        "host_apps": [usage_row(row, now_s) for row in rows if row.pod is None],
    }


def _head(snapshot: Snapshot, now_s: float) -> Row:
    view, stats = snapshot.view, snapshot.stats
    topology = view.node.topology
    return {
        "mode": "observe" if snapshot.observe else "enforce",
        "node": {
            "name": view.node.name,
            "capacity_mcpu": view.node.capacity_mcpu,
            "capacity_bytes": view.node.capacity_bytes,
            "reserved_mcpu": view.node.reserved_mcpu,
            "online_cpus": None if topology is None else str(topology.online),
            "kubelet_policy": view.node.kubelet_policy,
        },
        "age_s": age_s(view.now_s, now_s),
        "interval_s": view.interval_s,
        "wall_s": snapshot.wall_s,
        "degraded": list(snapshot.degraded),
        "notes": list(snapshot.notes),
        "tick": {
            "ticks": stats.ticks,
            "overruns": stats.overruns,
            "last_ms": round(stats.last_ms, 3),
            "surges": stats.surges,
        },
    }


def _effect(report: EffectReport) -> Row:
    rows = list(report.state.items())
    return {
        "done": report.done,
        "undone": report.undone,
        "failed": report.failed,
        "errors": list(report.errors[:MAX_KNOB_ROWS]),
        "state": dict(rows[:MAX_KNOB_ROWS]),
        "state_left_out": max(0, len(rows) - MAX_KNOB_ROWS),
    }


def _strategy_names(snapshot: Snapshot) -> list[str]:
    failing_only = sorted(snapshot.stats.strategy_errors.keys() - snapshot.outcomes.keys())
    return [*snapshot.outcomes, *failing_only]


def _strategy(name: str, snapshot: Snapshot, roots: set[str]) -> Row:
    outcome = snapshot.outcomes.get(name)
    decisions = outcome.decisions if outcome else ()
    return {
        "name": name,
        "decisions": len(decisions),
        "error": snapshot.stats.strategy_errors.get(name, ""),
        "notes": list(outcome.notes) if outcome else [],
        "gauges": [
            {"name": gauge, "labels": dict(labels), "value": value}
            for gauge, labels, value in (outcome.gauges if outcome else ())
        ],
        "decided": [
            {"target": d.target, "knob": d.knob.value, "wanted": value_text(d), "why": why_row(d.why)}
            for d in decisions
            if d.target in roots
        ],
    }


def _top_pods(snapshot: Snapshot, rows: tuple[WorkloadUsage, ...], now_s: float) -> list[Row]:
    own: dict[str, WorkloadUsage] = {}
    throttled: dict[str, WorkloadUsage] = {}
    for row in rows:
        if row.pod is None:
            continue
        if not row.container:
            own[row.pod.uid] = row
        worst = throttled.get(row.pod.uid)
        if row.throttled and (worst is None or worst.throttled is None or row.throttled.value > worst.throttled.value):
            throttled[row.pod.uid] = row
    found = [
        _top_pod(pod, own.get(pod.uid), throttled.get(pod.uid), now_s) for pod in snapshot.view.pods.pods if pod.active
    ]
    found.sort(key=lambda row: (-(row["cpu_mcpu"] or {"value": -1})["value"], row["namespace"], row["name"]))
    return found


def _top_pod(pod: Pod, row: WorkloadUsage | None, worst: WorkloadUsage | None, now_s: float) -> Row:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "qos": pod.default_qos.value,
        "priority_class": pod.priority_class.value,
        "best_effort": pod.is_be,
        "cgroup": pod.cgroup,
        "batch_request_mcpu": pod.batch_request_mcpu,
        "cpu_mcpu": reading_row(row.cpu_mcpu, now_s) if row else None,
        "memory_bytes": reading_row(row.memory_bytes, now_s) if row else None,
        "throttled_ratio": reading_row(worst.throttled, now_s, digits=4) if worst else None,
    }


def _classes(pods: list[Row]) -> list[Row]:
    classes: list[Row] = []
    for qos in _CLASS_ORDER:
        mine = [row for row in pods if row["qos"] == qos.value]
        if mine:
            classes.append(
                {
                    "qos": qos.value,
                    "pods": len(mine),
                    "cpu_mcpu": _sum(mine, "cpu_mcpu"),
                    "memory_bytes": _sum(mine, "memory_bytes"),
                    "batch_request_mcpu": sum(row["batch_request_mcpu"] for row in mine),
                }
            )
    return classes


def _sum(rows: list[Row], key: str) -> int | None:
    values = [row[key]["value"] for row in rows if row[key] is not None]
    return sum(values) if values else None


def _counted(words: Iterable[str]) -> dict[str, Any]:
    return dict(sorted(Counter(words).items()))
