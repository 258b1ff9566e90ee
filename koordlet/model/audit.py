"""What is recorded about an action: one `AuditRecord` per write, restore, refusal or eviction. Pure.

act produces records, report writes them; neither knows the other. Field names on disk follow
spec/api 4.5 (`createdAt`, `type`, ...); the extra fields are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from koordlet.model.why import Why


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """level: 0 evictions, 1 and 3 writes, 5 chatter; a record above `--audit-verbose` is dropped (0 keeps all).

    kind: node, pod, group or unknown. reason: the reference's word (`UpdateCgroups`,
    `AdjustBEByNodeCPUUsage`, `suppressBECPU`). before/after: file content, stripped. mode: write, restore,
    observe (nothing was written) or refused (error holds the kernel's answer).
    """

    level: int
    kind: str
    reason: str
    message: str
    namespace: str = ""
    name: str = ""
    container: str = ""
    target: str = ""
    knob: str = ""
    before: str = ""
    after: str = ""
    owner: str = ""
    why: Why = ()
    mode: str = "write"
    error: str = ""


AuditSink = Callable[[AuditRecord], None]
