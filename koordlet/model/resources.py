"""`Resources`: requests or limits of a container. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """Requests or limits of a container: milli-CPU and bytes; None is "not set"."""

    cpu_mcpu: int | None = None
    memory_bytes: int | None = None
    batch_cpu_mcpu: int | None = None
    batch_memory_bytes: int | None = None
    mid_cpu_mcpu: int | None = None
    mid_memory_bytes: int | None = None
