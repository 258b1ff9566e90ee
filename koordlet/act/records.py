"""What is told about a write, restore or refusal: the audit record with the reference's reason words, and the log."""

from __future__ import annotations

from typing import Final

import structlog

from koordlet.kernel.host import Host
from koordlet.kernel.knobs import knob_path
from koordlet.model.audit import AuditRecord, AuditSink
from koordlet.model.knob import Decision, Knob
from koordlet.model.why import Why, why_text

log = structlog.get_logger(__name__)

LEVEL: Final = 3
GENERIC: Final = "UpdateCgroups"
REASONS: Final = {
    # owner: (written, restored, kind); spec/api 4.5
    "suppress": ("AdjustBEByNodeCPUUsage", "suppressBECPU", "node"),
    "be_cpus": ("suppressBECPU", "suppressBECPU", "group"),
    "memory_evict": ("MemoryLadder", "MemoryLadder", "group"),
    "identity": ("GroupIdentity", "GroupIdentity", "group"),
    "burst": ("CFSQuotaBurst", "CFSQuotaBurst", "group"),
    "memory_qos": ("cgroup reconcile", "cgroup reconcile", "group"),
    "blkio": ("UpdateBlkIO", "UpdateBlkIO", "group"),
    "system": ("systemConfig reconcile", "systemConfig reconcile", "node"),
    "podrules": ("runtime-hooks", "runtime-hooks", "group"),
}


def record(
    mode: str,
    target: str,
    knob: Knob,
    before: str,
    after: str,
    *,
    owner: str = "",
    why: Why = (),
    note: str = "",
    error: str = "",
) -> AuditRecord:
    """mode: write, restore, observe or refused. note: what else there is to say ("drift", "foreign value kept")."""
    written, restored, kind = REASONS.get(owner, (GENERIC, GENERIC, "group"))
    parts = [f"{mode} {target}/{knob}: {before or '(empty)'} -> {after or '(empty)'}", note, why_text(why), error]
    return AuditRecord(
        level=LEVEL,
        kind=kind,
        reason=restored if mode == "restore" else written,
        message="; ".join(part for part in parts if part),
        name=target if kind == "group" else "",
        target=target,
        knob=knob.value,
        before=before,
        after=after,
        owner=owner,
        why=why,
        mode=mode,
        error=error,
    )


class Teller:
    """Audit records about decisions."""

    def __init__(self, host: Host, audit: AuditSink) -> None:
        self._host = host
        self._audit = audit
        self._unsupported: set[str] = set()

    def __call__(
        self, mode: str, decision: Decision, before: str, after: str, *, note: str = "", error: str = ""
    ) -> None:
        target, knob, owner, why = decision.target, decision.knob, decision.owner, decision.why
        self._audit(record(mode, target, knob, before, after, owner=owner, why=why, note=note, error=error))

    def unsupported(self, decision: Decision) -> None:
        """Once per file name, however many cgroups lack it."""
        path = knob_path(self._host, decision.target, decision.knob)
        name = path.name if path is not None else decision.knob.value
        if name not in self._unsupported:
            self._unsupported.add(name)
            knob = decision.knob.value  # not the file's name: several are called "enabled"
            log.warning("knob.unsupported", knob=knob, first_seen=decision.target, path=str(path or ""))
            self("refused", decision, "", "", error="no such file here, not tried again")
