"""The answer of /v1/explain: why is this workload's kernel state what it is. Pure (units: rows.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from koordlet.model.places import inside
from koordlet.model.pod import Pod
from koordlet.model.status import Held, Snapshot
from koordlet.model.view import WorkloadUsage
from koordlet.report.rows import Row, age_s, be_row, held_row, pod_row, shadowed_row, usage_row

MAX_KNOB_ROWS: Final = 500
MAX_AUDIT_ROWS: Final = 20
MAX_CANDIDATES: Final = 20
_MOUNT: Final = "/sys/fs/cgroup/"
_CONTROLLERS: Final = frozenset(
    ("cpu", "cpuacct", "cpu,cpuacct", "cpuset", "memory", "blkio", "freezer", "pids", "unified", "systemd")
)


def explain_json(
    snapshot: Snapshot,
    what: str,
    now_s: float,
    workloads: Iterable[WorkloadUsage] = (),
    audit: Iterable[dict[str, Any]] = (),
) -> Row:
    """what: `namespace/name`, a pod's name, a host application's name, a cgroup path, or `be`.

    found true:
      query, kind ("pod", "host_app", "be" or "cgroup"), mode, age_s
      pod         rows.pod_row or null
      targets     cgroup paths that the answer is about
      knobs       rows.held_row of the targets and what is below them, then of the groups above (inherited true);
                  knobs_left_out
      shadowed    rows.shadowed_row of the same groups
      be_roots    rows.be_row of the best-effort roots that contain it, or all of them for `be`
      usage       [rows.usage_row]
      audit       the last records about it, oldest first
    found false: query, candidates (names that come near), reason
    """
    rows = tuple(workloads)
    found = _resolve(snapshot, what.strip(), rows)
    if isinstance(found, list):
        several = {pod.key for pod in snapshot.view.pods.pods if pod.name == what.strip()}.issuperset(found)
        reason = "several workloads have this name" if found and several else "no workload and no cgroup of that name"
        if what.strip().lower() == "be":
            reason = "there is no best-effort group here yet: no workload of class BE is known"
        return {"query": what, "found": False, "reason": reason, "candidates": found[:MAX_CANDIDATES]}
    kind, pod, targets = found
    ours = [held for held in snapshot.apply.held if _inside(held.target, targets)]
    above = [held for held in snapshot.apply.held if _above(held.target, targets)]
    knobs = [{**held_row(held, now_s), "inherited": False} for held in _sorted(ours)]
    knobs += [{**held_row(held, now_s), "inherited": True} for held in _sorted(above)]
    roots = [r for r in snapshot.view.be_roots if kind == "be" or _inside(targets[0], (r.path,))]
    return {
        "query": what,
        "found": True,
        "kind": kind,
        "mode": "observe" if snapshot.observe else "enforce",
        "age_s": age_s(snapshot.view.now_s, now_s),
        "pod": pod_row(pod) if pod else None,
        "targets": list(targets),
        "knobs": knobs[:MAX_KNOB_ROWS],
        "knobs_left_out": max(0, len(knobs) - MAX_KNOB_ROWS),
        "shadowed": [
            shadowed_row(row)
            for row in snapshot.apply.shadowed
            if _inside(row.decision.target, targets) or _above(row.decision.target, targets)
        ],
        "be_roots": [be_row(root, snapshot, now_s) for root in roots],
        "usage": [
            usage_row(row, now_s)
            for row in rows
            if (pod and row.pod and row.pod.uid == pod.uid)
            or (not pod and _inside(row.cgroup, targets) and (row.pod is None or row.pod.active))
        ][:MAX_KNOB_ROWS],
        "audit": [row for row in audit if _about(row, pod, targets)][-MAX_AUDIT_ROWS:],
    }


def _resolve(
    snapshot: Snapshot, what: str, rows: tuple[WorkloadUsage, ...]
) -> tuple[str, Pod | None, tuple[str, ...]] | list[str]:
    """(kind, pod, targets), or names to choose from."""
    view = snapshot.view
    if what.lower() == "be" and view.be_roots:
        return "be", None, tuple(root.path for root in view.be_roots)
    pods = view.pods.pods
    named = [pod for pod in pods if what and what in (pod.key, pod.uid, pod.name)]
    live = [pod for pod in named if pod.active] or named
    if len(live) == 1:
        return "pod", live[0], (live[0].cgroup,)
    if live:
        return sorted(pod.key for pod in live)
    for row in rows:
        if row.pod is None and row.name == what:
            return "host_app", None, (row.cgroup,)
    path = _cgroup_path(what)
    if path:
        for pod in pods:
            if path == pod.cgroup:
                return "pod", pod, (path,)
        known = [held.target for held in snapshot.apply.held]
        known += [root.path for root in view.be_roots] + [row.cgroup for row in rows]
        known += [container.cgroup for pod in pods for container in pod.containers]
        if any(_inside(target, (path,)) or target == path for target in known):
            return "cgroup", None, (path,)
    near = what.lower().rpartition("/")[2]
    return sorted(pod.key for pod in pods if near and near in pod.key.lower() and pod.active)


def _cgroup_path(what: str) -> str:
    """Relative path of a cgroup named with or without its mount point and v1 controller."""
    path = what
    if path.startswith(_MOUNT):
        path = path.removeprefix(_MOUNT)
        first, _, rest = path.partition("/")
        if first in _CONTROLLERS:
            path = rest
    return path.strip("/")


def _inside(target: str, tops: tuple[str, ...]) -> bool:
    return any(inside(target, top) for top in tops if top)


def _above(target: str, targets: tuple[str, ...]) -> bool:
    return any(inner.startswith(f"{target}/") for inner in targets)


def _sorted(held: list[Held]) -> list[Held]:
    return sorted(held, key=lambda row: (row.target, row.knob))


def _about(row: dict[str, Any], pod: Pod | None, targets: tuple[str, ...]) -> bool:
    if pod and (row.get("namespace"), row.get("name")) == (pod.namespace, pod.name):
        return True
    target = str(row.get("target", ""))
    return _inside(target, targets) or _above(target, targets)
