"""Names that several rooms must spell alike: the agent's own files, and where one cgroup lies in another. Pure."""

from __future__ import annotations

from typing import Final

SOCKET_FILE: Final = "agent.sock"
"""The command's socket, in the run directory; koordlet.sock there is the hook server's."""
LOCK_FILE: Final = "koordlet.lock"
"""One agent per run directory."""
JOURNAL_FILE: Final = "journal"
"""The restore journal, in the state directory."""
PINS_FILE: Final = "pins.json"
"""Which declared workload holds which CPUs, in the state directory."""

SHARED: Final = frozenset(
    {"system.slice", "user.slice", "machine.slice", "init.scope", "machine", "docker", "lxc", "libpod_parent"}
)
"""Cgroups where other people's work may start at any moment; never taken as a best-effort root."""


def inside(path: str, outer: str) -> bool:
    """Cgroup path at or below another, both relative to the hierarchy's root."""
    return path == outer or path.startswith(f"{outer}/")
