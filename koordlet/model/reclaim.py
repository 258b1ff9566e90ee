"""`Reclaim`: take memory back from a cgroup before it is missing. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from koordlet.model.effect import Effect


@dataclass(frozen=True, slots=True)
class Reclaim(Effect):
    """bytes: how much. file_only: page cache only, as far as the kernel can be told so."""

    kind: ClassVar[str] = "reclaim"
    bytes: int = 0
    file_only: bool = False
