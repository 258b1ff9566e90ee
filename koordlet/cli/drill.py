"""`koordlet drill`: the drills themselves stand in koordlet/drill."""

from __future__ import annotations

from collections.abc import Sequence

from koordlet.drill import main as run


def main(argv: Sequence[str]) -> int:
    return run(argv)
