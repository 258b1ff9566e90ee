"""`koordlet report WHAT`: longer answers of the running agent, for people and for files."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from koordlet.cli.screen import fail

KINDS: Final = {"interference": "online workloads against their baseline, and which best-effort work slows them"}


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "-help"):
        rows = "\n".join(f"  {name:<14} {about}" for name, about in KINDS.items())
        print(f"usage: koordlet report WHAT [options]\n\n{rows}\n\n  koordlet report WHAT --help")
        return 0 if argv else 2
    if argv[0] not in KINDS:
        return fail("report", f"no report {argv[0][:80]!r}; there are: {' '.join(KINDS)}", 2)
    return int(import_module(f"koordlet.cli.report_{argv[0]}").main(argv[1:]))
