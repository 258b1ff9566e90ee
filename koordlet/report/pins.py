"""The answers of /v1/pins: what placing declared workloads anew would do, and what became of the last request. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Protocol

from koordlet.decide.pinning.defragment import Plan
from koordlet.model.cpuset import CpuSet
from koordlet.report.rows import Row


class Pins(Protocol):
    """The declared workloads' places. Methods may be called from any thread."""

    answered: tuple[str, str]

    def plan(self) -> Plan | None:
        """None before the first round."""

    def ask(self, plan_id: str) -> str:
        """ "" when the next tick will carry it out, else why not."""


def plan_json(plan: Plan, answered: tuple[str, str]) -> Row:
    """moves: {workload, from, to}, CPU lists, null for none of its own. before, after: the fields of Fragmentation.
    last: id and error of the last plan that was asked for, null when none was."""
    last_id, error = answered
    return {
        "id": plan.id,
        "moves": [{"workload": move.name, "from": _text(move.before), "to": _text(move.after)} for move in plan.moves],
        "before": asdict(plan.before),
        "after": asdict(plan.after),
        "last": {"id": last_id, "error": error} if last_id else None,
    }


def _text(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)
