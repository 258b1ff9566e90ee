"""What this machine can do: knob or signal -> native, emulated or unsupported, with the reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    NATIVE = "native"
    EMULATED = "emulated"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Capability:
    """name: a knob or signal ("cpu.idle", "psi.cpu.cgroup", "psi.trigger"). advice: what to do about a gap."""

    name: str
    level: Level
    reason: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Support:
    """Capability table of one probe; honoured by every strategy, so an unsupported knob never fails a tick."""

    table: dict[str, Capability] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """True unless the probe found it unsupported; unknown names are taken as unsupported."""
        found = self.table.get(name)
        return found is not None and found.level is not Level.UNSUPPORTED
