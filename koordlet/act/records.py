"""The audit record of one write, restore or refusal: the reference's reason words and one line of text."""

from __future__ import annotations

from typing import Final

from koordlet.model.audit import AuditRecord
from koordlet.model.knob import Knob
from koordlet.model.why import Why, why_text

LEVEL: Final = 3
GENERIC: Final = "UpdateCgroups"
REASONS: Final = {
    # owner: (written, restored, kind); spec/api 4.5
    "suppress": ("AdjustBEByNodeCPUUsage", "suppressBECPU", "node"),
    "identity": ("GroupIdentity", "GroupIdentity", "group"),
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
