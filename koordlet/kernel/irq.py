"""Interrupts and the CPUs that may serve them (Documentation/core-api/irq/irq-affinity.rst)."""

from __future__ import annotations

import os

from koordlet.kernel.host import Host
from koordlet.model.cpuset import CpuSet


def read_irqs(host: Host) -> tuple[tuple[int, CpuSet], ...]:
    """(number, smp_affinity_list), by number. Those that went away or tell nothing readable are left out."""
    found = []
    base = host.dir("irq", "")
    try:
        names = os.listdir(base)
    except OSError:
        return ()
    for number in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        try:
            found.append((number, CpuSet.parse((base / str(number) / "smp_affinity_list").read_text("ascii").strip())))
        except (OSError, ValueError):
            continue
    return tuple(found)
