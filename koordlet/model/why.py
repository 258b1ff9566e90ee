"""`Why`: the named stages, with numbers, that led to a decision. Pure.

The same tuple feeds the log line, the audit record, `koordlet explain` and the status page, so a
stage is added once, where the formula computes it.
"""

from __future__ import annotations

Stage = tuple[str, int | float | str]
Why = tuple[Stage, ...]


def stages(**named: int | float | str) -> Why:
    """Stages in the order given: `stages(ceiling_mcpu=1300, ls_mcpu=400)`."""
    return tuple(named.items())


def why_text(why: Why) -> str:
    """`ceiling_mcpu=1300 ls_mcpu=400`, for logs and audit messages."""
    return " ".join(f"{name}={value:.1f}" if isinstance(value, float) else f"{name}={value}" for name, value in why)
