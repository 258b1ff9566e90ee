"""Pieces of the JSON answers: one model object -> one JSON-able dict. Pure.

Conventions of every answer: the unit is in the key (`_mcpu` milli-CPU, `_bytes`, `_us`, `_ms`, `_s` seconds,
`_permyriad` 1/10000, `_ratio` 0..1); a reading is {"value", "age_s"}; null is "no such reading"; a list that was
cut says so by `<list>_left_out`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordlet.model.cpuset import CpuSet
from koordlet.model.knob import Decision, Knob, Restore
from koordlet.model.pod import Pod
from koordlet.model.psi import Pressures, Psi, Resource
from koordlet.model.status import Held, Shadowed, Snapshot
from koordlet.model.support import Capability
from koordlet.model.units import DEFAULT_PERIOD_US, quota_to_mcpu
from koordlet.model.view import BeRoot, Reading, WorkloadUsage
from koordlet.model.why import Why

Row = dict[str, Any]


def age_s(at_s: float | None, now_s: float) -> float | None:
    """Rounded to milliseconds, never negative: the asker's clock may be read before the tick's."""
    return None if at_s is None else round(max(0.0, now_s - at_s), 3)


def reading_row(reading: Reading | None, now_s: float, digits: int = 0) -> Row | None:
    if reading is None:
        return None
    value = round(reading.value, digits) if digits else round(reading.value)
    return {"value": value, "age_s": age_s(reading.at_s, now_s)}


def psi_row(found: Mapping[Resource, Psi]) -> Row:
    """resource -> {some_avg10_percent, full_avg10_percent (null where the kernel has none), some_total_us}."""
    return {
        resource: {
            "some_avg10_percent": psi.some.avg10,
            "full_avg10_percent": psi.full.avg10 if psi.full_supported else None,
            "some_total_us": psi.some.total_us,
        }
        for resource, psi in found.items()
    }


def pressure_row(pressures: Pressures | None, now_s: float) -> Row | None:
    """{"age_s", "node": psi_row, "groups": {cgroup path: psi_row}}, null where the kernel has no PSI."""
    if pressures is None:
        return None
    groups = {path: psi_row(found) for path, found in pressures.groups.items()}
    return {"age_s": age_s(pressures.at_s, now_s), "node": psi_row(pressures.node), "groups": groups}


def why_row(why: Why) -> Row:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in why}


def held_row(held: Held, now_s: float) -> Row:
    return {
        "target": held.target,
        "knob": held.knob.value,
        "wanted": held.wanted,
        "original": held.original,
        "owner": held.owner,
        "state": held.state.value,
        "since_age_s": age_s(held.since_s, now_s),
        "error": held.error,
        "why": why_row(held.why),
    }


def shadowed_row(shadowed: Shadowed) -> Row:
    decision = shadowed.decision
    return {
        "target": decision.target,
        "knob": decision.knob.value,
        "wanted": value_text(decision),
        "owner": decision.owner,
        "winner": shadowed.winner,
        "why": why_row(decision.why),
    }


def capability_row(row: Capability) -> Row:
    return {"name": str(row.name), "level": row.level.value, "reason": row.reason, "advice": row.advice}


def value_text(decision: Decision) -> str:
    return "restore" if isinstance(decision.value, Restore) else str(decision.value)


def pod_row(pod: Pod) -> Row:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "cgroup": pod.cgroup,
        "phase": pod.phase,
        "qos": pod.default_qos.value,
        "kube_qos": pod.kube_qos.value,
        "priority_class": pod.priority_class.value,
        "tree": pod.tree.value,
        "best_effort": pod.is_be,
        "batch_request_mcpu": pod.batch_request_mcpu,
        "cpuset": None if pod.cpuset is None else str(pod.cpuset),
        "cpuset_error": pod.cpuset_error,
        "containers": [{"name": c.name, "id": c.id, "cgroup": c.cgroup, "running": c.running} for c in pod.containers],
    }


def usage_row(row: WorkloadUsage, now_s: float) -> Row:
    """`pod` is null for a host application."""
    return {
        "name": row.name,
        "cgroup": row.cgroup,
        "pod": row.pod.key if row.pod else None,
        "container": row.container,
        "cpu_mcpu": reading_row(row.cpu_mcpu, now_s),
        "memory_bytes": reading_row(row.memory_bytes, now_s),
        "memory_raw_bytes": reading_row(row.memory_raw_bytes, now_s),
        "throttled_ratio": reading_row(row.throttled, now_s, digits=4),
    }


def be_row(root: BeRoot, snapshot: Snapshot, now_s: float) -> Row:
    """One best-effort root: what it may use now, what the kernel says, and why.

    allowance_mcpu: the tighter of the wanted quota and the wanted CPU list, null when neither caps it.
    limited_by: the knob that gives it. why: the stages of that decision.
    """
    caps = _caps(root, snapshot)
    tightest = min(caps, key=lambda cap: cap[0], default=None)
    return {
        "path": root.path,
        "tree": root.tree.value,
        "allowance_mcpu": tightest[0] if tightest else None,
        "limited_by": tightest[1].knob.value if tightest else None,
        "owner": tightest[1].owner if tightest else None,
        "why": why_row(tightest[1].why) if tightest else {},
        "request_mcpu": root.request_mcpu,
        "kernel": {
            "quota_us": root.quota_us,
            "period_us": root.period_us,
            "cpuset": None if root.cpuset is None else str(root.cpuset),
            "shares": root.shares,
            "idle": root.idle,
        },
        "knobs": [held_row(held, now_s) for held in snapshot.apply.held if held.target == root.path],
    }


def _caps(root: BeRoot, snapshot: Snapshot) -> list[tuple[int, Decision]]:
    """(milli-CPU, decision) per knob that limits the root.

    CPU lists below the root count where the root has none: under a kubelet's static policy only containers are
    pinned. The largest of them is what the subtree may use.
    """
    lost = {(s.decision.target, s.decision.knob, s.decision.owner) for s in snapshot.apply.shadowed}
    on_root: list[tuple[int, Decision]] = []
    below: list[tuple[int, Decision]] = []
    for outcome in snapshot.outcomes.values():
        for decision in outcome.decisions:
            value = decision.value
            if (*decision.key, decision.owner) in lost:
                continue
            if decision.knob is Knob.CPUSET and isinstance(value, CpuSet):
                if decision.target == root.path:
                    on_root.append((1000 * len(value), decision))
                elif decision.target.startswith(f"{root.path}/"):
                    below.append((1000 * len(value), decision))
            elif (
                decision.target == root.path
                and decision.knob is Knob.CPU_QUOTA
                and isinstance(value, int)
                and value >= 0
            ):
                on_root.append((quota_to_mcpu(value, root.period_us or DEFAULT_PERIOD_US), decision))
    if below and not any(decision.knob is Knob.CPUSET for _, decision in on_root):
        on_root.append(max(below, key=lambda cap: cap[0]))
    return on_root
